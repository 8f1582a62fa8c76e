"""The coverage probe through the step kernel: two ADD phases over a matrix whose units each add exactly 1, then 2.

Every row of the result is then three times the number of its units that the compiled kernel multiplied, exactly. Of a
record that is left out an old partial sum may lie in shared memory, but not one that is right in both phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine import fast_model, fast_plan, fast_tables, kernels_ops, tiles
from engine.config import ModelConfig
from engine.dispatch import load
from engine.fast_tables import ADD, AFTER_ALL, PLAIN_INPUT, Phase, Segment, Tables
from engine.plan import Buf, Geometry, PlannedLaunch
from engine.probe import UNIT, probe_activations, probe_rows
from engine.program import decode

FACTORS = (1, 2)
Arrays = dict[str, NDArray[np.generic]]


def segments(config: ModelConfig, sms: int) -> Iterator[Segment]:
    """One segment of each kind and width that the model's phases stream."""
    seen = set()
    for phase in fast_plan.step_tables(config, fast_model.blocks_of(config, sms)).phases:
        for segment in phase.segments:
            if (key := (segment.kind, segment.matrix.cols)) not in seen:
                seen.add(key)
                yield segment


def launch_of(config: ModelConfig, geo: Geometry) -> PlannedLaunch:
    """A launch of the model's own step kernel of one ADD phase, with the model's own division of shared memory."""
    return next(one for one in decode(config, load("phases"), geo, 1) if one.site.startswith("attn_output"))


def records(segment: Segment, blocks: int) -> NDArray[np.uint8]:
    """The probe's weights as they lie in memory: all tiles are alike."""
    quant, cols = segment.matrix.quant, segment.matrix.cols
    one = tiles.pack(quant, probe_rows(quant, tiles.ROWS, cols), cols)
    whole = np.broadcast_to(one, (segment.tiles, *one.shape[1:]))
    return tiles.arrange(whole, segment.tiles, blocks)


def buffers(config: ModelConfig, geo: Geometry, segment: Segment) -> Arrays:
    """What the launch reads and writes, by name; `out` starts at 0 and the phases add to it."""
    blocks, rows = fast_model.blocks_of(config, geo.sms), tiles.ROWS * segment.tiles
    sizes = {"out": rows, "shared": rows, "rope": geo.capacity * config.model.shape.head_dim, "counters": 2}
    sizes |= {"state": kernels_ops.STATE_INTS, "part_acc": 4, "part_ml": 4, "part_value": blocks, "part_index": blocks}
    found: Arrays = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    x = probe_activations(1, segment.matrix.cols).reshape(-1)
    return found | {f"x{factor}": factor * x for factor in FACTORS} | {"weights": records(segment, blocks)}


def tables(config: ModelConfig, geo: Geometry, segment: Segment, address: Callable[[str], int]) -> Arrays:
    """The tables of the two phases, given the addresses of `buffers`; segments are all of the model's."""
    every = fast_plan.step_tables(config, fast_model.blocks_of(config, geo.sms))
    alone = (replace(segment, matrix=replace(segment.matrix, name="weights")),)
    flags, out, shared, cols = AFTER_ALL | PLAIN_INPUT, ("out", 0), ("shared", 0), segment.matrix.cols
    phases = tuple(
        Phase("probe", 0, ADD, flags, alone, x=(f"x{factor}", 0), out=out, shared=shared, cols=cols)
        for factor in FACTORS
    )
    found = Tables(phases).arrays(address, lambda name: address(name) - segment.offset)
    found["streams"]["segment"][:, 0] = every.kinds.index(segment.kind)
    return found | {"segments": np.array(list(every.kinds), fast_tables.SEGMENT)}


def arguments(launch: PlannedLaunch, pointer: Callable[[str], object], phase: int) -> list[object]:
    """The launch's arguments with pointers from a function and one phase alone."""
    names = [name for name, _ in launch.spec.params]
    values = [pointer(arg.name) if isinstance(arg, Buf) else arg for arg in launch.args]
    values[names.index("first")], values[names.index("last")] = phase, phase + 1
    return values


def expected(segment: Segment) -> int:
    """What every row of `out` is after both phases."""
    return sum(FACTORS) * segment.matrix.cols // UNIT
