"""Timing windows of two sides in turn, each an engine process of its own, kept in a journal as they finish.

A pair has one or several windows a side, in turn: pairs of one alternate AB, BA, …, pairs of two ABBA, BAAB, …, so slow
drift falls on both sides alike. A window that another process, throttling or a
clock drop disturbed is written to the journal as disturbed and measured again. The journal is one JSON object a line,
flushed to disk before the next window starts; an experiment that was killed continues from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrib import capture
from attrib.builds import Side
from attrib.environment import Environment, from_json, watching
from attrib.errors import JoinError, RefusedError
from attrib.files import require_regular
from attrib.jsonout import document
from attrib.record import BENCH_SCHEMA, Target

SCHEMA = "attrib.windows/2"
BASE, NEW = "base", "new"
MAX_REPEATS = 3
USUAL_WINDOWS = 3
"""Windows whose clock must be known before a drop can be told."""


@dataclass(frozen=True)
class Window:
    """One finished window. `rate` in tokens/s and `step` in s are of its median step; `repeats` each repetition's rate.

    `turn` counts the side's windows in its pair from 0. `session` tells windows before and after a restart apart;
    `disturbed` says why it does not count, or is empty.
    """

    anchor: str
    pair: int
    turn: int
    side: str
    session: str
    started_utc: str
    seconds: float
    rate: float
    step: float
    repeats: tuple[float, ...]
    build_hash: str
    device: str
    environment: Environment
    disturbed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Fields by name, units in the names; one line of the journal."""
        return document(
            {
                "anchor": self.anchor,
                "pair": self.pair,
                "turn": self.turn,
                "side": self.side,
                "session": self.session,
                "started_utc": self.started_utc,
                "process_s": self.seconds,
                "tok_per_s": self.rate,
                "step_ms": self.step * 1e3,
                "repeats_tok_per_s": list(self.repeats),
                "build_hash": self.build_hash,
                "device": self.device,
                "environment": self.environment.to_json(),
                "disturbed": list(self.disturbed),
            }
        )


def _window(body: dict[str, Any]) -> Window:
    return Window(
        anchor=body["anchor"],
        pair=body["pair"],
        turn=body["turn"],
        side=body["side"],
        session=body["session"],
        started_utc=body["started_utc"],
        seconds=body["process_s"],
        rate=body["tok_per_s"],
        step=body["step_ms"] / 1e3,
        repeats=tuple(body["repeats_tok_per_s"]),
        build_hash=body["build_hash"],
        device=body["device"],
        environment=from_json(body["environment"]),
        disturbed=tuple(body["disturbed"]),
    )


