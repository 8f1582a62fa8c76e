"""A scrubbed copy: same numbers, nothing about people or machines, the original untouched."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attrib import api
from attrib.errors import AttribError, RefusedError, SchemaError
from attrib.scrub import MARK, ScrubReport, scrub, without_paths
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers import data
from tests.helpers import nsysgen as gen
from tests.helpers import nsysgen_schema as names

EXPORTS = [name for name in data.NAMES if name != "not-an-export"]
MODELS = {name: "qwen2.5-14b:q4_k_m" if "14b" in name else "qwen2.5-7b:q4_k_m" for name in EXPORTS if "llama" in name}


def tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        listed = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {t: db.execute(f'SELECT * FROM "{t}"').fetchall() for t in listed}


def numbers(path: Path, **options: Any) -> dict[str, Any] | str:
    """Census and anatomy of a trace, or the sentence that refuses it, without the file's name."""
    try:
        attribution = api.attribution(path, **options)
        return {"census": api.census(attribution).to_json(), "anatomy": api.anatomy(attribution).to_json()}
    except AttribError as error:
        return str(error).replace(str(path), "").replace(path.name, "")


@pytest.mark.parametrize("name", EXPORTS)
def test_every_recorded_trace_keeps_its_numbers(name: str, tmp_path: Path) -> None:
    source, target = data.trace(name), tmp_path / "scrubbed.sqlite"
    digest = data.sha256(source)
    report = scrub(source, target)
    assert data.sha256(source) == digest
    assert [p.name for p in tmp_path.iterdir()] == ["scrubbed.sqlite"]
    options = {"model": MODELS[name]} if name in MODELS else {}
    assert numbers(target, **options) == numbers(source, **options)
    assert report.size_after == target.stat().st_size
    kept = tables(target)
    assert report.kept == {table: len(rows) for table, rows in kept.items()}
    originals = tables(source)
    for table, rows in kept.items():
        lost = sum(r.rows for r in report.removed if r.table == table)
        assert len(rows) + lost == len(originals[table]), table


@pytest.mark.parametrize("name", EXPORTS)
def test_gpu_rows_stay_as_exported(name: str, tmp_path: Path) -> None:
    source, target = data.trace(name), tmp_path / "scrubbed.sqlite"
    scrub(source, target)
    for table in (names.KERNEL, names.MEMCPY, names.MEMSET, names.RUNTIME):
        for path in (source, target):
            if table not in open_trace(path).schema.tables:
                break
        else:
            columns = open_trace(target).schema.tables[table]
            picked = ", ".join(f'"{c}"' for c in sorted(columns))
            query = f"SELECT {picked} FROM {table}"
            assert open_trace(source).query(query) == open_trace(target).query(query)
            assert {"start", "end"} <= columns


# ---------------------------------------------------------------- planted secrets


