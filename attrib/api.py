"""The Python API for notebooks and other programs; the command line is a thin user of it.

Every function takes an open trace (or a path) and the same keyword arguments; results have `.to_pandas()`,
`.to_json()` and `.plot(path)`. All expected failures are AttribError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrib.anatomy import Anatomy
from attrib.anatomy import anatomy as take_anatomy
from attrib.attribution import Attribution, Options, attribute
from attrib.census import Census
from attrib.census import census as take_census
from attrib.compare import Comparison
from attrib.compare import compare as take_comparison
from attrib.compare_sides import Side
from attrib.files import MANIFEST, TRACE
from attrib.report.subject import Subject
from attrib.report.subject import load as load_subject
from attrib.stragglers import Stragglers
from attrib.stragglers import stragglers as rank
from attrib.trace import Trace, open_trace

if TYPE_CHECKING:
    from attrib.report.page import Report

TraceLike = Trace | str | Path


def open(path: str | Path, reader: str = "auto") -> Trace:
    """Open an nsys SQLite export read-only; `.sqlite.xz` is unpacked to a temporary file first.

    A run directory that `attrib record` wrote stands for the trace in it. `reader` names what reads the kernel table.
    Raises SchemaError.
    """
    inside = Path(path) / TRACE
    return open_trace(inside if inside.exists() else path, reader)


def attribution(
    trace: TraceLike, reader: str = "auto", progress: Callable[[float], None] | None = None, **options: Any
) -> Attribution:
    """Steps, ledger and bytes of a trace; keyword arguments are the fields of `attrib.attribution.Options`.

    A run directory stands for its trace, with its manifest unless other bytes are given. `progress` is told the part
    of a trace given by its path, up to 1, that has been read.
    """
    if isinstance(trace, Trace):
        return attribute(trace, Options(**options))
    path = Path(trace)
    manifest = path / MANIFEST
    if manifest.exists() and not any(options.get(key) for key in ("model", "table", "manifest")):
        options = {**options, "manifest": manifest}
    opened = open(path, reader)
    opened.progress = progress
    return attribute(opened, Options(**options))


def census(trace: TraceLike | Attribution, rate_class: str | None = None, by: str = "site", **options: Any) -> Census:
    """Effective GB/s of every site.

    `rate_class` is `LO:HI` in GB/s, table, measured or fit; `by` is site, kernel or layer. Options: `model`
    (built-in name or GGUF path), `rules`, `table` (CSV of bytes), `manifest`, `kv_length`, `nvtx`, `graph`,
    `device`, `steps`, `stages` (times of a persistent kernel's stages, where they are not beside the manifest).
    """
    return take_census(_attributed(trace, options), rate_class, by)


def stragglers(source: Census | TraceLike | Attribution, rate_class: str | None = None, **options: Any) -> Stragglers:
    """Sites under the class by recoverable ms/step, from a census or from a trace with census options."""
    taken = source if isinstance(source, Census) else census(source, rate_class, **options)
    return rank(taken)


def anatomy(trace: TraceLike | Attribution, **options: Any) -> Anatomy:
    """The step by category: weight streaming, attention, norm, … and idle. Options as for `census`."""
    return take_anatomy(_attributed(trace, options))


def compare(a: TraceLike | Attribution, b: TraceLike | Attribution, force: bool = False, **options: Any) -> Comparison:
    """Where a step of `b` takes longer or less than a step of `a`: parts that add up to the gap exactly.

    Both sides are traces, run directories or attributions (which let each have bytes of its own). Raises RefusedError
    when device, model or anchor differ, unless `force`.
    """
    first, second = _attributed(a, options), _attributed(b, options)
    sides = Side.of(first, first.trace.path.name), Side.of(second, second.trace.path.name)
    return take_comparison(*sides, force)


def report(
    trace: TraceLike | Attribution,
    against: TraceLike | Attribution | None = None,
    rate_class: str | None = None,
    force: bool = False,
    label: str = "",
    **options: Any,
) -> Report:
    """A page about a run, or with `against` about where a step of that takes longer or less; `.write(path)` writes it.

    `label` is the name the page gives the run; `force` and the rest are as for `compare` and `census`.
    """
    from attrib.report import page  # noqa: PLC0415 - templates wait until a page is wanted

    one = _subject(trace, label, options)
    if against is None:
        return page.run_report(one, rate_class)
    return page.pair_report(one, _subject(against, "", options), force, rate_class)


def _subject(trace: TraceLike | Attribution, label: str, options: dict[str, Any]) -> Subject:
    if isinstance(trace, (str, Path)):
        return load_subject(Path(trace), Options(**options), label=label)
    attribution = _attributed(trace, options)
    return Subject(attribution, label or attribution.trace.path.name)


def _attributed(trace: TraceLike | Attribution, options: dict[str, Any]) -> Attribution:
    return trace if isinstance(trace, Attribution) else attribution(trace, **options)
