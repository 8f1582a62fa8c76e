"""Bytes and site of every launch of a step: from a manifest, a model with rules, a table, or names alone.

Weight bytes and KV bytes are kept apart; a launch whose bytes are unknown has NaN, never 0.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attrib import rules as rulebook
from attrib.categories import category_of
from attrib.errors import JoinError
from attrib.files import require_regular
from attrib.manifest import Graph, Launch, Manifest, Stage
from attrib.models import Model
from attrib.steps import Steps, step_variants
from attrib.trace import Trace, VariantNames
from attrib.words import counted

F16_BYTES = 2
MOST_BYTES = 1e15  # more than any GPU holds: a unit mistaken
STREAMING = "weight streaming"
GATHERED = ("embed", "token_embd")
"""Roles that read single rows of a table: their bytes are real, a streaming rate of them is not."""


@dataclass(frozen=True)
class Site:
    """What a launch is for. `key` is role/quant where bytes are known, else the kernel's label."""

    key: str
    quant: str
    category: str
    role: str


@dataclass(frozen=True)
class Traffic:
    """Per position of a step, arrays of shape (launches,)."""

    source: str
    sites: tuple[Site, ...]
    site: NDArray[np.int64]
    """index into `sites`"""
    layer: NDArray[np.int64]
    """-1 outside layers"""
    weight_bytes: NDArray[np.float64]
    """NaN where unknown or where the launch streams no weights"""
    kv_bytes: NDArray[np.float64]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Slot:
    key: str
    quant: str
    category: str
    role: str
    layer: int
    weight: float
    kv: float


def from_names(trace: Trace, steps: Steps, rules: rulebook.Rules | None = None) -> Traffic:
    """No bytes: sites are kernel names. The anatomy still works; rates are NaN."""
    named = _Named(trace.names, rules)
    return _traffic("none", [named.slot(v) for v in _variants(trace, steps)])


def from_model(
    trace: Trace,
    steps: Steps,
    model: Model,
    rules: rulebook.Rules | None = None,
    kv_length: int | None = None,
) -> Traffic:
    """Bytes from a model's tensors, launches mapped by rules (the given ones, else those that match most launches).

    Raises JoinError when no rule matches any launch or when a launch cannot be the matrix its turn says.
    """
    names, variants = trace.names, trace.variants
    order = _variants(trace, steps)
    chosen = rules or _best_rules(names, order)
    candidates = [
        rulebook.Candidate(p, names.function[v], names.full[v], int(variants.grid[v, 0]))
        for p, v in enumerate(order)
        if chosen is not None and chosen.stream(names.function[v])
    ]
    if chosen is None or not candidates:
        known = ", ".join(r.name for r in rulebook.builtin_rules() if r.streams)
        raise JoinError(
            f"no launch of {trace.path.name} matches the rules ({chosen.name if chosen else known}), so --model cannot "
            "say which matrix a launch streams; write a rule file (--rules) or a table (--bytes)"
        )
    assigned = rulebook.plan(chosen, candidates, model)
    kv_layer = 2.0 * model.shape.kv_heads * model.shape.head_dim * F16_BYTES * (kv_length or np.nan)
    slots = []
    named = _Named(names, rules)
    for position, variant in enumerate(order):
        base = named.slot(variant)
        if (a := assigned.get(position)) is not None:
            layer = -1 if a.layer is None else a.layer
            slots.append(_Slot(f"{a.role}/{a.quant}", a.quant, STREAMING, a.role, layer, float(a.nbytes), np.nan))
        elif any(pattern.search(names.function[variant]) for pattern in chosen.kv):
            slots.append(_Slot(base.key, "", base.category, base.role, -1, np.nan, kv_layer))
        else:
            slots.append(base)
    unchecked = [c for c in candidates if (s := chosen.stream(c.function)) is not None and not s.rows_per_block]
    streaming = counted(len(candidates), "weight-streaming launch")
    notes = (
        f"rules {chosen.name} place {len(unchecked)} of {streaming} by order alone: "
        "neither name nor grid tells their rows",
    )
    source = f"model {model.shape.name}:{model.recipe}, rules {chosen.name}"
    return _traffic(source, slots, notes if unchecked else ())


