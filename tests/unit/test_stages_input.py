"""What contradicts, is missing or cannot be read of a persistent kernel's stages, and what commands say of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from attrib import api, stages
from attrib import manifest as mf
from attrib.census import Census, SiteRow
from attrib.errors import JoinError
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers import fake_tools as fake
from tests.helpers import persistent_step as ps
from tests.helpers import small_step

NS = 1e-9
NOTE = (
    "4 sites are 6 stages of one kernel, persistent_step, timed by the kernel itself (globaltimer, ticks of 20 ns): "
    "0.050 ms a step, of it waiting at dependencies 0.002 ms (3.0 %), mean over blocks"
)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(tmp_path))


def row(found: Census, site: str) -> SiteRow:
    (match,) = (r for r in found.rows if r.site == site)
    return match


# ---------------------------------------------------------------- missing, unreadable, contradicting


def one_row(folder: Path, reason: str, **options: Any) -> None:
    """The kernel is one row with its bytes, and one sentence says why."""
    found = api.census(folder, "2000:3000", **options)
    step = row(found, "step")
    assert (step.launches, step.bytes, step.exclusive) == (1, 120_000_000, pytest.approx(50_000 * NS))
    assert (found.stages, found.launches, len(found.rows)) == (None, 3, 3)
    sentence = f"persistent_step stays one row, for it has no times of 6 stages: {reason}"
    assert [note for note in found.warnings if "stays one row" in note] == [sentence]
    assert found.step_bytes == 120_000_000


def test_without_stamps_the_kernel_stays_one_row(tmp_path: Path) -> None:
    ps.write(tmp_path)
    path = tmp_path / "stages.json"
    path.unlink()
    one_row(tmp_path, f"{path} cannot be read: No such file or directory")
    path.mkdir()
    one_row(tmp_path, f"{path} cannot be read: Is a directory")


def test_a_manifest_without_a_path_brings_no_stamps(tmp_path: Path) -> None:
    trace, path = ps.write(tmp_path)
    found = api.attribution(trace, manifest=mf.load(path))
    assert found.stages is None
    assert any(note.endswith("stages: no stages.json was given with the manifest") for note in found.warnings)
    given = api.attribution(trace, manifest=mf.load(path), stages=tmp_path / "stages.json")
    assert given.stages is not None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "{path} is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "{path} is not JSON: "),
        ("[1]", "{path} has schema 'list'; this version reads 'attrib.stages/1'"),
        ('{"schema": "attrib.stages/2"}', "{path} has schema 'attrib.stages/2'; this version reads 'attrib.stages/1'"),
    ],
)
def test_a_file_that_is_no_stamps_is_one_sentence(tmp_path: Path, content: str, reason: str) -> None:
    ps.write(tmp_path)
    path = tmp_path / "stages.json"
    path.write_text(content)
    with pytest.raises(JoinError) as caught:
        stages.load(path)
    assert str(caught.value).startswith(reason.format(path=path))
    one_row(tmp_path, str(caught.value))


WRONG = "has a missing or wrong field: "
GOOD = {"end_ns": [1, 2, 3, 4, 5, 6], "wait_ns": [0] * 6}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"node": None}, WRONG + "node is None, not a whole number from 0 to 1e+15"),
        ({"node": -1}, WRONG + "node is -1, not a whole number from 0 to 1e+15"),
        ({"sms": "132"}, WRONG + "sms is 132, not a whole number from 0 to 1e+15"),
        ({"stages": True}, WRONG + "stages is True, not a whole number from 0 to 1e+15"),
        ({"stages": 0}, WRONG + "stages is 0"),
        ({"replays": []}, WRONG + "replays is no list of at least one replay"),
        ({"replays": 5}, WRONG + "replays is no list of at least one replay"),
        ({"replays": [GOOD, 5]}, WRONG + "end_ns of replay 1 has no list of times, not 6"),
        ({"replays": [GOOD | {"end_ns": [1]}]}, WRONG + "end_ns of replay 0 has 1 times, not 6"),
        ({"replays": [{"end_ns": [1] * 6}]}, WRONG + "wait_ns of replay 0 has no list of times, not 6"),
        (
            {"replays": [GOOD | {"wait_ns": [0, -1, 0, 0, 0, 0]}]},
            WRONG + "wait_ns of replay 0, stage 1 is -1, not ns from 0 on",
        ),
        (
            {"replays": [GOOD | {"end_ns": [0, 1, 2, 3, 4, 1.5]}]},
            WRONG + "end_ns of replay 0, stage 5 is 1.5, not ns from 0 on",
        ),
        (
            {"replays": [GOOD | {"end_ns": [0, 1, 2, 3, 4, 10**16]}]},
            WRONG + "end_ns of replay 0, stage 5 is 10000000000000000, not ns from 0 on",
        ),
        ({"replays": [GOOD, GOOD | {"end_ns": [0] * 6}]}, ": all stamps of replay 1 are 0, so the kernel wrote none"),
        (
            {"replays": [GOOD, GOOD | {"end_ns": [1, 2, 3, 2, 5, 6]}]},
            ": stage 3 of replay 1 ends before stage 2",
        ),
        (
            {"replays": [GOOD | {"wait_ns": [2, 0, 0, 0, 0, 0]}]},
            ": blocks waited 2 ns for stage 0 of replay 0, which ends 1 ns after the kernel's first stamp",
        ),
        (
            {"replays": [GOOD, GOOD | {"wait_ns": [0, 0, 0, 0, 0, 7]}]},
            ": blocks waited 7 ns for stage 5 of replay 1, which ends 6 ns after the kernel's first stamp",
        ),
        (
            {"replays": [{"end_ns": [100] * 5 + [200], "wait_ns": [0, 60, 60, 60, 0, 27]}]},
            ": the waits of replay 0 add up to 207 ns, more than the 200 ns from its first stamp to its last",
        ),
        (
            {"replays": [GOOD | {"wait_ns": [0, 2**62, 0, 0, 0, 0]}]},
            WRONG + "wait_ns of replay 0, stage 1 is 4611686018427387904, not ns from 0 on",
        ),
    ],
)
def test_wrong_stamps_are_one_sentence(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    ps.write(tmp_path, document=ps.stamps(**fields))
    path = tmp_path / "stages.json"
    with pytest.raises(JoinError) as caught:
        stages.load(path)
    separator = "" if reason.startswith(":") else " "
    assert str(caught.value) == f"{path}{separator}{reason}"
    one_row(tmp_path, str(caught.value))


def test_a_block_that_was_done_early_may_wait_longer_than_the_stage_lasts(tmp_path: Path) -> None:
    """Waits of 60 ns before stages of 50 ns each, and one ns of rounding a stage."""
    ps.write(tmp_path, document=ps.stamps(replays=[{"end_ns": [50, 110, 160, 210, 260, 300], "wait_ns": [51] * 6}]))
    with pytest.raises(JoinError, match="blocks waited 51 ns for stage 0"):
        stages.load(tmp_path / "stages.json")
    replay = {"end_ns": [50, 110, 160, 210, 260, 300], "wait_ns": [0, 100, 60, 60, 60, 26]}
    ps.write(tmp_path, document=ps.stamps(replays=[replay]))
    assert stages.load(tmp_path / "stages.json").wait.tolist() == [replay["wait_ns"]]


@pytest.mark.parametrize("node", [0, 2, 3])
def test_stamps_of_another_node_are_refused(tmp_path: Path, attrib: Attrib, node: int) -> None:
    ps.write(tmp_path, document=ps.stamps(node=node))
    sentence = f"has stamps of node {node} and the manifest stages of [1]; they are not from the same run"
    with pytest.raises(JoinError) as caught:
        api.census(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'stages.json'} {sentence}"
    assert sentence in attrib("census", tmp_path).refusal()


def test_stamps_of_other_stages_are_refused(tmp_path: Path) -> None:
    replays = [{"end_ns": [1, 2], "wait_ns": [0, 0]}] * 3
    ps.write(tmp_path, document=ps.stamps(stages=2, replays=replays))
    with pytest.raises(JoinError) as caught:
        api.census(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'stages.json'} has stamps of 2 stages and the manifest lists 6 in node 1; they are not from the "
        "same run"
    )


def test_a_second_persistent_kernel_without_stamps_says_so(tmp_path: Path) -> None:
    ps.write(tmp_path)
    made = ps.manifest()
    nodes = list(made.graph().nodes)
    nodes[2] = replace(nodes[2], stages=(mf.Stage(0, "argmax", None),))
    mf.dump(replace(made, graphs=(mf.Graph("decode", tuple(nodes)),)), tmp_path / "manifest.json")
    found = api.census(tmp_path)
    path = tmp_path / "stages.json"
    assert f"argmax_partial stays one row, for it has no times of 1 stage: {path} has none of them" in found.warnings
    assert found.stages is not None
    assert found.stages.stages == 6


def test_stamps_without_stages_in_the_manifest_are_not_read(tmp_path: Path) -> None:
    small_step.write(tmp_path)
    (tmp_path / "stages.json").write_text("no JSON")
    assert api.census(tmp_path).warnings == ()


# ---------------------------------------------------------------- manifest


def node_document(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    ps.write(tmp_path)
    path = tmp_path / "manifest.json"
    return path, json.loads(path.read_text())


def test_stages_are_written_and_read_back(tmp_path: Path) -> None:
    path, document = node_document(tmp_path)
    assert mf.load(path) == ps.manifest()
    nodes = document["graphs"][0]["nodes"]
    assert ["stages" in node for node in nodes] == [False, True, False]
    assert nodes[1]["stages"][2] == {
        "i": 2, "site": "attn_split", "layer": 0, "weight_bytes": 0, "kv_bytes": 500_000, "act_bytes": 0, "units": 2,
        "units_covered": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda node: node.update(stages={}), "stages is {}, not a list"),
        (lambda node: node["stages"].insert(0, 5), "stage 0 is 5, not an object"),
        (lambda node: node["stages"][2].pop("site"), "stage 2 has no 'site'"),
        (lambda node: node["stages"][2].update(i=3), "it has stage 3 at place 2"),
        (lambda node: node["stages"][2].update(layer="x"), "stage 2: layer is x, not a whole number from 0 to 2^63"),
        (
            lambda node: node["stages"][1].update(weight_bytes=-1),
            "stage 1: weight_bytes is -1, not a whole number from 0 to 2^63",
        ),
        (lambda node: node.update(kv_bytes=7), "kv_bytes is 7 and its stages add up to 1000000"),
        (lambda node: node["stages"].pop(), "weight_bytes is 120000000 and its stages add up to 60000000"),
        (lambda node: node.update(units_covered=44), "units_covered is 44 and its stages add up to 45"),
    ],
)
def test_stages_that_contradict_their_node_are_refused_by_name(tmp_path: Path, change: Any, reason: str) -> None:
    path, document = node_document(tmp_path)
    change(document["graphs"][0]["nodes"][1])
    path.write_text(json.dumps(document))
    with pytest.raises(JoinError) as caught:
        mf.load(path)
    assert str(caught.value) == f"manifest {path} has a missing or wrong field: node 1: {reason}"


def test_stages_that_skip_units_are_a_warning(tmp_path: Path) -> None:
    ps.write(tmp_path)
    changed = [replace(stage, units_covered=5) if stage.i == 1 else stage for stage in ps.STAGES]
    mf.dump(ps.manifest(changed), tmp_path / "manifest.json")
    assert any(note.startswith("plan computes 40 of 45 units") for note in api.census(tmp_path).warnings)


# ---------------------------------------------------------------- commands


def test_the_note_and_the_tables(tmp_path: Path, attrib: Attrib) -> None:
    trace, manifest = ps.write(tmp_path)
    census = attrib("census", trace, "--manifest", manifest)
    assert census.code == 0
    lines = census.out.splitlines()
    assert lines[1] == "3 steps × 3 launches (graph replays); span 0.055 ms, idle 0.001 ms"
    assert lines[3] == "1 of 3 launches is persistent_step with 6 stages"
    assert " ".join(line.strip() for line in lines[lines.index(next(x for x in lines if "note:" in x)) :]).strip() == (
        f"note: {NOTE}"
    )
    for command in (("stragglers", "--class", "2800:3200"), ("anatomy",)):
        out = attrib(command[0], trace, "--manifest", manifest, *command[1:]).out
        assert f"note: {NOTE}" in " ".join(out.split())
        assert all(cell_len(line) <= 100 for line in out.splitlines())
    anatomy = attrib("anatomy", tmp_path).out.splitlines()
    (header,) = (line.split() for line in anatomy if line.startswith("category"))
    assert header[-3:] == ["stages", "waiting", "ms"]
    (streaming,) = (line.split() for line in anatomy if line.startswith("weight streaming"))
    assert streaming == ["weight", "streaming", "0.042", "77.06", "78.50", "0.042", "3", "0.001"]
    (span,) = (line.split() for line in anatomy if line.startswith("span"))
    assert span == ["span", "0.055", "100.00", "3", "1", "6", "0.002"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "13 sites are 242 stages of one kernel, k, timed by the kernel itself (globaltimer, ticks of 32 ns): "
            "1.900 ms a step, of it waiting at dependencies 0.285 ms (15.0 %)",
        ),
        (
            {"sites": 1, "stages": 1, "tick": 1},
            "1 site is 1 stage of one kernel, k, timed by the kernel itself (globaltimer): "
            "1.900 ms a step, of it waiting at dependencies 0.285 ms (15.0 %)",
        ),
        (
            {"seconds": 0.0, "waiting": 0.0},
            "13 sites are 242 stages of one kernel, k, timed by the kernel itself (globaltimer, ticks of 32 ns): "
            "0.000 ms a step, of it waiting at dependencies 0.000 ms",
        ),
    ],
)
def test_the_note_in_words(changes: dict[str, Any], text: str) -> None:
    summary = stages.Summary(kernel="k", sites=13, stages=242, seconds=1.9e-3, waiting=0.285e-3, tick=32)
    assert replace(summary, **changes).describe() == f"{text}, mean over blocks"


def test_inputs_are_not_written(tmp_path: Path, attrib: Attrib) -> None:
    ps.write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for command in ("census", "anatomy", "stragglers"):
        assert attrib(command, tmp_path, "--json").code == 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before


def test_a_recording_keeps_its_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attrib: Attrib) -> None:
    """The traced run writes stages.json beside the manifest it was asked for; the run directory has both."""
    nodes = tuple(
        replace(node, duration=duration, gap=500) for node, duration in zip(ps.NODES, (2000, 45_000, 1500), strict=True)
    )
    count = fake.TRACED
    work = fake.install(tmp_path, monkeypatch)
    made = ps.manifest()
    mf.dump(replace(made, build=replace(made.build, name="reference")), tmp_path / "source.json")
    document = ps.stamps((0.9,) * count)
    (tmp_path / "source.stages.json").write_text(json.dumps(document))
    monkeypatch.setenv("FAKE_TRACE", str(fake.decode_trace(nodes=nodes).write(tmp_path / "source.sqlite")))
    monkeypatch.setenv("FAKE_MANIFEST", str(tmp_path / "source.json"))
    monkeypatch.setenv("FAKE_STAGES", str(tmp_path / "source.stages.json"))
    outcome = attrib("record", "14b:tg128", "--steps", count, "--json")
    assert outcome.code == 0, outcome.err
    (folder,) = (path for path in (work / "runs").iterdir() if path.is_dir())
    assert json.loads((folder / "stages.json").read_text()) == document
    assert mf.load(folder / "manifest.json").graph().nodes[1].stages == ps.STAGES
    found = outcome.json()
    assert found["census"]["stages"]["stages"] == 6
    assert found["census"]["steps"]["excluded"] == {"step without stamps of its stages": fake.WARM_UP}
    assert (found["complete"]["launches_per_replay"], found["complete"]["launches_joined"]) == (3, 3)
    assert attrib("census", folder, "--json").json()["sites"] == found["census"]["sites"]


def test_the_trace_as_recorded_is_untouched(tmp_path: Path) -> None:
    path, manifest = ps.write(tmp_path)
    trace = open_trace(path)
    found = api.attribution(trace, manifest=manifest)
    assert len(trace.kernels.start) == 9
    assert found.trace is not trace
    assert found.by_launch is not None
    assert found.by_launch.trace is trace
