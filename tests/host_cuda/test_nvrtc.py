"""Every kernel compiles for every architecture, without local memory; registers are printed (pytest -s)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import module
from engine.kernels import KernelSpec
from engine.kernels_catalog import catalog
from engine.kernels_matvec import matvec_padded_f32
from engine.kernels_ops import HEAD_DIMS, MAX_GROUP, attn_prefill, attn_split

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_121")
USAGE = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def variants() -> list[KernelSpec]:
    """The catalog, and the build parameters a model or an experiment may ask for."""
    groups = [attn_split(group, 1, dim) for group in range(1, MAX_GROUP + 1) for dim in HEAD_DIMS]
    padded = [matvec_padded_f32("q6_K", rows, warps) for rows, warps in ((1, 2), (2, 1))]
    return [*catalog(), *groups, *(attn_prefill(dim) for dim in HEAD_DIMS), *padded]


def usage(log: str) -> dict[str, dict[str, int]]:
    """Per kernel: stack, stores and loads in bytes, and registers, from the assembler's report."""
    found = (match.groupdict() for match in USAGE.finditer(log))
    return {entry.pop("name"): {key: int(value) for key, value in entry.items()} for entry in found}


def test_the_report_is_read_rightly() -> None:
    log = (
        "ptxas info : Compiling entry function 'a' for 'sm_90'\n"
        " 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nptxas info : Used 255 registers\n"
        "ptxas info : Compiling entry function 'b' for 'sm_90'\n"
        " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used 16 registers"
    )
    clean = {"stack": 0, "stores": 0, "loads": 0, "registers": 16}
    assert usage(log) == {"a": {"stack": 8, "stores": 4, "loads": 12, "registers": 255}, "b": clean}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    expected: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for spec in variants():
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
