"""Files beside a sound trace that do not belong to it or are damaged: manifests, byte tables, rule files, models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrib import manifest as mf
from tests.helpers import gguf_bytes as gguf
from tests.helpers import persistent_step, small_step
from tests.helpers.faults.case import Fault, Make, Refused, Right
from tests.helpers.faults.small import census

KERNEL_RULE = 'name = "mine"\n[[kernel]]\ncategory = "norm"\nfunction = "^rms"\n'
LAYERS = gguf.header(
    gguf.entry("token_embd.weight", (32, 4)),
    gguf.entry("blk.0.attn_q.weight", (32, 32), offset=512),
    pairs=(
        gguf.pair("general.architecture", 8, gguf.text("qwen2")),
        gguf.pair("qwen2.block_count", 4, (2**32 - 1).to_bytes(4, "little")),
    ),
)
STEP = Right({"steps.count": 3, "steps.launches": 4, "steps.span_ms": 0.03})


def _manifest(change: Callable[[dict[str, Any]], object]) -> Make:
    """The manifest of the trace after `change`, which edits its document."""

    def make(folder: Path) -> list[object]:
        trace, manifest = small_step.write(folder)
        document = json.loads(manifest.read_text())
        change(document)
        manifest.write_text(json.dumps(document))
        return census(trace, "--manifest", manifest)

    return make


def _node(**fields: object) -> Make:
    return _manifest(lambda document: document["graphs"][0]["nodes"][1].update(fields))


def _pipe(option: str, name: str) -> Make:
    """An option with a pipe that nobody writes."""

    def make(folder: Path) -> list[object]:
        trace, manifest = small_step.write(folder)
        manifest.unlink()
        os.mkfifo(folder / name)
        return census(trace, option, folder / name)

    return make


def _stamps(scale: float) -> Make:
    """A run directory whose persistent kernel says it ran `scale` times as long as the trace saw."""

    def make(folder: Path) -> list[object]:
        persistent_step.write(folder, document=persistent_step.stamps([scale * s for s in persistent_step.SCALES]))
        return census(folder)

    return make


def _file(option: str, name: str, content: bytes | None) -> Make:
    """An option with a file of this content; None makes a directory of the name."""

    def make(folder: Path) -> list[object]:
        trace, manifest = small_step.write(folder)
        manifest.unlink()
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
        return census(trace, option, folder / name)

    return make


def _text(option: str, name: str, text: str) -> Make:
    return _file(option, name, text.encode())


def _run_directory(folder: Path) -> list[object]:
    """A run directory into which the manifest of another run was copied."""
    _, manifest = small_step.write(folder)
    other = small_step.PARTS[:2] + small_step.PARTS[1:3]
    mf.dump(small_step.manifest(other), manifest)
    return census(folder)


def _not_finite(text: str) -> Callable[[Path], list[object]]:
    def make(folder: Path) -> list[object]:
        trace, manifest = small_step.write(folder)
        manifest.write_text(manifest.read_text().replace("2000000", text))
        return census(trace, "--manifest", manifest)

    return make


MANIFESTS = (
    Fault("other-run", "the manifest of another run", _node(kernel="gemv_q5"), Refused("not from the same run")),
    Fault("other-grid", "a manifest with another grid", _node(grid=[77, 1, 1]), Refused("not from the same run")),
    Fault(
        "fewer-nodes",
        "a manifest with a node less",
        _manifest(lambda d: d["graphs"][0]["nodes"].pop()),
        Refused("has 3 nodes and a step of trace.sqlite has 4 launches"),
    ),
    Fault(
        "run-directory",
        "a run directory with the manifest of another run",
        _run_directory,
        Refused("not from the same run"),
    ),
    Fault("nan-bytes", "NaN for the bytes of a node", _not_finite("NaN"), Refused("manifest.json")),
    Fault("infinite-bytes", "Infinity for the bytes of a node", _not_finite("Infinity"), Refused("manifest.json")),
    Fault(
        "huge-bytes", "a number of 400 digits for the bytes of a node", _not_finite("9" * 400), Refused("manifest.json")
    ),
    Fault("negative-bytes", "negative bytes of a node", _node(weight_bytes=-1), Refused("manifest.json")),
    Fault("text-bytes", "text for the bytes of a node", _node(weight_bytes="many"), Refused("manifest.json")),
    Fault("no-kernel", "a node without a kernel name", _node(kernel=None), Refused("manifest.json")),
    Fault("gap", "node numbers with a gap", _node(i=9), Refused("manifest.json")),
    Fault(
        "other-schema",
        "a manifest of a schema to come",
        _manifest(lambda d: d.update(schema="attrib.manifest/9")),
        Refused("manifest.json"),
    ),
    Fault("no-graphs", "a manifest without graphs", _manifest(lambda d: d.pop("graphs")), Refused("manifest.json")),
    Fault(
        "cut-json",
        "JSON cut in half",
        _text("--manifest", "m.json", '{"schema": "attrib.manifest/1", "dev'),
        Refused("m.json"),
    ),
    Fault("empty-json", "an empty manifest", _text("--manifest", "m.json", ""), Refused("m.json")),
    Fault("list-json", "a JSON list for a manifest", _text("--manifest", "m.json", "[1, 2]"), Refused("m.json")),
    Fault("deep-json", "JSON nested 100,000 deep", _text("--manifest", "m.json", "[" * 100_000), Refused("m.json")),
    Fault(
        "latin-json",
        "a manifest that is no UTF-8",
        _file("--manifest", "m.json", b'{"schema": "\xe9"}'),
        Refused("m.json"),
    ),
    Fault("directory-json", "a directory for a manifest", _file("--manifest", "m.json", None), Refused("m.json")),
    Fault("pipe-json", "a named pipe for a manifest", _pipe("--manifest", "m.json"), Refused("not a regular file")),
    Fault(
        "stamps-other-run",
        "stages.json whose stamps reach over three times the kernel's duration",
        _stamps(3.0),
        Refused("not from the same run"),
    ),
)

TABLES = (
    Fault("bytes-empty", "an empty byte table", _text("--bytes", "b.csv", ""), Refused("b.csv")),
    Fault("bytes-binary", "noise for a byte table", _file("--bytes", "b.csv", bytes(range(256)) * 9), Refused("b.csv")),
    Fault(
        "bytes-columns",
        "a byte table without the column bytes",
        _text("--bytes", "b.csv", "kernel,size\ngemv,5\n"),
        Refused("has no column 'bytes'"),
    ),
    Fault(
        "bytes-nan",
        "NaN bytes in a byte table",
        _text("--bytes", "b.csv", "kernel,bytes\ngemv,nan\n"),
        Refused("line 2"),
    ),
    Fault(
        "bytes-thousands",
        "thousands separators in a byte table",
        _text("--bytes", "b.csv", "kernel,bytes\ngemv,2,000,000\n"),
        Refused("without thousands separators"),
    ),
    Fault(
        "bytes-pattern",
        "a pattern that is none in a byte table",
        _text("--bytes", "b.csv", "kernel,bytes\n(,5\n"),
        Refused("line 2"),
    ),
    Fault(
        "bytes-grid",
        "a grid that is none in a byte table",
        _text("--bytes", "b.csv", "kernel,bytes,grid\ngemv,5,big\n"),
        Refused("line 2"),
    ),
    Fault(
        "bytes-unused",
        "a byte table that matches nothing",
        _text("--bytes", "b.csv", "kernel,bytes\nzzz,5\n"),
        Right({**STEP.facts, "warnings~": "no launch matches line 2 (zzz)"}),
    ),
    Fault(
        "rules-toml",
        "a rule file that is no TOML",
        _text("--rules", "r.toml", "name = "),
        Refused("r.toml is not valid"),
    ),
    Fault("rules-empty", "an empty rule file", _text("--rules", "r.toml", ""), Refused("r.toml is not valid")),
    Fault(
        "rules-category",
        "a rule with a category that is none",
        _text("--rules", "r.toml", KERNEL_RULE.replace('"norm"', '"magic"')),
        Refused("category 'magic' is not one of"),
    ),
    Fault(
        "rules-pattern",
        "a rule with a pattern that is none",
        _text("--rules", "r.toml", KERNEL_RULE.replace('"^rms"', '"("')),
        Refused("r.toml is not valid"),
    ),
    Fault("rules", "a rule file of the user's own", _text("--rules", "r.toml", KERNEL_RULE), STEP),
    Fault("model-unknown", "a model that is not built in", _text("--model", "gpt-9", ""), Refused("is not built in")),
    Fault("gguf-text", "text for a GGUF file", _text("--model", "m.gguf", "hello"), Refused("m.gguf")),
    Fault(
        "gguf-cut",
        "the first bytes of a GGUF file",
        _file("--model", "m.gguf", b"GGUF\3\0\0\0" + bytes(6)),
        Refused("m.gguf"),
    ),
    Fault(
        "gguf-counts",
        "a GGUF file that claims 2^60 tensors",
        _file("--model", "m.gguf", b"GGUF\3\0\0\0" + (1 << 60).to_bytes(8, "little") * 2 + bytes(64)),
        Refused("m.gguf"),
    ),
    Fault(
        "gguf-layers",
        "a GGUF file that claims 4,294,967,295 layers and has tensors of one",
        _file("--model", "m.gguf", LAYERS),
        Refused("block_count is 4294967295, and it has the tensors of 1"),
    ),
    Fault("bytes-pipe", "a named pipe for a byte table", _pipe("--bytes", "b.csv"), Refused("not a regular file")),
    Fault("rules-pipe", "a named pipe for a rule file", _pipe("--rules", "r.toml"), Refused("not a regular file")),
    Fault("gguf-pipe", "a named pipe for a GGUF file", _pipe("--model", "m.gguf"), Refused("not a regular file")),
)

CASES = (*MANIFESTS, *TABLES)
