"""The doctor on machines that have everything, something and nothing."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from attrib import doctor
from attrib.doctor import MISSING, NOTE, OK, READING, RECORDING
from tests.conftest import Attrib
from tests.helpers import fake_tools as fake

SMI = "echo 'NVIDIA H200, 580.159.04, 143771 MiB'"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fakes of nsys and the engine installed, and no nvidia-smi unless a test adds one."""
    folder = fake.install(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return folder


def bindings(folder: Path, driver: str, nvrtc: str = "nvrtcVersion = lambda: (0, 13, 0)") -> None:
    """A fake `cuda.bindings` for the child processes, first on their module path."""
    package = folder.parent / "modules" / "cuda"
    (package / "bindings").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bindings" / "__init__.py").touch()
    (package / "bindings" / "driver.py").write_text(driver)
    (package / "bindings" / "nvrtc.py").write_text(nvrtc)


GOOD_DRIVER = (
    "cuInit = lambda flags: (0,)\ncuDeviceGetCount = lambda: (0, 2)\ncuDriverGetVersion = lambda: (0, 13010)\n"
)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Installed versions by package, on top of what is really there; None is not installed."""
    fixed: dict[str, str | None] = {"cuda-bindings": "13.0.1"}
    real = metadata.version

    def version(package: str) -> str:
        found = fixed[package] if package in fixed else real(package)
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr("attrib.doctor.metadata.version", version)
    return fixed


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in document["checks"]}


def test_a_machine_with_everything(attrib: Attrib, work: Path, tmp_path: Path, versions: dict[str, str | None]) -> None:
    fake.nvidia_smi(tmp_path / "bin", SMI)
    bindings(work, GOOD_DRIVER)
    document = attrib("doctor", "--json").json()
    assert document["reading"] is True
    assert document["recording"] is True
    checks = by_name(document)
    assert {check["status"] for check in checks.values()} == {OK, NOTE}
    assert checks["GPU and driver"]["detail"] == "NVIDIA H200, 580.159.04, 143771 MiB"
    assert checks["cuda-python"]["detail"] == "13.0.1, 2 GPUs, driver API 13.1"
    assert checks["NVRTC"]["detail"] == "13.0"
    assert checks["nsys"]["detail"] == f"2025.3.2.474 at {tmp_path / 'bin' / 'nsys'}"
    assert str(work / "runs") in checks["run directory"]["detail"]
    assert not (work / "runs").exists()
    assert "recording: ready" in attrib("doctor").out


def test_a_machine_without_a_gpu(
    attrib: Attrib, work: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None]
) -> None:
    versions["cuda-bindings"] = versions["cuda-python"] = None
    monkeypatch.setattr("attrib.capture._PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    document = attrib("doctor", "--json").json()
    assert (document["reading"], document["recording"]) == (True, False)
    checks = by_name(document)
    lacking = {name for name, check in checks.items() if check["status"] == MISSING}
    assert lacking == {"GPU and driver", "cuda-python", "NVRTC", "nsys"}
    assert all(checks[name]["remedy"] for name in lacking)
    assert "2024.1 or newer" in checks["nsys"]["remedy"]
    text = attrib("doctor")
    assert text.code == 0
    assert "pip install 'attrib[engine]'" in text.out
    assert "recording: lacks GPU and driver, cuda-python, NVRTC, nsys" in text.out


@pytest.mark.parametrize(
    ("body", "said"),
    [("echo 'NVIDIA-SMI has failed' >&2; exit 9", "NVIDIA-SMI has failed"), ("exit 0", "names no GPU")],
)
def test_a_driver_that_is_not_loaded(work: Path, tmp_path: Path, body: str, said: str) -> None:
    fake.nvidia_smi(tmp_path / "bin", body)
    check = doctor.gpu()
    assert check.status == MISSING
    assert said in check.detail


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("def cuInit(flags): raise RuntimeError('no libcuda here')", "libcuda cannot be loaded: no libcuda here"),
        ("class LibNotFoundError(RuntimeError): pass\ndef cuInit(flags): raise LibNotFoundError('x')", "be loaded"),
        ("raise ImportError('no bindings')", "libcuda cannot be loaded: no bindings"),
        ("cuInit = lambda flags: (100,)", "cuInit gives CUDA status 100"),
        ("cuInit = lambda flags: (0,)\ncuDeviceGetCount = lambda: (0, 0)", "it finds no device"),
        ("import os; os.abort()", "it printed nothing"),
    ],
)
def test_bindings_that_cannot_use_the_driver(
    work: Path, versions: dict[str, str | None], driver: str, said: str
) -> None:
    bindings(work, driver, "raise ImportError('no libnvrtc')")
    check = doctor.cuda_python()
    assert check.status == MISSING
    assert check.detail.startswith("13.0.1 is installed and cannot use the driver: ")
    assert check.detail.endswith(said)
    assert doctor.nvrtc().detail == "cannot be loaded: no libnvrtc"


@pytest.mark.parametrize(
    ("nvrtc", "said"),
    [
        ("def nvrtcVersion(): raise OSError", "the library raised OSError"),
        ("nvrtcVersion = lambda: (7, 0, 0)", "nvrtcVersion gives status 7"),
    ],
)
def test_a_compiler_that_cannot_be_used(work: Path, versions: dict[str, str | None], nvrtc: str, said: str) -> None:
    bindings(work, GOOD_DRIVER, nvrtc)
    assert doctor.nvrtc().detail == f"cannot be loaded: {said}"


@pytest.mark.parametrize(
    ("extra", "lost"), [("engine", "nvtx"), ("engine", "tokenizers"), ("fleet", "dask"), ("fleet", "distributed")]
)
def test_packages_of_an_extra_are_listed_with_what_brings_them(
    versions: dict[str, str | None], extra: str, lost: str
) -> None:
    check = doctor.optional(extra, RECORDING)
    assert (check.name, check.status, check.remedy) == (f"extra [{extra}]", OK, "")
    assert f"{lost} {metadata.version(lost)}" in check.detail
    versions[lost] = None
    check = doctor.optional(extra, RECORDING)
    assert (check.status, check.remedy) == (NOTE, f"pip install 'attrib[{extra}]'")
    assert f"{lost} not found" in check.detail


def test_old_and_refused_nsys(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attrib.capture._PLACES", ())
    monkeypatch.setenv("FAKE_NSYS", "old")
    check = doctor.nsys()
    assert check.status == MISSING
    assert "nsys 2023.4" in check.detail
    assert check.remedy.startswith("install NVIDIA Nsight Systems")


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = doctor.folder(tmp_path / "file" / "runs")
    assert check.status == MISSING
    assert "--out" in check.remedy
    assert doctor.folder(tmp_path / "deep" / "er").status == OK
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_exit_code_is_about_reading(attrib: Attrib, work: Path, versions: dict[str, str | None]) -> None:
    versions["pandas"] = None
    outcome = attrib("doctor")
    assert outcome.code == 1
    assert "not installed: pandas" in outcome.out
    assert "reading traces: not possible" in outcome.out


def test_cuda_is_never_imported_here(attrib: Attrib, work: Path, versions: dict[str, str | None]) -> None:
    before = set(sys.modules)
    attrib("doctor", "--json").json()
    new = {name.split(".")[0] for name in set(sys.modules) - before}
    assert not new & {"cuda", "engine"}


def test_every_check_is_for_something(versions: dict[str, str | None], tmp_path: Path) -> None:
    found = doctor.diagnose(tmp_path)
    assert {c.needed_for for c in found.checks} >= {READING, RECORDING}
    assert all(c.detail for c in found.checks)
    assert all(c.remedy for c in found.checks if c.status == MISSING)


def test_a_source_tree_does_not_know_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> list[str]:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr("attrib.doctor.metadata.requires", requires)
    check = doctor.optional("fleet", "fleets")
    assert check.status == doctor.NOTE
    assert "not installed" in check.detail
