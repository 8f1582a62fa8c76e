"""Manifests: what is written is read back, and what cannot be one is refused by file and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib import manifest as mf
from attrib.errors import AttribError, JoinError
from tests.helpers import small_step

WHOLE = replace(small_step.manifest(), wall_step_ns=(10, 20), build=mf.BuildInfo("fast", "0" * 64, ("-O3", "--x=ü")))
COUNT = st.integers(0, 2**62)
DIM = st.tuples(*[st.integers(1, 2**31 - 1)] * 3)
LAUNCHES = st.builds(
    mf.Launch,
    i=st.just(0),
    site=st.sampled_from(["attn_v/q6_K", "rms_norm"]),
    layer=st.none() | st.integers(0, 200),
    kernel=st.text(min_size=1, max_size=8),
    grid=DIM,
    block=DIM,
    weight_bytes=COUNT,
    kv_bytes=COUNT,
    act_bytes=COUNT,
    units=COUNT,
    units_covered=COUNT,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(LAUNCHES, max_size=4), st.lists(COUNT, max_size=3))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, launches: list[mf.Launch], wall: list[int]
) -> None:
    nodes = tuple(replace(launch, i=i) for i, launch in enumerate(launches))
    written = replace(WHOLE, graphs=(mf.Graph("prefill", ()), mf.Graph("decode", nodes)), wall_step_ns=tuple(wall))
    path = tmp_path_factory.mktemp("m") / "manifest.json"
    mf.dump(written, path)
    assert mf.load(path) == written
    assert [entry.name for entry in path.parent.iterdir()] == ["manifest.json"]


def test_the_file_as_documented(tmp_path: Path) -> None:
    mf.dump(WHOLE, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    assert set(document) == {"schema", "device", "model", "anchor", "build", "wall", "graphs"}
    assert document["schema"] == "attrib.manifest/1"
    assert document["wall"] == {"step_ns": [10, 20]}
    node = document["graphs"][0]["nodes"][1]
    assert set(node) == {
        "i", "site", "layer", "kernel", "grid", "block", "weight_bytes", "kv_bytes", "act_bytes", "units",
        "units_covered",
    }  # fmt: skip
    assert (node["i"], node["site"], node["grid"]) == (1, "ffn_down/q4_K", [5120, 1, 1])


def test_optional_fields_have_their_defaults(tmp_path: Path) -> None:
    mf.dump(WHOLE, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    del document["wall"], document["build"]["flags"]
    for node in document["graphs"][0]["nodes"]:
        del node["kv_bytes"], node["act_bytes"], node["units"], node["units_covered"]
    (tmp_path / "m.json").write_text(json.dumps(document))
    found = mf.load(tmp_path / "m.json")
    assert (found.wall_step_ns, found.build.flags) == ((), ())
    assert found.graph().nodes[1] == WHOLE.graph().nodes[1]


@pytest.mark.parametrize("key", ["device", "model", "anchor", "build", "graphs"])
@pytest.mark.parametrize("value", ["missing", None, 5, [], "text", [5], {}])
def test_a_wrong_part_is_refused_or_empty_but_never_a_traceback(key: str, value: object, tmp_path: Path) -> None:
    mf.dump(WHOLE, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    if value == "missing":
        del document[key]
    else:
        document[key] = value
    (tmp_path / "m.json").write_text(json.dumps(document))
    if key == "graphs" and value in ([], {}):
        with pytest.raises(JoinError, match="no graph named 'decode'"):
            mf.load(tmp_path / "m.json").graph()
    elif key == "anchor" and value == "text":
        assert mf.load(tmp_path / "m.json").anchor == "text"
    else:
        with pytest.raises(JoinError, match=r"manifest .*m\.json has a missing or wrong field"):
            mf.load(tmp_path / "m.json")


def test_a_manifest_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match=r"none\.json cannot be read: No such file"):
        mf.load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JoinError, match=r"binary\.json is not JSON"):
        mf.load(tmp_path / "binary.json")
    with pytest.raises(AttribError, match="cannot be written"):
        mf.dump(WHOLE, tmp_path / "none" / "m.json")
