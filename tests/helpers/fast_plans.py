"""Models and plans of the fast build for tests: an H200's geometry, made-up shapes, arguments by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from attrib.models import Model, ModelShape, Tensor, recipe_tensors
from engine import dispatch, fast_model, fast_plan, fast_tables, plan, program
from engine.config import ModelConfig, of_model

MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b")
BUILDS = ("fast", "phases")
SMS, SHARED = 132, 232_448  # of an H200: multiprocessors, bytes of shared memory a block may have
CAPACITY, KV_LEN = 4096, 100
SHAPE = ModelShape(
    name="made-up",
    arch="qwen2",
    layers=2,
    hidden=512,
    ffn=1024,
    heads=8,
    kv_heads=2,
    head_dim=64,
    vocab=640,
    tied=False,
    bias=True,
    rope_theta=1e4,
    norm_eps=1e-6,
)


def tensors(shape: ModelShape, quants: dict[str, str] | None = None) -> tuple[Tensor, ...]:
    """The tensors of a shape, with other types for some roles."""
    return tuple(replace(t, quant=(quants or {}).get(t.role, t.quant)) for t in recipe_tensors(shape))


def made(quants: dict[str, str] | None = None, **changes: int) -> ModelConfig:
    """A model of two layers of 512 columns, or what changes make of it."""
    shape = replace(SHAPE, **changes)  # type: ignore[arg-type]
    return of_model(Model(shape, "made-up", tensors(shape, quants)))


@cache
def planned(
    config: ModelConfig, build: str = "fast", *, sms: int = SMS, shared: int = SHARED
) -> tuple[plan.PlannedLaunch, ...]:
    """A decode plan on a GPU like an H200."""
    return program.decode(config, dispatch.load(build), plan.geometry(config, CAPACITY, sms, shared), KV_LEN)


def steps_of(launches: tuple[plan.PlannedLaunch, ...]) -> list[plan.PlannedLaunch]:
    """The launches of the step kernel."""
    return [launch for launch in launches if launch.spec.name == "fast_step"]


def tables_of(config: ModelConfig) -> fast_tables.Tables:
    """The tables on an H200."""
    return fast_plan.step_tables(config, fast_model.blocks_of(config, SMS))


def decode_phases(config: ModelConfig) -> tuple[fast_tables.Phase, ...]:
    """The phases of a decode step, without those of the output matrix for prefill."""
    (step,) = steps_of(planned(config))
    return tables_of(config).phases[: len(step.stages)]


def argument(launch: plan.PlannedLaunch, name: str) -> plan.Arg:
    """The argument of a parameter."""
    return launch.args[[each for each, _ in launch.spec.params].index(name)]
