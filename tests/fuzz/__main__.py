"""Coverage-guided fuzzing of the GGUF reader, through atheris (libFuzzer for Python).

    python -m tests.fuzz WORK_FOLDER -max_total_time=600

Options after the folders are libFuzzer's. An input is a file, after a byte of 0, or choices that change a sound file.
New inputs go to the first folder. A file that breaks the promise of `gguf_header.check` is written to the current
folder as broken-HASH.gguf, and belongs into tests/fuzz/corpus once the reader is right.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["engine"]):
    from tests.fuzz.gguf_header import ARCHITECTURES, check, edited, seed

MOST_BYTES = 20 << 10
DICTIONARY = (
    "GGUF",
    "general.architecture",
    "general.alignment",
    "split.count",
    "tokenizer.ggml.tokens",
    *(
        f"{arch}.{key}"
        for arch in ARCHITECTURES
        for key in ("block_count", "attention.head_count", "rope.scaling.type")
    ),
    *(f"blk.0.{name}.weight" for name in ("attn_q", "attn_q_norm", "ffn_down")),
    "rope_freqs.weight",
)


def main() -> None:
    """Write the seeds, hand over to libFuzzer, which ends the process."""
    folders = [Path(arg) for arg in sys.argv[1:] if not arg.startswith("-")]
    for arch in ARCHITECTURES if folders else ():
        folders[0].mkdir(parents=True, exist_ok=True)
        (folders[0] / f"seed-{arch}").write_bytes(b"\0" + seed(arch))
    with tempfile.TemporaryDirectory() as folder:
        words, path = Path(folder) / "words", Path(folder) / "fuzzed.gguf"
        words.write_text("".join(f'"{word}"\n' for word in DICTIONARY), encoding="utf-8")
        options = [*sys.argv, f"-max_len={MOST_BYTES}", f"-dict={words}", "-rss_limit_mb=2048", "-timeout=10"]

        def one(data: bytes) -> None:
            whole = data[1:] if data[:1] == b"\0" else edited(atheris.FuzzedDataProvider(data))
            try:
                check(whole, path)
            except BaseException:
                Path(f"broken-{hashlib.sha256(whole).hexdigest()[:16]}.gguf").write_bytes(whole)
                raise

        atheris.Setup(options, one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
