"""The lever ledger: what a change should gain and why, written before it is measured, then what it did gain.

A lever is one row of `levers` in runs.db. What was written may be replaced until the first measurement starts; from
then on the database itself refuses to change it. Every measurement is kept, also those that gave no verdict.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrib import ab, builds, stats, store, verify
from attrib.errors import RefusedError
from attrib.files import interruptible
from attrib.record import parse_target
from attrib.runs_schema import LEVER_WRITTEN
from attrib.words import WIDTH, counted, wrapped

LANDED, REVERTED, VETOED = "LANDED", "REVERTED", "VETOED"
SCHEMA = "attrib.lever/1"


@dataclass(frozen=True)
class Lever:
    """One change. The first anchor is the target that the bar holds for; the others and the guards must not lose.

    `mechanism` is the arithmetic that lets the gain exist. `measurements` holds a JSON object a run of `lever run`.
    """

    name: str
    question: str
    mechanism: str
    bar: float
    anchors: tuple[str, ...]
    base: str
    new: str
    guards: tuple[str, ...] = ()
    site: str = ""
    gates: tuple[str, ...] = ("dump", "greedy")
    written_utc: str = ""
    started_utc: str | None = None
    measurements: tuple[dict[str, Any], ...] = ()
    verdict: str | None = None
    why: str = ""
    decided_utc: str | None = None

    @property
    def digest(self) -> str:
        """Hash of what was written, to quote in a commit before measuring."""
        written = {key: value for key, value in asdict(self).items() if key in LEVER_WRITTEN}
        return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {"schema": SCHEMA, **asdict(self), "bar_pct": 100 * self.bar, "digest": self.digest}


def write(out: Path, lever: Lever, veto: str = "") -> Lever:
    """Write a lever down, now; with `veto`, decided by arithmetic and never measured.

    Raises RefusedError for an empty question or mechanism, an anchor or gate that does not exist, or a lever of this
    name that was measured or vetoed already.
    """
    for what, text in (("name", lever.name), ("question", lever.question), ("mechanism", lever.mechanism)):
        if not text.strip():
            raise RefusedError(f"the lever's {what} is empty; write it before measuring")
    if not lever.anchors:
        raise RefusedError("the lever names no anchor; the first --anchor is the one its bar holds for")
    for anchor in (*lever.anchors, *lever.guards):
        parse_target(anchor)
    if unknown := [gate for gate in lever.gates if gate not in verify.GATES]:
        raise RefusedError(f"gate {unknown[0]!r} does not exist; there are {', '.join(verify.GATES)}, or none")
    now = _now()
    written = replace(lever, written_utc=now)
    if veto:
        written = replace(written, verdict=VETOED, why=veto, decided_utc=now)
    with store.connect(out) as db:
        old = _find(db, lever.name)
        if old is not None and (old.started_utc or old.verdict):
            state = old.verdict or f"measured since {old.started_utc}"
            raise RefusedError(f"lever {lever.name!r} is {state} and cannot be rewritten; write a new one")
        row = _row(written)
        db.execute(f"INSERT OR REPLACE INTO levers ({', '.join(row)}) VALUES ({_marks(row)})", tuple(row.values()))
    return written


def load(out: Path, name: str) -> Lever:
    """A lever by name; raises RefusedError naming the known ones."""
    with store.connect(out) as db:
        found = _find(db, name)
        names = [row["name"] for row in db.execute("SELECT name FROM levers ORDER BY written_utc")]
    if found is None:
        known = f"there are {', '.join(names)}" if names else "none is written yet; see `attrib lever new`"
        raise RefusedError(f"lever {name!r} is not in the ledger; {known}")
    return found


def load_all(out: Path) -> list[Lever]:
    """Every lever, oldest first."""
    with store.connect(out) as db:
        return [_lever(row) for row in db.execute("SELECT * FROM levers ORDER BY written_utc, name")]


def run(
    out: Path,
    name: str,
    pairs: int = ab.DEFAULT_PAIRS,
    processes: int = ab.DEFAULT_PROCESSES,
    gpu: int = 0,
    limit_s: float = 900.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Lever:
    """Gates, then windows of every anchor and guard, then the verdict; an interrupted run continues.

    A measurement that cannot decide leaves the lever open. Raises RefusedError for a lever that is decided.
    """
    lever = load(out, name)
    if lever.verdict is not None:
        raise RefusedError(f"lever {name!r} is {lever.verdict} since {lever.decided_utc}; write a new one to try again")
    if lever.started_utc is None:
        lever = replace(lever, started_utc=_now())
        _update(out, name, {"started_utc": lever.started_utc})
    gates = _gates(lever, gpu, limit_s, progress)
    results = []
    if all(gate["passed"] for gate in gates):
        for place, anchor in enumerate(lever.anchors):
            first = place == 0
            plan = ab.Plan(
                anchor, lever.base, lever.new, lever.bar, lever.guards if first else (), lever.site or None if first
                else None, pairs, processes, gpu=gpu, limit_s=limit_s,
            )  # fmt: skip
            results.append(ab.run(plan, out, progress).to_json())
    verdict, why = decide(gates, results)
    kept = [{key: value for key, value in result.items() if key != "windows"} for result in results]
    measured = (*lever.measurements, {"measured_utc": _now(), "gates": gates, "comparisons": kept})
    lever = replace(lever, measurements=measured, verdict=verdict, why=why, decided_utc=_now() if verdict else None)
    row = _row(lever)
    _update(out, name, {key: row[key] for key in ("measurements", "verdict", "why", "decided_utc")})
    return lever


def decide(gates: list[dict[str, Any]], comparisons: list[dict[str, Any]]) -> tuple[str | None, str]:
    """(verdict, why) from gates and comparisons, the target's first; None when the windows cannot tell."""
    if failed := [gate["gate"] for gate in gates if not gate["passed"]]:
        return REVERTED, f"gate {', '.join(failed)} failed"
    target, *others = [leg for comparison in comparisons for leg in comparison["anchors"]]
    if lost := [leg["anchor"] for leg in (target, *others) if leg["verdict"] == stats.SLOWER]:
        return REVERTED, f"slower at {', '.join(lost)}"
    if target["verdict"] == stats.FASTER and target["bar_met"]:
        unsure = [leg["anchor"] for leg in others if leg["verdict"] in (None, stats.INCONCLUSIVE)]
        also = f"; {', '.join(unsure)} could not be judged against the bar" if unsure else ""
        return LANDED, f"{target['anchor']}: {target['why']}{also}"
    if target["verdict"] in (stats.FASTER, stats.NO_DIFFERENCE):
        return REVERTED, f"{target['anchor']}: {target['why']}"
    return None, f"{target['anchor']}: {target['why']}"


