"""Which kernel a matrix gets: a table whose every rule has a lower and an upper bound, and the named builds.

A rule without an upper bound once sent a matrix to a kernel that computed 512 of its 592 units. So a missing
bound is refused when the table is read, and a matrix that no rule or two rules fit when a plan is made.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrib.manifest import BuildInfo
from engine import kernels_matvec as matvec
from engine.errors import PlanError
from engine.kernels import KernelSpec
from engine.kernels_catalog import catalog

Span = tuple[int, int]
# table name -> (constructor, does it read q8 activations)
MATVECS: dict[str, tuple[Callable[..., KernelSpec], bool]] = {
    "mmvq_v2": (matvec.mmvq, True),
    "mmvq_v2_pf": (lambda quant, **params: matvec.mmvq(quant, prefetch=True, **params), True),
    "mmvq_v2_reread": (matvec.mmvq_reread, True),
    "matvec_padded_f32": (matvec.matvec_padded_f32, False),
    "matvec_float": (matvec.matvec_float, False),
}
MATVEC_NAMES = ("mmvq_", "matvec_")
SUFFIX = ".toml"
STEP_SOURCES = ("fast_step.cu", "tile_pack.cu", "tile_dequantize.cu")
_STEP_FIELDS = {"persistent", "params"}
_FIELDS = {"kernel", "quants", "weights", "cols", "params"}


@dataclass(frozen=True)
class Rule:
    """Matrices of these quants with lo <= rows × cols <= hi and lo <= cols <= hi take this kernel."""

    kernel: str
    quants: tuple[str, ...]
    weights: Span
    cols: Span
    params: dict[str, int] = field(default_factory=dict)

    def fits(self, quant: str, rows: int, cols: int) -> bool:
        """Whether this rule takes the matrix."""
        inside = self.weights[0] <= rows * cols <= self.weights[1] and self.cols[0] <= cols <= self.cols[1]
        return quant in self.quants and inside

    def spec(self, quant: str) -> KernelSpec:
        """The kernel of this rule for a quant type."""
        return MATVECS[self.kernel][0](quant, **self.params)

    @property
    def quantized_input(self) -> bool:
        """Whether the kernel reads q8 activations, not f32."""
        return MATVECS[self.kernel][1]


@dataclass(frozen=True)
class Build:
    """A named engine variant: compile flags and the dispatch table, or how the fused step is made.

    step: macros of fast_step.cu, None for a build of one kernel an operation. persistent: the whole step in one launch,
    not one launch a phase. `unproven` lets plans leave units out; no table can say so, only `unproven` below sets it.
    """

    name: str
    flags: tuple[str, ...]
    rules: tuple[Rule, ...]
    unproven: bool = False
    step: dict[str, int] | None = None
    persistent: bool = False

    def select(self, quant: str, rows: int, cols: int) -> Rule:
        """The one rule for a matrix; raises PlanError with the shape when none or several fit."""
        found = [rule for rule in self.rules if rule.fits(quant, rows, cols)]
        if len(found) == 1:
            return found[0]
        what = "no rule" if not found else "more than one rule (" + ", ".join(r.kernel for r in found) + ")"
        raise PlanError(f"build {self.name} has {what} for a {quant} matrix of {rows} × {cols}")

    def sources(self) -> tuple[str, ...]:
        """Kernel source files of this build, whatever the model: its table's, and those every build shares."""
        table = {rule.spec(quant).source for rule in self.rules for quant in rule.quants}
        shared = {spec.source for spec in catalog() if not spec.name.startswith(MATVEC_NAMES)} - set(STEP_SOURCES)
        return tuple(sorted(table | shared | (set() if self.step is None else set(STEP_SOURCES))))

    def info(self, sources: str) -> BuildInfo:
        """The manifest's description; `sources` is the content hash of the kernel sources."""
        table = [[r.kernel, r.quants, r.weights, r.cols, r.params] for r in self.rules]
        fused = [] if self.step is None else [self.step, self.persistent]
        text = json.dumps([self.flags, table, *fused, sources], sort_keys=True)
        return BuildInfo(self.name, hashlib.sha256(text.encode()).hexdigest()[:16], self.flags)


def names() -> tuple[str, ...]:
    """The builds that can be chosen by name."""
    folder = files("engine") / "builds"
    return tuple(sorted(p.name.removesuffix(SUFFIX) for p in folder.iterdir() if p.name.endswith(SUFFIX)))


def load(name: str) -> Build:
    """A build by name; raises PlanError naming the known ones."""
    if name.endswith(SUFFIX):
        raise PlanError(f"{name} is a file, not a named build; only `engine bench --unproven` runs one")
    if name not in names():
        raise PlanError(f"build {name!r} does not exist; there are {', '.join(names())}")
    return parse(name, (files("engine") / "builds" / f"{name}{SUFFIX}").read_text(encoding="utf-8"))


def unproven(path: Path) -> Build:
    """The build of a file outside engine/builds, its plans without the proof that every unit is computed.

    For showing what the proof keeps out: its outputs may be wrong. Raises PlanError for a file that cannot be read
    or a table that `parse` refuses.
    """
    if path.suffix != SUFFIX:
        raise PlanError(f"--unproven takes the path of a {SUFFIX} file, not {str(path)!r}; named builds are proven")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"build file {path} cannot be read: {error}") from error
    return replace(parse(f"{path.stem} (unproven)", text), unproven=True)


def parse(name: str, text: str) -> Build:
    """A build from TOML: `flags`, and a `[[rule]]` a kernel with `quants`, `weights`, `cols` and `params`, or `[step]`.

    Raises PlanError naming the rule when a bound is missing, empty or not a whole number.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"build {name} is not TOML: {error}") from error
    rules = tuple(_rule(f"rule {i} of build {name}", raw) for i, raw in enumerate(document.get("rule", ())))
    flags = tuple(str(f) for f in document.get("flags", ()))
    if "step" not in document:
        return Build(name, flags, rules)
    step = document["step"]
    if not isinstance(step, dict) or set(step) - _STEP_FIELDS or not isinstance(step.get("persistent"), bool) or rules:
        raise PlanError(f"build {name}: [step] takes persistent = true or false and params, and goes without rules")
    macros = {str(k): int(v) for k, v in step.get("params", {}).items()}
    return Build(name, flags, (), step=macros, persistent=step["persistent"])


def _rule(where: str, raw: dict[str, Any]) -> Rule:
    if unknown := set(raw) - _FIELDS:
        raise PlanError(f"{where} has unknown fields {', '.join(sorted(unknown))}")
    kernel = raw.get("kernel")
    if kernel not in MATVECS:
        raise PlanError(f"{where} names kernel {kernel!r}; there are {', '.join(MATVECS)}")
    quants = tuple(str(q) for q in raw.get("quants", ()))
    if not quants:
        raise PlanError(f"{where} ({kernel}) names no quant types")
    params = {str(k): int(v) for k, v in raw.get("params", {}).items()}
    return Rule(kernel, quants, _span(where, kernel, raw, "weights"), _span(where, kernel, raw, "cols"), params)


def _span(where: str, kernel: str, raw: dict[str, Any], name: str) -> Span:
    bounds = raw.get(name)
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(type(b) is int for b in bounds):
        raise PlanError(f"{where} ({kernel}) needs {name} = [lowest, highest], two whole numbers, not {bounds!r}")
    low, high = bounds
    if low > high:
        raise PlanError(f"{where} ({kernel}) has {name} = [{low}, {high}], which no matrix can fit")
    return low, high
