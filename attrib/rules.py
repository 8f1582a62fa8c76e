"""Rules of engines, as data: one TOML file each says what its kernels are, and which weight matrix each launch streams.

`match` tells the category of a kernel from its name. `plan` walks the weight-streaming launches of a step in order and
gives each the next role of the layer, checking rows and quant type against the model; an order that would need an
impossible shape is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrib import categories
from attrib.errors import JoinError
from attrib.files import read_text
from attrib.models import QUANT_OF_GGML, Model, Tensor
from attrib.names import template_arguments
from attrib.words import counted

FUSED = {"ffn_gate+ffn_up": "ffn_gate_up", "attn_q+attn_k+attn_v": "attn_qkv"}
_FLOAT_TYPES = {
    "float": "f32",
    "half": "f16",
    "__half": "f16",
    "nv_bfloat16": "bf16",
    "__nv_bfloat16": "bf16",
}


ORDER = 50
"""Place of a rule file that names none: lower ones are tried first."""


@dataclass(frozen=True)
class KernelRule:
    """What a kernel is: its category, by the qualified function name, by the whole demangled name, or by both."""

    category: str
    function: re.Pattern[str] | None
    name: re.Pattern[str] | None

    def matches(self, function: str, full: str) -> bool:
        """Whether every pattern given is found."""
        return (self.function is None or self.function.search(function) is not None) and (
            self.name is None or self.name.search(full) is not None
        )


@dataclass(frozen=True)
class Stream:
    """A kernel that streams a matrix: function pattern, template argument with the type, rows per block.

    `rows_per_block` is empty where neither name nor grid tells the rows: such a launch is placed by its order alone.
    """

    function: re.Pattern[str]
    quant: int | None
    rows_per_block: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """One engine's rules."""

    name: str
    about: str
    order: int
    kernels: tuple[KernelRule, ...]
    streams: tuple[Stream, ...]
    layers: tuple[tuple[str, ...], ...]
    tail: tuple[str, ...]
    kv: tuple[re.Pattern[str], ...]

    def stream(self, function: str) -> Stream | None:
        """The stream rule for this function name, if any."""
        return next((s for s in self.streams if s.function.search(function)), None)

    def kernel(self, function: str, full: str) -> KernelRule | None:
        """The first kernel rule that matches, if any."""
        return next((rule for rule in self.kernels if rule.matches(function, full)), None)


@dataclass(frozen=True)
class Candidate:
    """A weight-streaming launch: its place in the step, names and grid.x."""

    position: int
    function: str
    full: str
    grid_x: int


@dataclass(frozen=True)
class Assigned:
    """What a launch streams: role, layer, quant and stored bytes."""

    role: str
    layer: int | None
    quant: str
    nbytes: int


@cache
def builtin_rules() -> tuple[Rules, ...]:
    """Every rule file shipped with the package, in the order they are tried."""
    folder = files("attrib").joinpath("rules")
    found = [parse(e.read_text(encoding="utf-8"), e.name) for e in folder.iterdir() if e.name.endswith(".toml")]
    return tuple(sorted(found, key=lambda rules: (rules.order, rules.name)))


def in_effect(given: Rules | None) -> tuple[Rules, ...]:
    """The rules that say what kernels are: a given file first, then those shipped."""
    return builtin_rules() if given is None else (given, *builtin_rules())


def match(books: Sequence[Rules], function: str, full: str) -> tuple[Rules, KernelRule] | None:
    """The rules and the rule that know a kernel; None where only words in its name can tell its category."""
    for rules in books:
        rule = rules.kernel(function, full)
        if rule is not None:
            return rules, rule
    return None


def category(books: Sequence[Rules], function: str, full: str) -> str:
    """Category of a kernel: from the rules, else from the words of `categories.toml`, else `other`."""
    found = match(books, function, full)
    return categories.category_of(function) if found is None else found[1].category


