"""What a build makes of a model: its launches, weights and buffers, for either kind of build. Pure, no GPU."""

from __future__ import annotations

from engine import buffers, fast_model, fast_plan, fast_tables, plan
from engine.config import ModelConfig
from engine.dispatch import Build
from engine.plan import Geometry, PlannedLaunch, Planner
from engine.prefill import Work
from engine.prefill import prefill as plan_prefill
from engine.repack import gpu_bytes


def decode(config: ModelConfig, build: Build, geo: Geometry, kv_len: int) -> tuple[PlannedLaunch, ...]:
    """The launches of one decode step, in order; raises PlanError as `plan.decode` does."""
    make = plan.decode if build.step is None else fast_plan.decode
    return make(config, build, geo, kv_len)


def prefill(config: ModelConfig, build: Build, geo: Geometry, tokens: int, *, sample: bool) -> tuple[Work, ...]:
    """The work of one prefill pass; raises PlanError as `prefill.prefill` does."""
    planner: type[Planner] = Planner if build.step is None else fast_plan.FastPlanner
    return plan_prefill(config, build, geo, tokens, sample=sample, planner_of=planner)


def weight_sizes(config: ModelConfig, build: Build) -> dict[str, int]:
    """Bytes of every weight on the device, by the name that plans use."""
    if build.step is not None:
        return fast_model.places(config)
    return {t.name: gpu_bytes(t.quant, t.rows, t.cols) for t in config.model.tensors}


def buffer_sizes(config: ModelConfig, build: Build, geo: Geometry, batch: int) -> dict[str, int]:
    """Bytes of every buffer on the device, by the name that plans use."""
    found = buffers.sizes(config, geo, batch)
    if build.step is None:
        return found
    blocks, s = fast_model.blocks_of(config, geo.sms), config.model.shape
    every, groups = fast_plan.step_tables(config, blocks), fast_plan.groups(config)
    parts = s.heads * max(1, min(blocks // groups, fast_tables.MOST_SPLITS))
    count = len(every.phases)
    return found | {
        "phases": count * fast_tables.PHASE.itemsize,
        "streams": count * fast_tables.STREAM.itemsize,
        "segments": len(every.kinds) * fast_tables.SEGMENT.itemsize,
        "counters": 4 * fast_plan.COUNTERS,
        "qkv": 4 * (s.heads + 2 * s.kv_heads) * s.head_dim,
        "attended": 4 * s.heads * s.head_dim,
        "residual_a": 4 * s.hidden,
        "residual_b": 4 * s.hidden,
        "gated": 2 * s.ffn,
        "part_acc": max(found["part_acc"], 4 * parts * s.head_dim),
        "part_ml": max(found["part_ml"], 8 * parts),
        "part_value": max(found["part_value"], 4 * blocks),
        "part_index": max(found["part_index"], 4 * blocks),
        "stamps": 16 * count * blocks if geo.stamps else 0,
    }
