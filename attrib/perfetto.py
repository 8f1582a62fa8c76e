"""A trace's decode steps as a Perfetto trace: steps, layers, launches by site, idle, and counters of GB/s.

Times are those of the export, in ns, so that a moment is the same in both. Launches that overlap lie on lanes of
their own; a counter holds its value until its next sample and has none where the rate is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.attribution import Attribution
from attrib.device import GIGA
from attrib.errors import RefusedError
from attrib.files import write_whole
from attrib.jsonout import document
from attrib.ledger import NS
from attrib.perfetto_layout import gaps, lanes, layer_bounds
from attrib.perfetto_write import PacketWriter, Value
from attrib.trace import PID_MASK, PID_SHIFT
from attrib.words import counted

SCHEMA = "attrib.perfetto/1"
MOST_LAUNCHES = 1_000_000
"""Launches written unless asked otherwise: some 100 MB, which the viewer opens in seconds."""
STEPS, LAYERS, LAUNCHES, IDLE, COPIES, OUTSIDE, COUNTERS, SITES = range(0, 8000, 1000)
"""Ranks of the tracks from the top."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Written:
    """What a Perfetto file holds."""

    path: Path
    steps: int
    steps_found: int
    launches: int
    lanes: int
    counters: int
    tracks: int
    packets: int
    size: int
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return document(
            {
                "schema": SCHEMA,
                "out": str(self.path),
                "steps": self.steps,
                "steps_found": self.steps_found,
                "launches": self.launches,
                "lanes": self.lanes,
                "counters": self.counters,
                "tracks": self.tracks,
                "packets": self.packets,
                "file_bytes": self.size,
                "warnings": list(self.warnings),
            }
        )