def load(path: Path) -> Rules:
    """Read a rule file; raises JoinError naming the file and the fault."""
    try:
        return parse(read_text(path), str(path))
    except OSError as error:
        raise JoinError(f"rule file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JoinError(f"rule file {path} is not UTF-8 text") from error


def parse(text: str, source: str) -> Rules:
    """Rules from TOML text; `source` names it in errors."""
    try:
        raw = tomllib.loads(text)
        if not ("kernel" in raw or "stream" in raw):
            raise ValueError("it has neither [[kernel]] nor [[stream]] rules")
        return Rules(
            name=str(raw["name"]),
            about=str(raw.get("about", "")),
            order=_order(raw.get("order", ORDER)),
            kernels=tuple(_kernel(kernel) for kernel in raw.get("kernel", ())),
            streams=tuple(_stream(stream) for stream in raw.get("stream", ())),
            layers=_layers(raw["layer"]) if "stream" in raw else (),
            tail=_roles(raw["tail"]["roles"]) if "tail" in raw else (),
            kv=tuple(re.compile(rule["function"]) for rule in raw.get("kv", ())),
        )
    except KeyError as error:
        raise JoinError(f"rule file {source} has no {error}; see the rules shipped with the package") from error
    except (ValueError, re.error, TypeError, AttributeError, RecursionError) as error:
        raise JoinError(f"rule file {source} is not valid: {error}") from error


def _order(raw: object) -> int:
    if not isinstance(raw, int):
        raise ValueError(f"order {raw!r} is not a whole number")
    return raw


def _kernel(raw: dict[str, Any]) -> KernelRule:
    known = [name for name in categories.order() if name != categories.IDLE]
    if raw["category"] not in known:
        raise ValueError(f"category {raw['category']!r} is not one of {', '.join(known)}")
    if not raw.keys() & {"function", "name"}:
        raise ValueError(f"a kernel rule of {raw['category']} has neither a function nor a name pattern")
    function, name = (re.compile(raw[key]) if key in raw else None for key in ("function", "name"))
    return KernelRule(raw["category"], function, name)


def _stream(raw: dict[str, Any]) -> Stream:
    quant, blocks = raw.get("quant"), raw.get("rows_per_block", [1])
    if not (quant is None or (isinstance(quant, int) and quant >= 0)):
        raise ValueError(f"quant {quant!r} is not the index of a template argument")
    if blocks == "any":
        return Stream(re.compile(raw["function"]), quant, ())
    if not (isinstance(blocks, list) and blocks and all(isinstance(rows, int) and rows > 0 for rows in blocks)):
        raise ValueError(f'rows_per_block {blocks!r} is neither a list of positive numbers nor "any"')
    return Stream(re.compile(raw["function"]), quant, tuple(blocks))


def _layers(raw: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    if not raw:
        raise ValueError("it has no order of a layer")
    return tuple(_roles(layer["roles"]) for layer in raw)


def _roles(raw: object) -> tuple[str, ...]:
    if not (isinstance(raw, list) and raw and all(isinstance(role, str) for role in raw)):
        raise ValueError(f"roles {raw!r} is not a list of names")
    return tuple(raw)


def quant_of(stream: Stream, full: str) -> str | None:
    """Quant type from the template argument, which is a ggml type number or a C++ float type; None if unknown."""
    if stream.quant is None:
        return None
    arguments = template_arguments(full)
    if stream.quant >= len(arguments):
        return None
    text = arguments[stream.quant]
    number = re.search(r"(\d+)\s*$", text)
    if "ggml_type" in text or text.isdigit():
        return QUANT_OF_GGML.get(int(number.group(1))) if number else None
    return _FLOAT_TYPES.get(text)


def plan(rules: Rules, candidates: Sequence[Candidate], model: Model) -> dict[int, Assigned]:
    """Role, layer and bytes of every candidate, keyed by its position in the step.

    Tries each layer order of the rules; raises JoinError naming the first launch that cannot be what the best
    order says it is, with the launch's rows and type and the matrix's.
    """
    if not rules.layers:
        raise JoinError(f"rules {rules.name!r} say what kernels are, not which matrix they stream (docs/rules.md)")
    failures: list[tuple[int, str]] = []
    for layer_roles in rules.layers:
        sequence: list[tuple[str, int | None]] = [
            (role, layer) for layer in range(model.shape.layers) for role in layer_roles
        ]
        sequence += [(role, None) for role in rules.tail]
        assigned, failure = _assign(rules, candidates, model, sequence)
        if failure is None:
            return assigned
        failures.append((len(assigned), failure))
    reached, message = max(failures, key=lambda f: f[0])
    raise JoinError(
        f"rules {rules.name!r} do not fit model {model.shape.name}: {message} "
        f"({reached} of {counted(len(candidates), 'launch')} fitted before it); check --model or give --rules or "
        "--bytes, and choose a range that holds decode steps"
    )


def _assign(
    rules: Rules, candidates: Sequence[Candidate], model: Model, sequence: list[tuple[str, int | None]]
) -> tuple[dict[int, Assigned], str | None]:
    assigned: dict[int, Assigned] = {}
    for candidate, (role, layer) in zip(candidates, sequence, strict=False):
        tensors = _tensors(model, role, layer)
        where = f"launch {candidate.position} ({candidate.function}, grid {candidate.grid_x})"
        if not tensors:
            return assigned, f"{where} would be {role} of layer {layer}, which the model does not have"
        stream = rules.stream(candidate.function)
        if stream is None:
            return assigned, f"{where} matches no stream rule"
        rows = tensors[0].rows
        blocks = {-(-rows // per_block) for per_block in stream.rows_per_block}
        quant = quant_of(stream, candidate.full)
        if (blocks and candidate.grid_x not in blocks) or (quant is not None and quant != tensors[0].quant):
            matrix = f"{counted(rows, 'row')} of {tensors[0].quant}"
            return assigned, f"{where}, type {quant or 'unknown'}, cannot be {tensors[0].name} with {matrix}"
        nbytes = sum(t.nbytes for t in tensors)
        assigned[candidate.position] = Assigned(FUSED.get(role, role), layer, tensors[0].quant, nbytes)
    if len(candidates) != len(sequence):
        return (
            assigned,
            f"the step has {counted(len(candidates), 'weight-streaming launch')} and the order needs {len(sequence)}",
        )
    return assigned, None


def _tensors(model: Model, role: str, layer: int | None) -> list[Tensor]:
    if role == "output":
        return [model.head()]
    found = [model.find(part, layer) for part in role.split("+")]
    return [t for t in found if t is not None] if all(found) else []
