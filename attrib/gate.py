"""The gate for a build pipeline: did a run get slower than a base, beyond a bar and beyond the spread over steps?

A site has regressed when its mean time per step grew by more than the bar and by more than the spread of the
difference. Untraced windows, where both sides have them, regress when their mean grew by more than the bar and every
window of the run is slower than every window of the base. A site that the run does not have, a capture with lost
launches, or too few steps or windows cannot be judged, which is not the same as passing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from attrib.capture import check_decode
from attrib.compare import ONE_CAPTURE, WHOLE, Comparison, compare
from attrib.compare_delta import Delta, mean
from attrib.compare_sides import Loaded, Side
from attrib.errors import AttribError, JoinError, NoDataError, RefusedError
from attrib.files import BENCH, read_text, write_whole
from attrib.jsonout import document
from attrib.words import counted

MOST_NS = 1e15
"""A step longer than this, eleven days, is no measurement."""
SCHEMA = "attrib.gate/1"
OK, REGRESSED, UNJUDGED = "ok", "regressed", "cannot judge"
EXIT = {OK: 0, REGRESSED: 1, UNJUDGED: 2}
STEP, UNTRACED = "step", "step untraced"
MIN_STEPS, MIN_WINDOWS = 5, 3
FEW = 3
"""More names than these are told by their number; the table has them."""
_LOST = ("step cut short", "step with other launches")


@dataclass(frozen=True)
class Case:
    """One thing judged; ms per step, NaN where it is not known."""

    name: str
    verdict: str
    base_ms: float
    run_ms: float
    spread_ms: float
    why: str = ""

    @property
    def change_pct(self) -> float:
        """Growth over the base in percent."""
        return 100 * (self.run_ms / self.base_ms - 1) if self.base_ms else math.nan


@dataclass(frozen=True)
class Gate:
    """The verdict: a regression outweighs what could not be judged, and that outweighs what passed."""

    run: str
    base: str
    bar: float
    cases: tuple[Case, ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`regressed`, `cannot judge` or `ok`."""
        found = {case.verdict for case in self.cases}
        return next((verdict for verdict in (REGRESSED, UNJUDGED) if verdict in found), OK)

    @property
    def exit_code(self) -> int:
        """1 for a regression, 2 where something could not be judged, 0 otherwise."""
        return EXIT[self.verdict]

    def describe(self) -> str:
        """One sentence with the verdict."""
        named = {verdict: [c.name for c in self.cases if c.verdict == verdict] for verdict in EXIT}
        bar = f"{100 * self.bar:g} %"
        if named[REGRESSED]:
            return f"REGRESSED beyond {bar} and beyond its spread: {', '.join(named[REGRESSED])}"
        if named[UNJUDGED]:
            few = named[UNJUDGED] if len(named[UNJUDGED]) <= FEW else []
            return f"CANNOT JUDGE {', '.join(few) or f'{len(named[UNJUDGED])} of {len(self.cases)}'}"
        return f"ok: none of {len(self.cases)} regressed beyond {bar} and beyond its spread"

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object; unknown values are null."""
        return document(
            {
                "schema": SCHEMA,
                "run": self.run,
                "against": self.base,
                "bar_pct": 100 * self.bar,
                "verdict": self.verdict,
                "exit_code": self.exit_code,
                "cases": [
                    {
                        "name": case.name,
                        "verdict": case.verdict,
                        "base_ms": case.base_ms,
                        "run_ms": case.run_ms,
                        "delta_ms": case.run_ms - case.base_ms,
                        "delta_pct": case.change_pct,
                        "spread_ms": case.spread_ms,
                        "why": case.why or None,
                    }
                    for case in self.cases
                ],
                "warnings": list(self.warnings),
            }
        )


def parse_bar(text: str) -> float:
    """`2%`, `2 %` or `0.02` as a fraction. Raises RefusedError for anything else or a negative bar."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    if found is None:
        raise RefusedError(f"--bar {text!r} is not a size such as 2% or 0.02")
    bar = float(found[1]) / (100 if found[2] else 1)
    if bar >= 1:
        raise RefusedError(f"--bar {text!r} is {100 * bar:g} %, which nothing could fail; write {text.strip()}% ?")
    return bar


