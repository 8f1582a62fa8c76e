"""Every kernel compiles for every architecture it runs on; registers and spills are printed (pytest -s).

The step kernel alone may spill: its registers are all that a block of 512 threads can have.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import module
from engine.config import synthetic
from engine.fast_tables import _RESERVED
from engine.kernels import KernelSpec, Shape
from engine.kernels_catalog import catalog
from engine.kernels_fast import fast_step_alone
from engine.kernels_matvec import matvec_padded_f32
from engine.kernels_ops import HEAD_DIMS, MAX_GROUP, attn_prefill, attn_split
from tests.helpers.fast_plans import planned, steps_of

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_121")
USAGE = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)
STEP = "fast_step"
MOST_SPILLED = 256  # bytes a thread
STEP_MODELS = ("qwen2.5-0.5b", "qwen2.5-14b")  # heads of 64 and all tile formats, heads of 128 and q4_K with q6_K


def runs_on(spec: KernelSpec, arch: str) -> bool:
    """Whether an architecture has what the kernel needs."""
    return divmod(int(arch.removeprefix("sm_")), 10) >= spec.capability


def variants() -> list[KernelSpec]:
    """The catalog, and the build parameters a model or an experiment may ask for; the step kernel has its own test."""
    groups = [attn_split(group, 1, dim) for group in range(1, MAX_GROUP + 1) for dim in HEAD_DIMS]
    padded = [matvec_padded_f32("q6_K", rows, warps) for rows, warps in ((1, 2), (2, 1))]
    every = [spec for spec in catalog() if spec.name != STEP]
    return [*every, *groups, *(attn_prefill(dim) for dim in HEAD_DIMS), *padded]


def usage(log: str) -> dict[str, dict[str, int]]:
    """Per kernel: stack, stores and loads in bytes, and registers, from the assembler's report."""
    found = (match.groupdict() for match in USAGE.finditer(log))
    return {entry.pop("name"): {key: int(value or 0) for key, value in entry.items()} for entry in found}


def test_the_report_is_read_rightly() -> None:
    log = (
        "ptxas info : Compiling entry function 'a' for 'sm_90'\n"
        " 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nptxas info : Used 255 registers\n"
        "ptxas info : Compiling entry function 'b' for 'sm_90'\n"
        " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info : Used 16 registers, used 2 barriers, 640 bytes smem"
    )
    clean = {"stack": 0, "stores": 0, "loads": 0, "registers": 16, "shared": 640}
    assert usage(log) == {"a": {"stack": 8, "stores": 4, "loads": 12, "registers": 255, "shared": 0}, "b": clean}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    expected: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for spec in variants():
        assert runs_on(spec, arch)
        expected.setdefault((spec.source, module.flags_of(spec, ())), set()).add(spec.name)
    spilled = []
    for (source, flags), names in expected.items():
        found = usage(module.build(source, arch, flags, folder=tmp_path).log)
        assert names <= found.keys(), f"{source} for {arch} lacks {names - found.keys()}"
        for name, used in found.items():
            print(f"{arch} {name} {' '.join(flags)}: {used['registers']} registers")
            if used["stack"] or used["stores"] or used["loads"]:
                spilled.append(f"{name} {' '.join(flags)}: {used}")
    assert not spilled, f"{arch}: local memory in {'; '.join(spilled)}"


def test_the_step_kernel_runs_from_compute_capability_9_on() -> None:
    spec = fast_step_alone(40, 8, 128)
    assert [runs_on(spec, arch) for arch in ARCHITECTURES] == [False, True, True, True]


@pytest.mark.parametrize("arch", ARCHITECTURES[1:])
def test_the_step_kernel_fits_a_multiprocessor_and_spills_little(arch: str, tmp_path: Path) -> None:
    for model in STEP_MODELS:
        (spec,) = {launch.spec.defines: launch.spec for launch in steps_of(planned(synthetic(model)))}.values()
        used = usage(module.build(spec.source, arch, module.flags_of(spec, ()), folder=tmp_path).log)[STEP]
        print(f"{arch} {model} {spec.defines}: {used}")
        assert used["registers"] <= 65536 // spec.block(Shape())[0], model
        assert max(used["stores"], used["loads"]) <= MOST_SPILLED, model
        # 1 KiB of a block's shared memory is the driver's
        assert used["shared"] + 1024 <= _RESERVED, model
