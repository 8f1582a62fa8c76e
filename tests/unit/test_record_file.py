"""`attrib record FILE.gguf@tg128`: a user's own file goes to the engine as it was named, and names the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Attrib
from tests.helpers import fake_tools as fake


@pytest.mark.parametrize(("at", "anchor"), [("@tg128", "tg128"), (":@3254", "@3254")])
def test_a_file_is_recorded(
    attrib: Attrib, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, anchor: str
) -> None:
    work = fake.install(tmp_path, monkeypatch)
    monkeypatch.setenv("FAKE_TRACE", str(fake.decode_trace().write(tmp_path / "source.sqlite")))
    monkeypatch.setenv("FAKE_MANIFEST", str(fake.write_manifest(tmp_path / "source.json")))
    model = work / "my model.Q4_1.gguf"
    model.write_bytes(b"GGUF and more")
    found = attrib("record", f"{model}{at}", "--steps", fake.TRACED, "--windows", 1, "--json").json()
    assert found["model"] == str(model)
    assert found["anchor"] == f"my model.Q4_1:{anchor}"
    assert found["census"]["ledger"]["closure_ns"] == 0
    stored = [path.name for path in (work / "runs").iterdir() if path.is_dir()]
    assert stored == [found["run"]]
    assert " " not in found["run"]
    assert model.read_bytes() == b"GGUF and more"