def judge(
    base: Loaded,
    run: Loaded,
    bar: float,
    sites: Sequence[str] = (),
    windows: tuple[Sequence[float], Sequence[float]] = ((), ()),
    min_steps: int = MIN_STEPS,
) -> Gate:
    """Judge a run against a base.

    `sites` are the names to judge, `step` and `step untraced` among them; none means all of the base's. `windows` are
    the untraced ms per step of each window, of the base and of the run. Raises RefusedError when device, model or
    anchor differ or a named site is in neither.
    """
    found = compare(Side.of(base.attribution, base.label), Side.of(run.attribution, run.label))
    cannot = unfit(base, "base", min_steps) or unfit(run, "run", min_steps)
    cases = [*_untraced(bar, windows, UNTRACED in sites), *_traced(found, bar, cannot, sites)]
    if sites:
        known = {case.name for case in cases}
        if unknown := [site for site in sites if site not in known]:
            raise RefusedError(
                f"neither {base.label} nor {run.label} has {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        cases = [case for case in cases if case.name in sites]
    notes = [ONE_CAPTURE, *(note for note in found.warnings if note != ONE_CAPTURE)]
    return Gate(run.label, base.label, bar, tuple(cases), tuple(notes))


def unfit(side: Loaded, name: str, min_steps: int = MIN_STEPS) -> str:
    """Why nothing can be concluded from a capture; empty when it is fit."""
    steps = side.attribution.steps
    if steps.source == WHOLE:
        return f"{name} has no steps: {'; '.join(steps.warnings) or 'the trace was taken as a whole'}"
    for reason in _LOST:
        if number := steps.excluded.get(reason, 0):
            return f"incomplete capture of {name}: {number} × {reason}"
    if side.manifest is not None and steps.source == "graph replays":
        try:
            check_decode(side.attribution, side.manifest, steps.count)
        except JoinError as error:
            return f"incomplete capture of {name}: {error}"
    if steps.count < min_steps:
        return f"{name} has {counted(steps.count, 'step')} and {min_steps} are needed"
    return ""


def read_windows(run: Path) -> list[float]:
    """Mean untraced ms per step of each window of a run directory; empty where it holds none.

    Raises NoDataError for a `bench.json` that cannot be understood.
    """
    path = run / BENCH
    if not path.exists():
        return []
    try:
        windows = [window["step_ns"] for window in json.loads(read_text(path))["windows"]]
        if not all(type(ns) in (int, float) and 0 < ns < MOST_NS for times in windows for ns in times):
            raise ValueError("a step time is not a positive number of ns")
        return [sum(times) / len(times) / 1e6 for times in windows]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise NoDataError(f"{path} holds no windows that can be read ({error}); record the run again") from error


def write_junit(gate: Gate, path: Path) -> None:
    """Write the verdict as JUnit XML: a failure for a regression, an error for what could not be judged."""
    cases = [(case.name, case.verdict, _sentence(case, gate.bar)) for case in gate.cases]
    _write_suite(path, f"{gate.run} against {gate.base}", cases)


def write_junit_error(error: AttribError, path: Path) -> None:
    """Write a JUnit XML whose only case could not be judged at all."""
    _write_suite(path, "attrib gate", [("gate", UNJUDGED, str(error))])


def _write_suite(path: Path, name: str, cases: Sequence[tuple[str, str, str]]) -> None:
    tally = {verdict: str(sum(case[1] == verdict for case in cases)) for verdict in (REGRESSED, UNJUDGED)}
    counts = {"tests": str(len(cases)), "failures": tally[REGRESSED], "errors": tally[UNJUDGED]}
    suite = ET.Element("testsuite", {"name": name, **counts})
    for case, verdict, text in cases:
        element = ET.SubElement(suite, "testcase", {"classname": "attrib.gate", "name": case})
        if verdict != OK:
            tag = "failure" if verdict == REGRESSED else "error"
            ET.SubElement(element, tag, {"type": verdict, "message": text})
    tree = ET.ElementTree(suite)
    write_whole(path, lambda temporary: tree.write(temporary, encoding="utf-8", xml_declaration=True))


def _sentence(case: Case, bar: float) -> str:
    if case.verdict == UNJUDGED:
        return case.why
    return (
        f"{case.base_ms:.4f} → {case.run_ms:.4f} ms per step ({case.change_pct:+.2f} %), bar {100 * bar:g} %, "
        f"spread {case.spread_ms:.4f} ms"
    )


def _traced(found: Comparison, bar: float, cannot: str, sites: Sequence[str]) -> list[Case]:
    """The step and every site of the base; one only the run has costs time in the step and has no base of its own."""
    cases = [_case(STEP, mean(found.a.span), mean(found.b.span), found.gap, bar, cannot)]
    for row in found.rows:
        if row.a and row.b:
            cases.append(_case(row.site, row.a.ns, row.b.ns, row.delta, bar, cannot))
        elif row.a:
            cases.append(
                Case(row.site, UNJUDGED, float(row.a.ns) / 1e6, math.nan, math.nan, "the run has no such site")
            )
        elif row.b and row.site in sites:
            cases.append(Case(row.site, UNJUDGED, math.nan, float(row.b.ns) / 1e6, math.nan, "the base has none"))
    return cases


def _case(name: str, base: Fraction, run: Fraction, delta: Delta, bar: float, cannot: str) -> Case:
    verdict = UNJUDGED if cannot else REGRESSED if delta.clear and delta.ns > base * Fraction(bar) else OK
    return Case(name, verdict, float(base) / 1e6, float(run) / 1e6, delta.spread_ns / 1e6, cannot)


def _untraced(bar: float, windows: tuple[Sequence[float], Sequence[float]], wanted: bool) -> list[Case]:
    base, run = windows
    if not (base and run):
        why = "only a run directory has untraced windows, and both sides need them"
        return [Case(UNTRACED, UNJUDGED, math.nan, math.nan, math.nan, why)] if wanted else []
    before, after = sum(base) / len(base), sum(run) / len(run)
    spread = max(max(base) - min(base), max(run) - min(run))
    if min(len(base), len(run)) < MIN_WINDOWS:
        why = f"A has {counted(len(base), 'window')} and B {len(run)}; {MIN_WINDOWS} a side are needed"
        return [Case(UNTRACED, UNJUDGED, before, after, spread, why)]
    regressed = after - before > bar * before and min(run) > max(base)
    return [Case(UNTRACED, REGRESSED if regressed else OK, before, after, spread)]
