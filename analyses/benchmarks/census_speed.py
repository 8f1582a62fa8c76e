"""What a census of a large trace costs, next to one bare GROUP BY over the same kernel table.

    python analyses/benchmarks/census_speed.py --kernels 1000000 5000000

Scales a recorded trace (scale_trace.py), then times in turns, each run a process of its own: the GROUP BY through the
sqlite3 module and `attrib census --json` with each reader. Prints the median wall time, the processor time and the
peak memory of each, the wall time as a ratio to the GROUP BY of the same run, and the processor time per million
kernels, which stays the same from one size to the next where the time is linear. Linux and macOS.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scale_trace import scale

TRACE = Path(__file__).parents[2] / "attrib" / "demo_data" / "llama.cpp-14b-tg16-h200.sqlite.xz"
GROUP_BY = """
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute(
    'SELECT shortName, graphNodeId, COUNT(*), SUM("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL '
    "GROUP BY shortName, graphNodeId").fetchall()
"""
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def commands(trace: Path, model: str, readers: list[str]) -> dict[str, list[str]]:
    """Label and command line of everything that is timed."""
    census = [sys.executable, "-c", "from attrib.cli import main; main()", "census", str(trace), "--json"]
    return {"GROUP BY": [sys.executable, "-c", GROUP_BY, str(trace)]} | {
        f"census, {reader}": [*census, "--model", model, "--reader", reader] for reader in readers
    }


def timed(command: list[str]) -> dict[str, float]:
    """Wall and processor seconds and peak bytes of one process; its failure ends the benchmark."""
    # Modules are compiled once, as they are where a package is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {os.waitstatus_to_exitcode(status)}")
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * MAXRSS_BYTES}


def measure(trace: Path, kernels: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per command, medians over the rounds; commands take turns, so that a busy moment hits all of them."""
    todo = commands(trace, options.model, options.readers)
    for command in todo.values():
        timed(command)  # warms the page cache
    rounds = [{label: timed(command) for label, command in todo.items()} for _ in range(options.rounds)]
    rows = []
    for label in todo:
        row = {key: statistics.median(r[label][key] for r in rounds) for key in ("wall_s", "cpu_s", "peak_bytes")}
        ratio = statistics.median(r[label]["wall_s"] / r["GROUP BY"]["wall_s"] for r in rounds)
        per_million = row["cpu_s"] / kernels * 1e6
        rows.append({"what": label, **row, "ratio": ratio, "cpu_s_per_million": per_million})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--trace", type=Path, default=TRACE, help="the trace that is scaled")
    parser.add_argument("--model", default="qwen2.5-14b:q4_k_m")
    parser.add_argument("--readers", nargs="+", default=["pages", "sqlite"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where scaled traces are kept and found again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="attrib-scaled-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kernels in options.kernels:
            trace = folder / f"{options.trace.name.split('.sqlite')[0]}-{kernels}.sqlite"
            if not trace.exists():
                scale(options.trace, trace, kernels)
            size = trace.stat().st_size
            results.append({"kernels": kernels, "file_bytes": size, "rows": measure(trace, kernels, options)})
    if options.json:
        print(json.dumps({"schema": "attrib.census_speed/1", "rounds": options.rounds, "results": results}, indent=1))
        return
    for result in results:
        print(f"\n{result['kernels']:,} kernels, {result['file_bytes'] / 1e6:.0f} MB, {os.cpu_count()} cores")
        print(f"{'':20}{'wall s':>8}{'cpu s':>8}{'peak MB':>9}{'x GROUP BY':>12}{'cpu s/M':>9}")
        for row in result["rows"]:
            seconds = f"{row['wall_s']:8.2f}{row['cpu_s']:8.2f}"
            ratios = f"{row['ratio']:12.2f}{row['cpu_s_per_million']:9.3f}"
            print(f"{row['what']:20}{seconds}{row['peak_bytes'] / 1e6:9.0f}{ratios}")


if __name__ == "__main__":
    main()