def _gates(lever: Lever, gpu: int, limit_s: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """What the gates say of the builds, for the target's model."""
    if not lever.gates:
        return []
    target = parse_target(lever.anchors[0])
    with interruptible(), builds.opened(lever.base) as base, builds.opened(lever.new) as new:
        return verify.verify(target, base, new, lever.gates, gpu, limit_s, progress)


def page(lever: Lever) -> str:
    """The lever on one page of plain text."""
    lines = [
        f"{lever.name} · {lever.verdict or 'open'}",
        "",
        _wrapped("question", lever.question),
        _wrapped("mechanism", lever.mechanism),
        f"bar        +{100 * lever.bar:g} % at {lever.anchors[0]}" + (f", site {lever.site}" if lever.site else ""),
        f"builds     {lever.base} → {lever.new}",
        f"anchors    {', '.join(lever.anchors)}",
        f"guards     {', '.join(lever.guards) or 'none'}",
        f"gates      {', '.join(lever.gates) or 'none'}",
        f"written    {lever.written_utc}, digest {lever.digest}",
        f"measured   {f'since {lever.started_utc}' if lever.started_utc else 'never'}",
    ]
    for number, measured in enumerate(lever.measurements, 1):
        lines += ["", f"measurement {number}, {measured['measured_utc']}"]
        for gate in measured["gates"]:
            lines.append(f"  gate {gate['gate']}: {'passed' if gate['passed'] else 'FAILED'}")
            lines += [_wrapped("", f"  {note}") for note in gate.get("notes", ())]  # older measurements have none
        for comparison in measured["comparisons"]:
            hashes = f"{comparison['base']['hash'][:8]} → {comparison['new']['hash'][:8]}"
            lines.append(f"  {comparison['device']}, builds {hashes}")
            lines += [wrapped(_leg_line(leg)) for leg in comparison["anchors"]]
    if lever.why:
        lines += ["", _wrapped("verdict", f"{lever.verdict or 'open'}: {lever.why}")]
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{name:<11}", subsequent_indent=" " * 11)


def _leg_line(leg: dict[str, Any]) -> str:
    sep = {1: ", SEP", -1: ", SEP (slower)", 0: ""}[leg["sep"]]
    processes = leg.get("processes", 1)  # older measurements had one
    each = f" of {processes} a side" if processes > 1 else ""
    return (
        f"  {'guard ' if leg['guard'] else ''}{leg['anchor']}: {leg['base_tok_per_s']:.2f} → "
        f"{leg['new_tok_per_s']:.2f} tok/s, {leg['change_pct']:+.2f} % [{leg['low_pct']:+.2f}, {leg['high_pct']:+.2f}]"
        f"{sep}, {counted(leg['pairs'], 'pair')}{each}: {leg['verdict'] or 'no verdict'}"
    )


def _find(db: sqlite3.Connection, name: str) -> Lever | None:
    row = db.execute("SELECT * FROM levers WHERE name = ?", (name,)).fetchone()
    return _lever(row) if row else None


def _lever(row: sqlite3.Row) -> Lever:
    fields = dict(row)
    fields.pop("digest")
    for key in ("anchors", "guards", "gates", "measurements"):
        fields[key] = tuple(json.loads(fields[key]))
    return Lever(**fields)


def _row(lever: Lever) -> dict[str, Any]:
    fields = asdict(lever) | {"digest": lever.digest}
    return {key: json.dumps(value) if isinstance(value, tuple) else value for key, value in fields.items()}


def _update(out: Path, name: str, fields: dict[str, Any]) -> None:
    with store.connect(out) as db:
        db.execute(
            f"UPDATE levers SET {', '.join(f'{key} = ?' for key in fields)} WHERE name = ?", (*fields.values(), name)
        )


def _marks(row: dict[str, Any]) -> str:
    return ", ".join("?" * len(row))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
