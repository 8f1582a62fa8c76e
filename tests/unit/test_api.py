"""The Python API: what the package's docstring shows runs, and every result has its three ways out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attrib
from attrib import api
from attrib.errors import AttribError, SchemaError
from tests.helpers import data, small_step

README = Path(__file__).resolve().parents[2] / "README.md"
TRACE = "llama.cpp-14b-tg16-h200"


def snippets() -> dict[str, str]:
    """The code of the package's docstring and the Python blocks of the README."""
    doc = attrib.__doc__ or ""
    found = {"docstring": doc[doc.index("import attrib") :]}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return {**found, **{f"README {i}": block for i, block in enumerate(blocks, 1)}}


@pytest.mark.parametrize("where", snippets())
def test_documented_code_runs(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = snippets()[where]
    monkeypatch.chdir(tmp_path)
    for name in set(re.findall(r'open\("(.+?)"\)', code)):
        shutil.copy(data.trace(TRACE), tmp_path / name)
    exec(compile(code, where, "exec"), {})
    for name in re.findall(r'plot\("(.+?)"\)', code):
        assert (tmp_path / name).stat().st_size > 1000


def test_every_result_as_frame_json_and_chart(tmp_path: Path) -> None:
    path, manifest = small_step.write(tmp_path)
    trace = attrib.open(path)
    census = attrib.census(trace, rate_class="240:260", manifest=manifest)
    results = {
        "sites": census,
        "stragglers": attrib.stragglers(census),
        "categories": attrib.anatomy(trace, manifest=manifest),
    }
    for key, result in results.items():
        document = result.to_json()
        json.dumps(document, allow_nan=False)
        frame = result.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        assert list(frame.columns) == list(document[key][0])
        assert len(frame) == len(document[key])
        result.plot(str(tmp_path / f"{key}.svg"))
        assert (tmp_path / f"{key}.svg").read_text().startswith("<?xml")
    frame = census.to_pandas().set_index("site")
    assert frame.loc["ffn_down/q4_K", "gbps"] == pytest.approx(228.5714, rel=1e-6)
    assert np.isnan(frame.loc["rms_norm", "gbps"])
    assert frame["straggler"].tolist() == [True, True, False]


def test_a_path_a_trace_and_an_attribution_are_the_same(tmp_path: Path) -> None:
    path, manifest = small_step.write(tmp_path)
    trace = attrib.open(str(path))
    attribution = api.attribution(trace, manifest=manifest)
    expected = attrib.census(path, manifest=manifest).to_json()
    assert attrib.census(trace, manifest=manifest).to_json() == expected
    assert attrib.census(attribution).to_json() == expected
    assert attrib.stragglers(attribution).to_json() == attrib.stragglers(path, manifest=manifest).to_json()
    assert attrib.anatomy(attribution).to_json() == attrib.anatomy(path, manifest=manifest).to_json()


def test_expected_failures_are_one_kind_of_error(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot be read: No such file"):
        attrib.open(tmp_path / "none.sqlite")
    assert issubclass(SchemaError, AttribError)
    with pytest.raises(AttributeError, match="module 'attrib' has no attribute 'nonesuch'"):
        _ = attrib.nonesuch
    path, _ = small_step.write(tmp_path)
    with pytest.raises(TypeError, match="modle"):
        attrib.census(path, modle="qwen2.5-14b")


def test_a_packed_trace_outlives_its_opening(tmp_path: Path) -> None:
    """The unpacked copy goes with the trace object, not before."""
    trace = attrib.open(data.packed(TRACE))
    assert attrib.anatomy(trace).launches == 918