def write_perfetto(
    attribution: Attribution, path: Path, max_steps: int | None = None, progress: Progress | None = None
) -> Written:
    """Write the steps of a trace to `path`, which ui.perfetto.dev opens.

    `max_steps` keeps the first so many; None keeps what fits MOST_LAUNCHES and says when that is not all.
    `progress` is told steps done and steps to do. Raises RefusedError where the file cannot be written.
    """
    if max_steps is not None and max_steps < 1:
        raise RefusedError(f"--max-steps {max_steps} leaves nothing to write; give at least 1")
    found = attribution.steps.count
    wanted = max(MOST_LAUNCHES // attribution.steps.launches, 1) if max_steps is None else max_steps
    steps = min(found, wanted)
    drawn: list[_Drawing] = []

    def write(temporary: Path) -> None:
        with temporary.open("wb") as out:
            drawing = _Drawing(attribution, PacketWriter(out), steps)
            drawing.draw(progress)
            drawing.out.close()
        drawn.append(drawing)

    write_whole(path, write)
    notes = list(attribution.warnings)
    if steps < found:
        notes.append(f"the file holds the first {steps} of {counted(found, 'step')}; choose with --max-steps")
    out = drawn[0].out
    return Written(
        path=path,
        steps=steps,
        steps_found=found,
        launches=steps * attribution.steps.launches,
        lanes=drawn[0].lanes,
        counters=drawn[0].counters,
        tracks=out.tracks,
        packets=out.packets,
        size=path.stat().st_size,
        warnings=tuple(notes),
    )


class _Drawing:
    """The first `steps` steps of an attribution, drawn track by track."""

    def __init__(self, attribution: Attribution, out: PacketWriter, steps: int) -> None:
        self._a = attribution
        self.out = out
        self._rows = attribution.steps.rows[:steps]
        kernels = attribution.trace.kernels
        self._start, self._end = kernels.start[self._rows], kernels.end[self._rows]
        self._begin = self._start.min(axis=1)
        self._finish = self._end.max(axis=1)
        self.lanes = self.counters = 0
        facts = ((attribution.model, ""), (attribution.anchor, ""), (attribution.build, "build "))
        described = ", ".join(prefix + fact for fact, prefix in facts if fact)
        process = attribution.steps.process
        owner = f" of process {process >> PID_SHIFT & PID_MASK}" if process >= 0 else ""
        device = f"{attribution.device_name}, device {attribution.steps.device}{owner}"
        self._root = out.group(f"{device}: {described}" if described else device, f"steps: {attribution.steps.source}")

    def draw(self, progress: Progress | None) -> None:
        """Write every track."""
        self._draw_steps()
        self._draw_layers()
        self._draw_idle()
        self._draw_copies()
        self._draw_outside()
        self._draw_counters()
        self._draw_launches(progress)

    def _draw_steps(self) -> None:
        ledger, traffic = self._a.ledger, self._a.traffic
        track = self.out.track("steps", self._root, STEPS, "one decode step, first start to last end")
        moved = float(np.nansum(traffic.weight_bytes) + np.nansum(traffic.kv_bytes))
        known = bool(np.isfinite(traffic.weight_bytes).any())
        for step, (begin, end) in enumerate(zip(self._begin.tolist(), self._finish.tolist(), strict=True)):
            values: dict[str, Value] = {
                "step": step,
                "span_us": (end - begin) / 1e3,
                "idle_us": int(ledger.idle[step]) / 1e3,
                "exclusive_us": int(ledger.exclusive[step].sum()) / 1e3,
                "launches": self._a.steps.launches,
            }
            if known and end > begin:
                values |= {"bytes": int(moved), "gbps": moved / ((end - begin) * NS) / GIGA}
            self.out.slice(track, begin, end, f"step {step}", values)

    def _draw_layers(self) -> None:
        """A layer lasts from its first weight launch to the next layer's: the time its rate is over."""
        found = layer_bounds(self._a.traffic.layer, self._a.traffic.weight_bytes, self._start, self._end)
        if found is None:
            return
        track = self.out.track("layers", self._root, LAYERS, "from a layer's first weight launch to the next one's")
        counter = self._counter("GB/s of the layer", 1, "GB/s", "weight bytes of a layer over its slice above")
        for begins, ends in zip(found.begin.tolist(), found.end.tolist(), strict=True):
            for layer, nbytes, begin, end in zip(found.layer, found.nbytes, begins, ends, strict=True):
                rate = nbytes / ((end - begin) * NS) / GIGA if end > begin else np.nan
                values: dict[str, Value] = {"layer": layer, "weight_bytes": int(nbytes)}
                if np.isfinite(rate):
                    values["gbps"] = rate
                    self.out.sample(counter, begin, rate)
                self.out.slice(track, begin, max(end, begin), f"blk.{layer}", values)

    def _draw_idle(self) -> None:
        track = self.out.track("idle", self._root, IDLE, "time inside a step that no launch covers")
        for step in range(len(self._rows)):
            for begin, end in gaps(self._start[step], self._end[step]):
                self.out.slice(track, begin, end, "idle", {"step": step, "us": (end - begin) / 1e3})

    def _draw_copies(self) -> None:
        copies = self._a.trace.copies
        steps = self._a.steps
        mine = (copies.device == steps.device) & ((copies.process == steps.process) | (copies.process < 0))
        chosen = np.flatnonzero(mine & (copies.end >= self._begin.min()) & (copies.start <= self._finish.max()))
        names = ["fill" if copies.kind[i] < 0 else "copy" for i in chosen]
        values: list[dict[str, Value]] = [{"bytes": int(copies.nbytes[i])} for i in chosen]
        self._draw_lanes("copies", COPIES, copies.start[chosen], copies.end[chosen], names, values)

    def _draw_outside(self) -> None:
        """Launches of the same device that belong to no step kept, between the first and the last step drawn."""
        kernels, steps = self._a.trace.kernels, self._a.steps
        lo, hi = np.searchsorted(kernels.start, (self._begin.min(), self._finish.max()))
        rows = np.arange(lo, hi)
        inside = np.zeros(hi - lo, bool)
        own = steps.rows.ravel()
        inside[own[(own >= lo) & (own < hi)] - lo] = True
        mine = (kernels.device[lo:hi] == steps.device) & (kernels.processes[kernels.process[lo:hi]] == steps.process)
        rows = rows[mine & ~inside & (kernels.end[lo:hi] >= kernels.start[lo:hi])]
        names = [self._a.trace.names.label[variant] for variant in kernels.variant[rows]]
        empty: list[dict[str, Value]] = [{}] * len(rows)
        self._draw_lanes("outside steps", OUTSIDE, kernels.start[rows], kernels.end[rows], names, empty)

    def _draw_counters(self) -> None:
        ledger, traffic = self._a.ledger, self._a.traffic
        last = int(self._finish[-1])
        span = (self._finish - self._begin) * NS
        idle = self._counter("idle per step", 2, "µs", "time inside the step that no launch covers")
        self._samples(idle, ledger.idle[: len(self._rows)] / np.float64(1e3), last)
        if not np.isfinite(traffic.weight_bytes).any():
            return
        moved = float(np.nansum(traffic.weight_bytes) + np.nansum(traffic.kv_bytes))
        track = self._counter("GB/s of the step", 0, "GB/s", "weight and KV bytes of a step over its span")
        self._samples(track, np.divide(moved / GIGA, span, out=np.full(len(span), np.nan), where=span > 0), last)
        group = self.out.track("effective GB/s by site", self._root, SITES, "bytes over exclusive time, per step")
        exclusive = ledger.exclusive[: len(self._rows)]
        for number, site in enumerate(traffic.sites):
            mine = np.flatnonzero(traffic.site == number)
            nbytes = float(traffic.weight_bytes[mine].sum()) if len(mine) else np.nan
            seconds = exclusive[:, mine].sum(axis=1) * NS
            if np.isfinite(nbytes) and (seconds > 0).any():
                rates = np.divide(nbytes / GIGA, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
                self.counters += 1
                self._samples(self.out.counter(site.key, group, number, "GB/s"), rates, last)

    def _draw_launches(self, progress: Progress | None) -> None:
        ledger, traffic, kernels = self._a.ledger, self._a.traffic, self._a.trace.kernels
        streams = kernels.stream[self._rows]
        known = np.unique(streams)
        lane = np.zeros(self._rows.shape, np.int64)
        tracks: dict[tuple[int, int], int] = {}
        for place, stream in enumerate(known.tolist()):
            mine = streams == stream
            lane[mine] = lanes(self._start[mine], self._end[mine])
            name = f"launches of stream {stream}" if stream >= 0 else "launches"
            for number in range(int(lane[mine].max()) + 1):
                rank = LAUNCHES + place
                tracks[stream, number] = self.out.track(name, self._root, rank, "overlapping launches lie on lanes")
        self.lanes = len(tracks)
        fixed = [self._about(position) for position in range(self._a.steps.launches)]
        for step in range(len(self._rows)):
            start, end = self._start[step].tolist(), self._end[step].tolist()
            duration, exclusive = ledger.duration[step].tolist(), ledger.exclusive[step].tolist()
            for p in np.lexsort((self._end[step], self._start[step])).tolist():
                values = dict(fixed[p][1])
                values |= {"step": step, "exclusive_us": exclusive[p] / 1e3}
                nbytes = float(traffic.weight_bytes[p])
                if nbytes > 0 and exclusive[p] > 0:
                    values["gbps"] = nbytes / exclusive[p]
                if nbytes > 0 and duration[p] > 0:
                    values["gbps_duration"] = nbytes / duration[p]
                self.out.slice(tracks[int(streams[step, p]), int(lane[step, p])], start[p], end[p], fixed[p][0], values)
            if progress is not None:
                progress(step + 1, len(self._rows))

    def _about(self, position: int) -> tuple[str, dict[str, Value]]:
        """Name of a position's slices and what is the same in every step."""
        traffic, trace = self._a.traffic, self._a.trace
        variant = int(trace.kernels.variant[self._rows[0, position]])
        site, layer = traffic.sites[traffic.site[position]], int(traffic.layer[position])
        about: dict[str, Value] = {
            "site": site.key,
            "category": site.category,
            "kernel": trace.names.label[variant],
            "grid": "×".join(str(n) for n in trace.kernels.variants.grid[variant].tolist()),
            "block": "×".join(str(n) for n in trace.kernels.variants.block[variant].tolist()),
        }
        if layer >= 0:
            about["layer"] = layer
        for key, values in (("weight_bytes", traffic.weight_bytes), ("kv_bytes", traffic.kv_bytes)):
            if np.isfinite(values[position]):
                about[key] = int(values[position])
        return (f"blk.{layer}.{site.key}" if layer >= 0 else site.key), about

    def _draw_lanes(
        self,
        name: str,
        rank: int,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        names: list[str],
        values: list[dict[str, Value]],
    ) -> None:
        lane = lanes(start, end)
        tracks = [self.out.track(name, self._root, rank) for _ in range(int(lane.max(initial=-1)) + 1)]
        for i in np.lexsort((end, start)).tolist():
            self.out.slice(tracks[int(lane[i])], int(start[i]), int(end[i]), names[i], values[i])

    def _counter(self, name: str, place: int, unit: str, description: str) -> int:
        self.counters += 1
        return self.out.counter(name, self._root, COUNTERS + place, unit, description)

    def _samples(self, track: int, values: NDArray[np.float64], last: int) -> None:
        """A sample at the start of each step with a known value, the last one again where the last step ends."""
        known = np.isfinite(values)
        for at, value in zip(self._begin[known].tolist(), values[known].tolist(), strict=True):
            self.out.sample(track, at, value)
        if known[-1]:
            self.out.sample(track, last, float(values[-1]))