def from_manifest(
    trace: Trace, steps: Steps, manifest: Manifest, graph: str = "decode", divided: int | None = None
) -> Traffic:
    """Bytes from the engine's manifest, joined by node order and checked against kernel name and grid.

    Node `divided` takes one position for each of its stages, any other node one. Raises JoinError naming the first
    node that differs.
    """
    nodes = _manifest_nodes(manifest.graph(graph), steps, trace)
    names, variants = trace.names, trace.variants
    slots = []
    for node, variant in zip(nodes, _variants(trace, steps), strict=True):
        found = (names.short[variant], tuple(int(v) for v in variants.grid[variant]))
        if found[0] != node.kernel or (variants.grid[variant, 0] >= 0 and found[1] != node.grid):
            raise JoinError(
                f"node {node.i} of graph {graph!r} is {node.kernel} with grid {node.grid} ({node.site}) in the "
                f"manifest and {found[0]} with grid {found[1]} in {trace.path.name}; they are not from the same run"
            )
        if node.i == divided:
            slots += [_described(stage, _stage_category(stage)) for stage in node.stages]
        elif node.stages:
            slots.append(_undivided(node))
        else:
            slots.append(_described(node, category_of(node.kernel)))
    units, covered = sum(node.units for node in nodes), sum(node.units_covered for node in nodes)
    lacking = (f"plan computes {covered:,} of {counted(units, 'unit')}: its rates count bytes that are not read",)
    return _traffic(f"manifest {manifest.build.name} {manifest.anchor}", slots, lacking if covered < units else ())


def _described(work: Launch | Stage, category: str) -> _Slot:
    role, _, quant = work.site.partition("/")
    streams = work.weight_bytes > 0 and bool(quant) and role not in GATHERED
    layer = -1 if work.layer is None else work.layer
    weight = float(work.weight_bytes) if streams else np.nan
    kv = float(work.kv_bytes) if work.kv_bytes else np.nan
    return _Slot(work.site, quant, STREAMING if streams else category, role, layer, weight, kv)


def _stage_category(stage: Stage) -> str:
    """By its role, as it has no kernel name of its own; a tensor's role may name the block it is in (`attn_norm`)."""
    role = stage.site.partition("/")[0]
    return category_of("norm" if role.endswith("norm") else role)


def _undivided(node: Launch) -> _Slot:
    """A persistent kernel as one launch: it streams what its stages stream, and does all else that they do."""
    whole = _described(node, category_of(node.kernel))
    weights = [_described(stage, "").weight for stage in node.stages]
    return replace(whole, category=category_of(node.kernel), weight=float(np.nansum(weights)) or np.nan)


def _manifest_nodes(graph: Graph, steps: Steps, trace: Trace) -> tuple[Launch, ...]:
    if len(graph.nodes) != steps.launches:
        raise JoinError(
            f"the manifest's graph {graph.name!r} has {counted(len(graph.nodes), 'node')} and a step of "
            f"{trace.path.name} has {counted(steps.launches, 'launch')} ({steps.source}); they are not from the same "
            "run, or the capture is incomplete"
        )
    return graph.nodes


def from_table(trace: Trace, steps: Steps, table: Path, rules: rulebook.Rules | None = None) -> Traffic:
    """Bytes from a CSV with columns kernel (regular expression), bytes, and optionally grid, site and quant.

    `grid` is `X`, `XxY` or `XxYxZ`, empty for any. The first matching row counts; rows that match nothing are a
    warning. Raises JoinError naming the file and line for a row that cannot be understood.
    """
    entries = _read_table(table)
    names, variants = trace.names, trace.variants
    named = _Named(names, rules)
    used: set[_Entry] = set()
    slots = []
    for variant in _variants(trace, steps):
        base = named.slot(variant)
        grid = tuple(int(v) for v in variants.grid[variant])
        for entry in entries:
            if entry.grid in (None, grid) and entry.kernel.search(names.full[variant]):
                used.add(entry)
                key = entry.site or base.key
                slots.append(_Slot(key, entry.quant, STREAMING, key.partition("/")[0], -1, entry.nbytes, np.nan))
                break
        else:
            slots.append(base)
    unused = [f"line {entry.line} ({entry.kernel.pattern})" for entry in entries if entry not in used]
    notes = (f"{table.name}: no launch matches {', '.join(unused)}",) if unused else ()
    return _traffic(f"table {table.name}", slots, notes)


