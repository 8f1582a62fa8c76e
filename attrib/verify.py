"""Gates between two builds, each run by its own engine: equal dumps, equal greedy tokens, close logits.

A side runs as a process of its own, from its own tree where its build is a git revision, and leaves what it computed
in a file; the installed engine compares the two files. So builds may differ in anything, the engine's Python included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrib import capture
from attrib.builds import Side
from attrib.record import Target

GATES = ("dump", "greedy", "tolerance")
SCHEMA = "engine.verify/1"
_RAN = "attrib.verified/1"
# in one .npz: `dump/NAME` of each file of the dump, `tokens`, `logits`; empty where no gate asked for them. Calls only
# what the engine has had since its gates exist, because it runs in old trees too
_RUN = """
import sys
from pathlib import Path
from attrib.errors import AttribError
model, build, gates, gpu, out = sys.argv[1:]
try:
    import numpy
    from engine.config import resolve
    from engine.dispatch import load
    from engine.dump import save
    from engine.verify import run
    found = run(resolve(model, 1), load(build), tuple(gates.split(",")), int(gpu))
    named = {f"dump/{name}": data for name, data in found.dump.items()}
    save({**named, "tokens": numpy.array(found.tokens, numpy.int64), "logits": found.logits}, Path(out))
except AttribError as error:
    sys.exit(f"engine: {error}")
print('{"schema": "attrib.verified/1"}')
"""
_JUDGE = """
import json, sys
import numpy
from engine.verify import Run, judge
gates, *paths = sys.argv[1:]
runs = []
for path in paths:
    with numpy.load(path) as stored:
        dump = {name.removeprefix("dump/"): stored[name] for name in stored.files if name.startswith("dump/")}
        runs.append(Run(dump, stored["tokens"].tolist(), stored["logits"]))
print(json.dumps({"schema": "engine.verify/1", "gates": [v.as_json() for v in judge(*runs, tuple(gates.split(",")))]}))
"""


def verify(
    target: Target,
    base: Side,
    new: Side,
    gates: Sequence[str],
    gpu: int = 0,
    limit_s: float = 900.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Each gate's `gate`, `passed` and `notes` (sentences), for the target's model.

    Raises CaptureError with the engine's sentence when a side cannot run.
    """
    chosen = ",".join(gates)
    with tempfile.TemporaryDirectory(prefix="attrib-verify-") as folder:
        paths = []
        for name, side in (("base", base), ("new", new)):
            progress(f"gates {chosen}: {name}, {side.given}")
            path = Path(folder) / f"{name}.npz"
            command = side.script(_RUN, target.model, side.build, chosen, str(gpu), str(path))
            capture.engine_json(capture.run_program(command, limit_s), _RAN)
            paths.append(str(path))
        judged = Side("installed", "", "").script(_JUDGE, chosen, *paths)
        found: list[dict[str, Any]] = capture.engine_json(capture.run_program(judged, limit_s), SCHEMA)["gates"]
    return [{"gate": g["gate"], "passed": g["passed"], "notes": list(g["notes"])} for g in found]
