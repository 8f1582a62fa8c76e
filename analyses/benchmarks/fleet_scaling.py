"""How much faster two local workers read a fleet than one, and whether their memory stays flat.

    python analyses/benchmarks/fleet_scaling.py --copies 64 --workers 1 2

Copies a recorded trace and runs `attrib fleet` on the copies with each number of workers in turns, each run a process
of its own. Prints the time from the first task to the last row, the whole command's, and both as ratios to the first
number of workers; the best round of each counts, because whatever else runs on the machine only ever adds. The ratio
of the whole command is less: starting a cluster takes the same second or two however many files follow.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parents[2] / "attrib" / "demo_data" / "llama.cpp-14b-tg16-h200.sqlite.xz"


def timed(folder: Path, model: str, workers: int) -> dict[str, float]:
    """Seconds of one run of the command: reading and whole, and the load of the machine before it."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-c", "from attrib.cli import main; main()", "fleet", str(folder)]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--model", model, "--workers", str(workers), "--json"], capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - begin
    found: dict[str, Any] = json.loads(done.stdout)
    if found["read"] != found["traces"] or found["lost_workers"]:
        raise SystemExit(f"the fleet was not read as it should be: {found['warnings']}")
    return {"read_s": found["read_s"], "wall_s": wall, "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trace", type=Path, default=TRACE, help="the trace that is copied")
    parser.add_argument("--model", default="qwen2.5-14b:q4_k_m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    suffix = "".join(options.trace.suffixes[-2:]) if options.trace.suffix == ".xz" else options.trace.suffix
    with tempfile.TemporaryDirectory(prefix="attrib-fleet-") as temporary:
        for rank in range(options.copies):
            shutil.copyfile(options.trace, Path(temporary) / f"rank{rank}{suffix}")
        rounds = [
            {workers: timed(Path(temporary), options.model, workers) for workers in options.workers}
            for _ in range(options.rounds)
        ]
    best = {
        workers: {key: min(r[workers][key] for r in rounds) for key in ("read_s", "wall_s")}
        for workers in options.workers
    }
    first = best[options.workers[0]]
    ratios = {workers: {key: first[key] / value for key, value in found.items()} for workers, found in best.items()}
    if options.json:
        body = {"schema": "attrib.fleet_scaling/1", "copies": options.copies, "rounds": rounds}
        print(json.dumps(body | {"best": best, "ratios": ratios}, indent=1))
        return
    print(f"{options.copies} copies of {options.trace.name}, best of {options.rounds} rounds, {os.cpu_count()} cores")
    print(f"{'workers':>8}{'read s':>9}{'x':>7}{'whole s':>9}{'x':>7}  load before")
    for workers, found in best.items():
        loads = "/".join(f"{r[workers]['load']:.1f}" for r in rounds)
        ratio = ratios[workers]
        reading = f"{found['read_s']:9.2f}{ratio['read_s']:7.2f}"
        print(f"{workers:>8}{reading}{found['wall_s']:9.2f}{ratio['wall_s']:7.2f}  {loads}")


if __name__ == "__main__":
    main()