@dataclass(frozen=True)
class _Entry:
    line: int
    kernel: re.Pattern[str]
    grid: tuple[int, ...] | None
    nbytes: float
    site: str
    quant: str


def _read_table(table: Path) -> list[_Entry]:
    try:
        require_regular(table)
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            header = list(reader.fieldnames or ())
    except OSError as error:
        raise JoinError(f"byte table {table} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise JoinError(f"byte table {table} is not CSV text: {error}") from error
    if len(set(header)) < len(header):
        raise JoinError(f"byte table {table} names a column twice in its first line: {', '.join(header)}")
    entries: list[_Entry] = []
    for line, row in rows:
        try:
            if None in row:
                raise ValueError("more fields than columns; write numbers without thousands separators")
            grid = _grid(row.get("grid") or "")
            nbytes = float(row["bytes"] or "")
            if not 0 < nbytes < MOST_BYTES:
                raise ValueError(f"bytes {row['bytes']!r} is not a positive number")
            pattern = re.compile(row["kernel"] or "")
            if not pattern.pattern:
                raise ValueError("kernel is empty")
            quant = (row.get("quant") or "").strip()
            site = (row.get("site") or "").strip()
        except KeyError as error:
            raise JoinError(f"byte table {table} has no column {error}; it needs kernel and bytes") from error
        except (ValueError, re.error) as error:
            raise JoinError(f"byte table {table}, line {line}: {error}") from error
        entries.append(_Entry(line, pattern, grid, nbytes, f"{site}/{quant}" if site and quant else site, quant))
    if not entries:
        raise JoinError(f"byte table {table} has no rows; it needs the columns kernel, bytes and optionally grid, site")
    return entries


def _grid(text: str) -> tuple[int, ...] | None:
    if not text.strip():
        return None
    parts = [int(part) for part in re.split(r"[x×,]", text.strip())]
    if len(parts) > 3 or min(parts) < 1:
        raise ValueError(f"grid {text!r} is not X, XxY or XxYxZ")
    return (*parts, 1, 1)[:3]


def _variants(trace: Trace, steps: Steps) -> list[int]:
    return [int(v) for v in step_variants(trace, steps)]


def _best_rules(names: VariantNames, order: list[int]) -> rulebook.Rules | None:
    def matched(rules: rulebook.Rules) -> int:
        return sum(rules.stream(names.function[v]) is not None for v in order)

    best = max(rulebook.builtin_rules(), key=matched, default=None)
    return best if best is not None and matched(best) else None


class _Named:
    """Slots of launches whose bytes are unknown: each kernel variant is named and given its category once."""

    def __init__(self, names: VariantNames, rules: rulebook.Rules | None) -> None:
        self._names = names
        self._books = rulebook.in_effect(rules)
        self._slots: dict[int, _Slot] = {}

    def slot(self, variant: int) -> _Slot:
        """The slot of a variant: its label as key, its short name as role."""
        if variant not in self._slots:
            names = self._names
            category = rulebook.category(self._books, names.function[variant], names.full[variant])
            self._slots[variant] = _Slot(names.label[variant], "", category, names.short[variant], -1, np.nan, np.nan)
        return self._slots[variant]


def _traffic(source: str, slots: list[_Slot], warnings: tuple[str, ...] = ()) -> Traffic:
    sites: dict[Site, int] = {}
    index = [sites.setdefault(Site(s.key, s.quant, s.category, s.role), len(sites)) for s in slots]
    return Traffic(
        source=source,
        sites=tuple(sites),
        site=np.array(index, np.int64),
        layer=np.array([s.layer for s in slots], np.int64),
        weight_bytes=np.array([s.weight for s in slots], np.float64),
        kv_bytes=np.array([s.kv for s in slots], np.float64),
        warnings=warnings,
    )