class Plants:
    """Marks that occur nowhere else; `all` lists every one handed out."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, where: str) -> str:
        mark = f"zq{len(self.all):03d}{where}qz"
        self.all.append(mark)
        return mark


def planted(path: Path, schema: str, plant: Plants) -> Path:
    """A trace with a decode graph and a secret in every place that can hold text."""
    trace = gen.Trace(schema)
    process = trace.process(pid=4711, name=plant("process"))
    process.device(trace.gpu(gen.H200))
    lambda_kernel = gen.Kernel(
        "apply", demangled=f"void apply<(lambda at /home/{plant('user')}/src/k.cu:33:7)>(float*)", grid=(64, 1, 1)
    )
    nodes = [gen.Node(gen.Kernel("gemv", grid=(132, 1, 1)), 4000), gen.Node(lambda_kernel, 1500)]
    graph = process.graph(nodes)
    at = 1_000_000
    for step in range(6):
        end = process.replay(graph, at)
        process.nvtx(f"step {step}", at - 10_000, end, by_id=step % 2 == 0)
        at = end + 20_000
    process.nvtx(f"load /data/{plant('dir with')} space/{plant('model')}.gguf", 500, 700)
    process.nvtx(f"open C:\\Users\\{plant('winuser')}\\m.gguf", 500, 700, by_id=True)
    process.nvtx(f"cache ~/{plant('home')}/x and ../{plant('relative')}/y", 500, 700)
    for text in (f"/opt/{plant('library')}/libfoo.so", f"--token={plant('argv')}", plant("thread name")):
        trace.string(text)
    process.api(f"/usr/{plant('symbol')}(int)", 100, 200)
    trace.add("TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName=plant("dev"), name="Hostname", value=plant("host"))
    trace.add("TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName="x", name="NvDriverVersion", value=plant("driver"))
    trace.add("TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName="x", name=plant("key"), value="1")
    trace.rows[names.GPU][0]["uuid"] = f"GPU-{plant('uuid')}"
    trace.rows[names.GPU][0]["ctxswDevPath"] = f"/dev/{plant('device')}"
    trace.write(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)")
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, ?)", (f"cannot open {plant('diagnostic')}",))
        db.execute("CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol TEXT)")
        db.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (1, ?)", (plant("sample"),))
        db.execute(f"CREATE TABLE FUTURE_{plant('table')} ({plant('column')} TEXT DEFAULT '{plant('default')}')")
        db.execute(f"INSERT INTO FUTURE_{plant.all[-3]} VALUES (?)", (plant("future"),))
        db.execute(f"CREATE INDEX {plant('index')} ON DIAGNOSTIC_EVENT (text)")
        db.execute(f"CREATE VIEW {plant('view')} AS SELECT '{plant('literal')}' AS x")
        db.execute(f"ALTER TABLE {names.KERNEL} ADD COLUMN {plant('newcolumn')} TEXT")
        db.execute(f"UPDATE {names.KERNEL} SET {plant.all[-1]} = ?", (plant("newvalue"),))
        db.execute(f"UPDATE {names.KERNEL} SET cacheConfig = ? WHERE rowid = 1", (plant("text in a number"),))
        db.execute(f"UPDATE {names.KERNEL} SET launchType = ? WHERE rowid = 2", (plant("blob").encode(),))
        db.execute(f"UPDATE {names.NVTX} SET jsonText = ?", (plant("json"),))
        metadata = trace.version.metadata
        db.execute(f"INSERT INTO {metadata} VALUES ('EXPORT_FILE', ?)", (f"/home/{plant('exported')}.sqlite",))
        db.execute(f"UPDATE {metadata} SET value = ? WHERE name = 'EXPORT_PRODUCT_NAME'", (plant("product"),))
        if "META_DATA_CAPTURE" in trace.version.tables:
            rows = [("PROCESS_0:COMMAND", plant("command")), ("PROFILING_SESSION_ID", plant("session"))]
            rows += [("PROCESS_0:COLLECT_CUDA_TRACE", plant("odd value"))]
            db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
    return path


@pytest.fixture(params=["2022.2", "2023.4", "2024.5", "2025.3", "2026.2"])
def secret_trace(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Plants]:
    plant = Plants()
    return planted(tmp_path / "in.sqlite", request.param, plant), plant


@pytest.mark.parametrize("drop_nvtx", [False, True])
def test_no_planted_byte_survives(secret_trace: tuple[Path, Plants], tmp_path: Path, drop_nvtx: bool) -> None:
    source, plant = secret_trace
    raw = source.read_bytes()
    assert all(mark.encode() in raw for mark in plant.all), "a plant is missing, so its absence would show nothing"
    target = tmp_path / "out.sqlite"
    digest = data.sha256(source)
    scrub(source, target, drop_nvtx=drop_nvtx)
    assert data.sha256(source) == digest
    scrubbed = target.read_bytes()
    for encoding in ("utf-8", "utf-16-le"):
        assert [mark for mark in plant.all if mark.encode(encoding) in scrubbed] == []
    assert b"zq" not in scrubbed
    before, after = numbers(source), numbers(target)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # one kernel is shown by a name that holds a path
    for found in (before, after):
        for site in found["census"]["sites"]:
            site["site"] = site["site"].partition("(lambda")[0]
    assert after == before


def test_range_texts_stay_without_paths_and_go_on_request(tmp_path: Path) -> None:
    source = planted(tmp_path / "in.sqlite", "2025.3", Plants())
    scrub(source, tmp_path / "kept.sqlite")
    texts = open_trace(tmp_path / "kept.sqlite").ranges().text
    assert {f"step {i}" for i in range(6)} <= set(texts)
    assert f"load {MARK}" in texts
    scrub(source, tmp_path / "dropped.sqlite", drop_nvtx=True)
    ranges = open_trace(tmp_path / "dropped.sqlite").ranges()
    assert set(ranges.text) == {""}
    assert ranges.start.tolist() == open_trace(source).ranges().start.tolist()


def test_the_report_says_what_went(tmp_path: Path) -> None:
    plant = Plants()
    report = scrub(planted(tmp_path / "in.sqlite", "2025.3", plant), tmp_path / "out.sqlite")
    removed = {r.table: r for r in report.removed}
    assert removed["TARGET_INFO_SYSTEM_ENV"].rows == 3
    assert removed["DIAGNOSTIC_EVENT"].rows == 1
    assert removed["SAMPLING_CALLCHAINS"].reason == "call chains"
    assert set(removed["TARGET_INFO_GPU"].columns) == {"uuid", "ctxswDevPath"}
    assert removed["PROCESSES"].columns == ("name",)
    assert removed["META_DATA_CAPTURE"].rows == 4
    future = next(r for t, r in removed.items() if t.startswith("FUTURE_"))
    assert future.reason.startswith("not on the list")
    # 3 strings nothing refers to; the API name and the range text by id and the kernel name lose their paths
    assert removed["StringIds"].rows == 3
    assert removed["StringIds"].values == 3
    assert report.to_json()["removed"][0]["table"] == report.removed[0].table


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("decode step 3/16", "decode step 3/16"),
        ("attn_v/q6_K layer 7", "attn_v/q6_K layer 7"),
        ("a / b", "a / b"),
        ("load /home/x/y.gguf", f"load {MARK}"),
        ("file=/srv/a b/c", f"file={MARK}"),
        ("D:\\models\\m.gguf", MARK),
        ("\\\\server\\share\\m", MARK),
        ("~/m.gguf", MARK),
        ("./m.gguf", MARK),
        ("step:7", "step:7"),
    ],
)
def test_paths_in_range_texts(text: str, left: str) -> None:
    assert without_paths(text) == left


@pytest.mark.parametrize("name", ["operator/<int>(a, b)", "void f<(T)1 / 2>(x*)", "k<a::b, 3>(float const*)"])
def test_kernel_names_with_slashes_stay(name: str, tmp_path: Path) -> None:
    trace = gen.Trace()
    process = trace.process()
    process.device(trace.gpu(gen.H200))
    end = process.launch(gen.Kernel("k", demangled=name), 100_000, 2000)
    process.launch(gen.Kernel("k", demangled=name), end + 10, 2000)
    scrub(trace.write(tmp_path / "in.sqlite"), tmp_path / "out.sqlite")
    assert open_trace(tmp_path / "out.sqlite").names.full == (name,)


# ---------------------------------------------------------------- the target


@pytest.fixture
def small(tmp_path: Path) -> Path:
    trace = gen.Trace()
    process = trace.process()
    process.device(trace.gpu(gen.H200))
    process.launch(gen.Kernel("k"), 100_000, 2000)
    return trace.write(tmp_path / "in.sqlite")


def test_the_source_is_never_the_target(small: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(small)
    hard = tmp_path / "hard.sqlite"
    hard.hardlink_to(small)
    for target in (small, link, hard):
        with pytest.raises(RefusedError, match="is the export itself"):
            scrub(small, target, force=True)


def test_an_existing_target_needs_force(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.sqlite"
    target.write_text("mine")
    with pytest.raises(RefusedError, match="--force"):
        scrub(small, target)
    assert target.read_text() == "mine"
    scrub(small, target, force=True)
    assert len(open_trace(target).kernels.start) == 1


def test_a_damaged_source_leaves_the_target_alone(tmp_path: Path) -> None:
    raw = bytearray(data.trace("llama.cpp-14b-tg16-h200").read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 200_000] = b"\xff" * 200_000
    source, target = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    source.write_bytes(raw)
    target.write_text("mine")
    with pytest.raises(SchemaError, match=r"in\.sqlite"):
        scrub(source, target, force=True)
    assert target.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.sqlite", "out.sqlite"]


def test_a_packed_target(small: Path, tmp_path: Path) -> None:
    report = scrub(small, tmp_path / "out.sqlite.xz")
    assert isinstance(report, ScrubReport)
    assert lzma.decompress((tmp_path / "out.sqlite.xz").read_bytes())[:15] == b"SQLite format 3"
    assert len(open_trace(tmp_path / "out.sqlite.xz").kernels.start) == 1


def test_a_packed_source(tmp_path: Path) -> None:
    scrub(data.packed("cuda-python-graph-h200"), tmp_path / "out.sqlite")
    assert numbers(tmp_path / "out.sqlite") == numbers(data.trace("cuda-python-graph-h200"))


def test_a_folder_that_is_not_there(small: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be written"):
        scrub(small, tmp_path / "missing" / "out.sqlite")


def test_command(attrib: Attrib, small: Path, tmp_path: Path) -> None:
    document = attrib("scrub", small, tmp_path / "out.sqlite", "--json").json()
    assert document["schema"] == "attrib.scrub/1"
    assert document["kept_rows"][names.KERNEL] == 1
    assert "exists" in attrib("scrub", small, tmp_path / "out.sqlite").refusal()
    again = attrib("scrub", small, tmp_path / "out.sqlite", "--force")
    assert again.code == 0
    assert "PROCESSES" in again.out
    assert "not a SQLite database" in attrib("scrub", Path(__file__), tmp_path / "x.sqlite").refusal()
