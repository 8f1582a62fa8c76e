"""Files appear whole or not at all, with the mode any other new file would have."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pandas as pd
import pytest

from attrib.errors import RefusedError
from attrib.files import numbered, require_distinct, write_csv, write_whole


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_writer_gets_the_suffix_and_the_file_the_usual_mode(tmp_path: Path) -> None:
    seen: list[Path] = []

    def write(path: Path) -> None:
        seen.append(path)
        assert not (tmp_path / "chart.png").exists()
        path.write_text("whole")

    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "chart.png", write)
    finally:
        os.umask(before)
    assert seen[0].suffix == ".png"
    assert seen[0].parent == tmp_path
    assert listing(tmp_path) == ["chart.png"]
    assert (tmp_path / "chart.png").read_text() == "whole"
    assert stat.S_IMODE((tmp_path / "chart.png").stat().st_mode) == 0o640


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.csv"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyError("writer")

    with pytest.raises(KeyError):
        write_whole(target, fail)
    assert (listing(tmp_path), target.read_text()) == (["a.csv"], "old")

    def full(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RefusedError, match=r"a\.csv cannot be written: No space left on device"):
        write_whole(target, full)
    assert (listing(tmp_path), target.read_text()) == (["a.csv"], "old")


def test_a_folder_that_is_not_there_or_not_a_folder(tmp_path: Path) -> None:
    for where in (tmp_path / "none" / "a.csv", tmp_path / "file" / "a.csv"):
        (tmp_path / "file").write_text("")
        with pytest.raises(RefusedError, match=r"a\.csv cannot be written: (No such file|Not a directory)"):
            write_whole(where, lambda path: None)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(RefusedError, match=r"folder\.csv cannot be written: Is a directory"):
        write_whole(tmp_path / "folder.csv", lambda path: None)
    assert listing(tmp_path) == ["file", "folder.csv"]


def test_unknown_values_are_empty_in_csv(tmp_path: Path) -> None:
    write_csv(pd.DataFrame({"site": ["a", "b,c"], "gbps": [1.5, None]}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == 'site,gbps\na,1.5\n"b,c",\n'


def test_several_results_are_numbered() -> None:
    assert numbered(Path("out/a.png"), 0, 1) == Path("out/a.png")
    assert [numbered(Path("out/a.b.png"), i, 2).name for i in range(2)] == ["a.b-1.png", "a.b-2.png"]


def test_a_device_or_pipe_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(RefusedError, match=r"pipe\.csv is not a regular file"):
        write_whole(tmp_path / "pipe.csv", lambda path: path.write_text("x"))
    assert (tmp_path / "pipe.csv").is_fifo()


def test_an_output_is_no_input_and_named_once(tmp_path: Path) -> None:
    source, link = tmp_path / "trace.sqlite", tmp_path / "link.csv"
    source.write_text("t")
    link.hardlink_to(source)
    require_distinct((None, tmp_path / "new.csv"), [source])
    with pytest.raises(RefusedError, match=r"link\.csv is an input"):
        require_distinct((link, None), [source])
    with pytest.raises(RefusedError, match="named for two outputs"):
        require_distinct((tmp_path / "x", tmp_path / "x"), [])
