"""`attrib ab`: is build B really faster than build A at an anchor, by untraced windows in turn, against a bar."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrib import builds, stats, store
from attrib.ab_site import SiteChange, site_change
from attrib.builds import Side
from attrib.errors import RefusedError
from attrib.files import interruptible
from attrib.jsonout import document
from attrib.record import Target, parse_target
from attrib.stats import Judgement
from attrib.store import Noise
from attrib.windows import BASE, NEW, Experiment, Journal, Window, alone, measure, open_journal
from attrib.words import counted

SCHEMA = "attrib.ab/1"
FOLDER = "ab"
DEFAULT_BAR = 0.004
MAX_PAIRS = 500
DEFAULT_PAIRS = 10
DEFAULT_PROCESSES = 3
"""`processes_needed` for the default bar and pairs at 0.51 %, the larger of two builds' noise on an H200."""


@dataclass(frozen=True)
class Plan:
    """What is asked, before anything is measured. `bar` is a fraction; `new` None runs `base` against itself.

    Each of `pairs` pairs has `processes` windows a side, of `repeats` timed repetitions each.
    """

    anchor: str
    base: str
    new: str | None
    bar: float = DEFAULT_BAR
    guards: tuple[str, ...] = ()
    site: str | None = None
    pairs: int = DEFAULT_PAIRS
    processes: int = DEFAULT_PROCESSES
    repeats: int = 3
    gpu: int = 0
    limit_s: float = 900.0


@dataclass(frozen=True)
class Leg:
    """One anchor's pairs and what they say; `noise` is the device's there, None when `--aa` never measured it."""

    anchor: str
    guard: bool
    judgement: Judgement
    noise: Noise | None

    @property
    def broken(self) -> bool:
        """Whether a guard became slower."""
        return self.guard and self.judgement.verdict == stats.SLOWER

    def to_json(self) -> dict[str, Any]:
        """Changes in percent of the base, positive when the new build is faster."""
        j = self.judgement
        floor = stats.noise_floor(self.noise.sd, j.pairs, j.processes) if self.noise else None
        return {
            "anchor": self.anchor,
            "guard": self.guard,
            "broken": self.broken,
            "pairs": j.pairs,
            "processes": j.processes,
            "base_tok_per_s": j.base_median,
            "new_tok_per_s": j.new_median,
            "change_pct": 100 * j.change,
            "low_pct": 100 * j.low,
            "high_pct": 100 * j.high,
            "sep": j.sep,
            "p_permutation": j.p_pairs,
            "p_mann_whitney": j.p_ranks,
            "real": j.real,
            "bar_pct": 100 * j.bar,
            "bar_met": j.bar_met,
            "noise_floor_pct": None if floor is None else 100 * floor,
            "verdict": j.verdict,
            "why": j.why,
        }