@dataclass(frozen=True)
class Experiment:
    """What is measured, fixed before the first window: anchors (the target first, guards after) and both builds.

    `processes` is the windows a side in each pair, `repeats` the timed repetitions in a window.
    """

    anchors: tuple[str, ...]
    base: str
    base_hash: str
    new: str
    new_hash: str
    bar: float
    pairs: int
    processes: int
    repeats: int

    @property
    def name(self) -> str:
        """The journal's name: another bar, number of pairs or build is another experiment."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        builds = "aa" if self.base_hash == self.new_hash else f"{self.base_hash[:8]}-{self.new_hash[:8]}"
        return f"{self.anchors[0].replace(':', '-').replace('/', '_')}-{builds}-{digest}"


class Journal:
    """The windows of one experiment on disk, in the order they finished."""

    def __init__(self, path: Path, experiment: Experiment, windows: list[Window]) -> None:
        self.path = path
        self.experiment = experiment
        self.windows = windows

    def append(self, window: Window) -> None:
        """Add a finished window; it is on disk when this returns."""
        _append(self.path, {"kind": "window", **window.to_json()})
        self.windows.append(window)

    def finish(self, body: dict[str, Any]) -> None:
        """Close the experiment with what came of it; a later one of the same name starts a new journal."""
        _append(self.path, {"kind": "finished", **body})

    def counted(self, anchor: str, side: str) -> dict[tuple[int, int], Window]:
        """The undisturbed window of each (pair, turn)."""
        return {(w.pair, w.turn): w for w in self.windows if (w.anchor, w.side) == (anchor, side) and not w.disturbed}

    def pairs(self, anchor: str) -> tuple[list[list[Window]], list[list[Window]]]:
        """(base, new) windows of the complete pairs, in order: [pairs][processes] a side."""
        sides = self.counted(anchor, BASE), self.counted(anchor, NEW)
        turns = range(self.experiment.processes)
        pairs = range(self.experiment.pairs)
        complete = [p for p in pairs if all((p, turn) in side for side in sides for turn in turns)]
        base, new = ([[side[p, turn] for turn in turns] for p in complete] for side in sides)
        return base, new


def open_journal(folder: Path, experiment: Experiment) -> Journal:
    """The unfinished journal of this experiment, or a new one.

    A last line that was cut short by a kill is removed. Raises RefusedError for other damage or a folder that cannot
    be written.
    """
    number = 1
    while True:
        path = folder / (experiment.name + (f"-{number}" if number > 1 else "") + ".jsonl")
        if not path.exists():
            break
        windows, finished = _read(path)
        if not finished:
            return Journal(path, experiment, windows)
        number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{folder} cannot hold journals: {error.strerror}; choose another with --out") from error
    _append(path, {"kind": "experiment", "schema": SCHEMA, **asdict(experiment)})
    return Journal(path, experiment, [])


def _append(path: Path, body: dict[str, Any]) -> None:
    line = json.dumps(document(body), allow_nan=False) + "\n"
    try:
        with path.open("a", encoding="utf-8") as out:
            out.write(line)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> tuple[list[Window], bool]:
    """(windows, whether the experiment is finished) of a journal."""
    try:
        require_regular(path)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        lines = [json.loads(line) for line in data[:whole].decode("utf-8").splitlines()]
        if not lines or not isinstance(lines[0], dict) or lines[0].get("schema") != SCHEMA:
            raise ValueError(f"its first line is not an experiment of {SCHEMA}")
        windows = [_window(line) for line in lines if line["kind"] == "window"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"journal {path} cannot be continued ({error}); move it away and measure again") from error
    return windows, lines[-1]["kind"] == "finished"


def read_journal(path: Path) -> list[Window]:
    """Every window of a journal, disturbed ones too; raises RefusedError for a damaged one."""
    return _read(path)[0]


@contextmanager
def alone(journal: Journal) -> Iterator[None]:
    """Keep every other process from measuring the same experiment; the lock ends with the process, however it ends.

    Raises RefusedError when another one is measuring.
    """
    with journal.path.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RefusedError(f"another run is measuring {journal.path}; wait for it or end it") from error
        yield


def schedule(pairs: int, processes: int) -> Iterator[tuple[int, int, str]]:
    """(pair, turn, side) in the order they are measured: AB, BA, … for one process a side, ABBA, BAAB, … for two."""
    for pair in range(pairs):
        for turn in range(processes):
            for side in (BASE, NEW) if (pair + turn) % 2 == 0 else (NEW, BASE):
                yield pair, turn, side


def measure(
    journal: Journal,
    targets: dict[str, Target],
    sides: dict[str, Side],
    *,
    gpu: int = 0,
    limit_s: float,
    started: Callable[[str], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Measure what the journal lacks, anchor after anchor, each window appended when it finishes.

    `started` is called with the device's name once it is known, and may refuse. Raises RefusedError when one window
    stays disturbed MAX_REPEATS times more, JoinError when device or build are not those the experiment began with,
    CaptureError when the engine fails; the journal keeps what was measured.
    """
    session = datetime.now(UTC).isoformat(timespec="milliseconds")
    told = False
    if journal.windows:
        started(journal.windows[0].device)
        told = True
    for anchor in journal.experiment.anchors:
        for pair, turn, side in schedule(journal.experiment.pairs, journal.experiment.processes):
            if (pair, turn) in journal.counted(anchor, side):
                continue
            for attempt in range(MAX_REPEATS + 1):
                progress(_describe(journal, anchor, pair, turn, side, attempt))
                window = _run(journal, targets[anchor], sides[side], gpu, limit_s)
                window = replace(window, anchor=anchor, pair=pair, turn=turn, side=side, session=session)
                journal.append(window)
                if not told:
                    started(window.device)
                    told = True
                if not window.disturbed:
                    break
                progress(f"  disturbed: {'; '.join(window.disturbed)}")
            else:
                raise RefusedError(
                    f"pair {pair + 1} of {anchor} was disturbed {MAX_REPEATS + 1} times, at last by "
                    f"{'; '.join(window.disturbed)}; quiet the GPU and run again, finished windows are kept"
                )


def _describe(journal: Journal, anchor: str, pair: int, turn: int, side: str, attempt: int) -> str:
    experiment = journal.experiment
    number = f" {turn + 1}/{experiment.processes}" if experiment.processes > 1 else ""
    again = f", again ({attempt} of {MAX_REPEATS})" if attempt else ""
    return f"{anchor} pair {pair + 1}/{experiment.pairs} {side}{number}{again}"


def _run(journal: Journal, target: Target, side: Side, gpu: int, limit_s: float) -> Window:
    """One engine process, watched; pair, turn, side and session are the caller's to fill in."""
    experiment = journal.experiment
    options = ("--windows", str(experiment.repeats), "--gpu", str(gpu))
    when, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    with watching(gpu) as watch:
        finished = capture.run_program(side.command(target, *options), limit_s)
    seconds = time.monotonic() - begun
    body = capture.engine_json(finished, BENCH_SCHEMA)
    try:
        window = Window(
            anchor=target.label,
            pair=0,
            turn=0,
            side="",
            session="",
            started_utc=when,
            seconds=seconds,
            rate=float(body["tok_per_s"]),
            step=float(body["step_ns"]) * 1e-9,
            repeats=tuple(float(w["tok_per_s"]) for w in body["windows"]),
            build_hash=str(body["build_hash"]),
            device=str(body["device"]),
            environment=watch.result,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise capture.CaptureError(f"the engine's bench has a missing or wrong field: {error}") from error
    if window.build_hash != side.hash:
        raise JoinError(
            f"the engine ran build {window.build_hash} where the experiment began with {side.hash}; its sources "
            "changed in between, so start a new experiment"
        )
    if journal.windows and window.device != journal.windows[0].device:
        raise JoinError(f"this window ran on {window.device} and the earlier ones on {journal.windows[0].device}")
    return replace(window, disturbed=window.environment.disturbed(_usual_mhz(journal.windows)))


def _usual_mhz(windows: list[Window]) -> float:
    known = [w.environment.sm_mhz for w in windows if not w.disturbed and not math.isnan(w.environment.sm_mhz)]
    return statistics.median(known) if len(known) >= USUAL_WINDOWS else math.nan
