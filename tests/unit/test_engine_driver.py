"""The driver layer without a GPU: sentences for what is missing, the cubin cache, exit codes."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import cli, cli_common, driver, module, nvrtc
from engine.errors import BuildError, CudaError, DeviceMemoryError
from engine.kernels_matvec import matvec_padded_f32


class Status(IntEnum):
    OK = 0
    MEMORY = 2
    NONE = 100
    ILLEGAL = 700


def fake(**calls: Any) -> SimpleNamespace:
    names = {
        2: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
        700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"illegal"),
    }
    return SimpleNamespace(
        cuGetErrorName=lambda s: (Status.OK, names[int(s)][0]),
        cuGetErrorString=lambda s: (Status.OK, names[int(s)][1]),
        **calls,
    )


def test_check_gives_the_value_or_the_name_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", fake)
    assert driver.check((Status.OK,)) is None
    assert driver.check((Status.OK, 5)) == 5
    assert driver.check((Status.OK, 5, 6)) == (5, 6)
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS: illegal") as caught:
        driver.check((Status.ILLEGAL,))
    assert caught.value.status == 700


def test_too_little_memory_names_needed_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cu = fake(cuMemAlloc=lambda n: (Status.MEMORY, 0), cuMemGetInfo=lambda: (Status.OK, 1000, 2000))
    monkeypatch.setattr(driver, "_driver", lambda: cu)
    message = "weights needs 1001 bytes of device memory and 1000 are free"
    with pytest.raises(DeviceMemoryError, match=message), driver.allocation(1001, "weights"):
        pass
    with pytest.raises(DeviceMemoryError, match="fragmented"), driver.allocation(999, "weights"):
        pass


def test_memory_is_freed_when_the_body_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    cu = fake(cuMemAlloc=lambda n: (Status.OK, 64), cuMemFree=lambda p: (freed.append(p), (Status.OK,))[1])
    monkeypatch.setattr(driver, "_driver", lambda: cu)
    with pytest.raises(KeyError), driver.allocation(8):
        raise KeyError
    assert freed == [64]


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda flags: (Status.NONE,), "no NVIDIA GPU"),
        (lambda flags: (Status.ILLEGAL,), "the NVIDIA driver cannot start: CUDA_ERROR_ILLEGAL_ADDRESS"),
    ],
)
def test_a_driver_without_gpu_says_so(monkeypatch: pytest.MonkeyPatch, init: Any, message: str) -> None:
    monkeypatch.setattr(driver, "import_module", lambda name: fake(cuInit=init))
    driver._driver.cache_clear()
    try:
        with pytest.raises(CudaError, match=message), driver.open_gpu():
            pass
    finally:
        driver._driver.cache_clear()


@pytest.mark.parametrize("error", [ImportError("no module"), RuntimeError("Failed to dlopen libcuda.so.1")])
def test_no_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(name: str) -> Any:
        if isinstance(error, ImportError):
            raise error

        def init(flags: int) -> Any:
            raise error

        return fake(cuInit=init)

    monkeypatch.setattr(driver, "import_module", broken)
    driver._driver.cache_clear()
    try:
        with (
            pytest.raises(CudaError, match=r"cuda\.bindings cannot be imported|no NVIDIA driver"),
            driver.open_gpu(),
        ):
            pass
    finally:
        driver._driver.cache_clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Replace the compiler by one that only notes what it is asked for."""
    calls: list[tuple[str, tuple[str, ...]]] = []

    def compile_cubin(name: str, source: str, headers: dict[str, str], options: tuple[str, ...]) -> tuple[bytes, str]:
        calls.append((name, tuple(options)))
        return b"code", "log"

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    return calls


def test_a_cubin_is_compiled_once_for_each_key(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build(*args: Any) -> module.Cubin:
        return module.build("swiglu.cu", *args, folder=tmp_path)

    assert build("sm_90").code == b"code"
    assert build("sm_90").log == "log"
    assert len(compiled) == 1
    build("sm_80")
    build("sm_90", ("-G",))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")
    build("sm_90")
    changed = {name: text + "\n" for name, text in module.sources().items()}
    monkeypatch.setattr(module, "sources", lambda: changed)
    build("sm_90")
    assert len(compiled) == 5
    assert not list(tmp_path.glob("*.part"))


def test_a_cache_that_cannot_be_written_is_no_error(compiled: list[Any], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for _ in range(2):
        assert module.build("swiglu.cu", "sm_90", folder=blocked / "below").code == b"code"
    assert len(compiled) == 2


def test_build_parameters_become_flags() -> None:
    spec = matvec_padded_f32("q6_K", rows_per_warp=4, warps=1)
    assert module.flags_of(spec, ["-lineinfo"]) == ("-lineinfo", "-DNR0=4", "-DNSG=1")
    assert module.key(spec) != module.key(matvec_padded_f32("q6_K"))


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(BuildError, match=r"kernel source absent\.cu does not exist"):
        module.source_hash(["absent.cu"])


def test_a_source_that_does_not_compile_carries_the_log() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-python")
    with pytest.raises(BuildError, match=r'(?s)wrong\.cu did not compile.*identifier "oops" is undefined'):
        nvrtc.compile_cubin("wrong.cu", "__global__ void f() { oops(); }", {}, ["--gpu-architecture=sm_90"])


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["engine", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "nope"], "model 'nope' is not built in"),
        (["bench", "7b", "--anchor", "fast"], "anchor 'fast' is not one of tgN, @N, ppN"),
        (["bench", "7b", "--build", "nope"], "build 'nope' does not exist"),
        (["bench", "7b", "--steps", "0"], "--steps 0 is not a positive number"),
        (["generate", "7b", "--tokens", "1,x"], "--tokens '1,x' is not a list of whole numbers"),
        (["verify", "7b", "--gate", "nope"], "gate 'nope' does not exist"),
        (["synth", "nope"], "model 'nope' is not built in"),
        (["synth", "7b", "--out", "/absent/folder/x.gguf"], "cannot be written: No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert command(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("engine: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    cli_common.emit({"a": float("nan"), "b": [1.5, float("inf")]}, True, [])
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None]}


def test_a_build_s_hash_covers_its_own_sources_their_headers_and_the_planning_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"a.cu": '#include "one.cuh"\n', "one.cuh": '#include "two.cuh"\n', "two.cuh": "", "other.cuh": ""}
    monkeypatch.setattr(module, "sources", lambda: texts)
    before, built = module.source_hash(["a.cu"]), module.build_hash(["a.cu"])
    texts["other.cuh"] = "changed"
    assert module.source_hash(["a.cu"]) == before
    texts["two.cuh"] = "changed"
    assert module.source_hash(["a.cu"]) != before
    assert module.build_hash(["a.cu"]) != built
    texts["two.cuh"] = ""
    monkeypatch.setattr(module, "_planners_hash", lambda: "another plan")
    assert module.source_hash(["a.cu"]) == before
    assert module.build_hash(["a.cu"]) != built
    assert all((Path(module.__file__).parent / name).is_file() for name in module.PLANNERS)