@dataclass(frozen=True)
class Comparison:
    """A finished experiment: the target's leg first, guards after."""

    plan: Plan
    base: Side
    new: Side
    journal: Journal
    legs: tuple[Leg, ...]
    site: SiteChange | None
    noise: Noise | None
    notes: tuple[str, ...]

    @property
    def target(self) -> Leg:
        """The anchor the change claims to improve."""
        return self.legs[0]

    @property
    def broken(self) -> tuple[str, ...]:
        """Guards that became slower."""
        return tuple(leg.anchor for leg in self.legs if leg.broken)

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object, every window in it."""
        noise = None
        if self.noise is not None:
            sd, plan = self.noise.sd, self.plan
            noise = {
                "sd_pct": 100 * sd,
                "floor_pct": 100 * stats.noise_floor(sd, self.noise.pairs, plan.processes),
                "pairs_needed": stats.pairs_needed(sd, plan.bar, plan.processes),
                "processes_needed": stats.processes_needed(sd, plan.bar, self.noise.pairs),
            }
        return document(
            {
                "schema": SCHEMA,
                "device": self.journal.windows[0].device,
                "base": {"build": self.base.given, "hash": self.base.hash},
                "new": {"build": self.new.given, "hash": self.new.hash},
                "aa": self.plan.new is None,
                "anchors": [leg.to_json() for leg in self.legs],
                "noise": noise,
                "site": self.site.to_json() if self.site else None,
                "notes": list(self.notes),
                "journal": str(self.journal.path),
                "windows": [window.to_json() for window in self.journal.windows],
            }
        )


def parse_bar(text: str) -> float:
    """`0.4%` as 0.004; raises RefusedError for anything that is not a percentage between 0 and 100."""
    match = re.fullmatch(r"\s*\+?(\d+(?:\.\d+)?)\s*%\s*", text)
    bar = float(match[1]) / 100 if match else 0.0
    if not 0 < bar < 1:
        raise RefusedError(f"bar {text!r} is not a gain in percent, for example 0.4%")
    return bar


def run(plan: Plan, out: Path, progress: Callable[[str], None] = lambda _: None) -> Comparison:
    """Measure, judge and store an experiment; `out` holds the journal and runs.db.

    An unfinished journal of the same experiment is continued. Raises RefusedError for equal builds, a bar under the
    noise floor, or a machine that does not become quiet; see `windows.measure` for the rest.
    """
    targets = _targets(plan)
    with interruptible(), ExitStack() as stack:
        base = stack.enter_context(builds.opened(plan.base))
        new = base if plan.new is None else stack.enter_context(builds.opened(plan.new))
        if plan.new is not None and base.hash == new.hash:
            python = " (a change of the engine's Python alone is not in the hash)" if base.root or new.root else ""
            raise RefusedError(
                f"{base.given} and {new.given} are the same build ({base.hash}){python}; --aa measures a build against "
                "itself"
            )
        anchors = tuple(targets)
        experiment = Experiment(
            anchors, base.given, base.hash, new.given, new.hash, plan.bar, plan.pairs, plan.processes, plan.repeats
        )
        journal = open_journal(out / FOLDER, experiment)
        stack.enter_context(alone(journal))
        if journal.windows:
            progress(f"continuing {journal.path} after {counted(len(journal.windows), 'window')}")
        measure(
            journal,
            targets,
            {BASE: base, NEW: new},
            gpu=plan.gpu,
            limit_s=plan.limit_s,
            started=lambda device: _refuse_hopeless(plan, out, device, anchors[0]),
            progress=progress,
        )
        site = None
        if plan.site is not None:
            progress(f"tracing both builds for {plan.site}")
            site = site_change(targets[anchors[0]], plan.site, base, new, plan.gpu, plan.limit_s)
    return _conclude(plan, base, new, journal, site, out)


def _targets(plan: Plan) -> dict[str, Target]:
    """Target and guards by label; raises RefusedError for what cannot be measured."""
    if not 1 <= plan.pairs <= MAX_PAIRS:
        raise RefusedError(f"--pairs {plan.pairs} is outside 1 to {MAX_PAIRS}")
    if not 1 <= plan.processes <= stats.MAX_PROCESSES:
        raise RefusedError(f"--processes {plan.processes} is outside 1 to {stats.MAX_PROCESSES} a side of a pair")
    if plan.new is None and plan.pairs < stats.MIN_PAIRS:
        told = counted(plan.pairs, "pair tells", "pairs tell")
        raise RefusedError(f"{told} no noise floor; --aa needs at least {stats.MIN_PAIRS}")
    found = [parse_target(text) for text in (plan.anchor, *plan.guards)]
    targets = {target.label: target for target in found}
    if len(targets) < len(found):
        raise RefusedError(f"an anchor is named twice among {', '.join(target.label for target in found)}")
    if plan.site is not None and not found[0].decodes:
        raise RefusedError(f"--site needs an anchor of decode steps, which {found[0].label} is not")
    return targets


def _refuse_hopeless(plan: Plan, out: Path, device: str, anchor: str) -> None:
    """Raise RefusedError when the stored noise says that these pairs cannot find the bar."""
    noise = None if plan.new is None else store.find_noise(out, device, anchor)
    if noise is None or plan.pairs < stats.MIN_PAIRS:
        return
    floor = stats.noise_floor(noise.sd, plan.pairs, plan.processes)
    if plan.bar < floor:
        needed = stats.pairs_needed(noise.sd, plan.bar, plan.processes)
        more = stats.processes_needed(noise.sd, plan.bar, plan.pairs)
        instead = f", or with as many pairs --processes {more} a side" if more else ""
        pairs, processes = counted(plan.pairs, "pair"), counted(plan.processes, "process")
        raise RefusedError(
            f"a bar of {100 * plan.bar:g} % is under the noise floor of {100 * floor:.2f} % that {pairs} of "
            f"{processes} a side have on {device} at {anchor} (measured {noise.measured_utc[:10]}); "
            f"--pairs {needed} is needed{instead}"
        )


def _conclude(plan: Plan, base: Side, new: Side, journal: Journal, site: SiteChange | None, out: Path) -> Comparison:
    when, device = datetime.now(UTC).isoformat(timespec="seconds"), journal.windows[0].device
    legs, noise = [], None
    for place, anchor in enumerate(journal.experiment.anchors):
        ours, theirs = (_rates(windows) for windows in journal.pairs(anchor))
        if plan.new is None:
            found = Noise(
                device, anchor, base.given, base.hash, stats.noise_sd(ours, theirs), len(ours), when, str(journal.path)
            )
            store.keep_noise(out, found)
            noise = noise or found
        judgement = stats.judge(ours, theirs, plan.bar)
        legs.append(Leg(anchor, place > 0, judgement, store.find_noise(out, device, anchor)))
    comparison = Comparison(plan, base, new, journal, tuple(legs), site, noise, _notes(journal, legs))
    store.keep_experiment(out, journal.path.stem, when, comparison.to_json())
    journal.finish({"finished_utc": when, "verdict": legs[0].judgement.verdict})
    return comparison


def _rates(pairs: list[list[Window]]) -> list[list[float]]:
    return [[window.rate for window in windows] for windows in pairs]


def _notes(journal: Journal, legs: list[Leg]) -> tuple[str, ...]:
    """What a reader must know beside the numbers."""
    notes = []
    disturbed = [window for window in journal.windows if window.disturbed]
    if disturbed:
        reasons = sorted({reason for window in disturbed for reason in window.disturbed})
        notes.append(f"disturbed and measured again, {counted(len(disturbed), 'window')}: {'; '.join(reasons)}")
    if unknown := sorted({window.environment.unknown for window in journal.windows} - {""}):
        notes.append(f"clocks, throttling and other users are unknown: {'; '.join(unknown)}")
    pairs = [[*a, *b] for leg in legs for a, b in zip(*journal.pairs(leg.anchor), strict=True)]
    split = sum(len({window.session for window in pair}) > 1 for pair in pairs)
    if split:
        notes.append(f"{split} of the pairs span a restart, so drift may lie between their windows")
    if missing := [leg.anchor for leg in legs if leg.noise is None]:
        notes.append(f"no noise floor is stored for {', '.join(missing)} on this device; measure it with --aa")
    return tuple(notes)
