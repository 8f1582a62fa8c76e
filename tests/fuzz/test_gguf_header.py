"""The reader against the fuzzer's sound files, its past findings, random changes, and a short run of the fuzzer."""

from __future__ import annotations

import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.gguf_header import ARCHITECTURES, CORPUS, check, edited, seed

SECONDS = 10


class RandomPick:
    """Choices by a seeded generator, where the fuzzer would steer them."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)

    def ConsumeIntInRange(self, low: int, high: int) -> int:  # noqa: N802
        edges = [low, high, min(low + 1, high)]
        return self.random.choice([self.random.randint(low, high), *edges])

    def ConsumeBytes(self, count: int) -> bytes:  # noqa: N802
        return self.random.choice([self.random.randbytes(count), bytes(count), b"\xff" * count])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_sound_files_are_models(arch: str, tmp_path: Path) -> None:
    assert check(seed(arch), tmp_path / "m.gguf")


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_what_once_broke_the_reader_is_a_sentence(path: Path, tmp_path: Path) -> None:
    check(path.read_bytes(), tmp_path / "m.gguf")


def test_random_changes_are_models_or_sentences(tmp_path: Path) -> None:
    sound = sum(check(edited(RandomPick(number)), tmp_path / "m.gguf") for number in range(400))
    assert 40 < sound < 360


def test_a_short_run_of_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install '.[fuzz]'; it has no build for this system or Python)")
    command = [sys.executable, "-m", "tests.fuzz", str(tmp_path / "work"), f"-max_total_time={SECONDS}", "-seed=1"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=10 * SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr
