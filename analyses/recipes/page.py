"""The one page every recipe prints: question, arithmetic, command, result, verdict, and what it means here."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "attrib" / "demo_data"
RECORDED = ROOT / "tests" / "data"
MODEL = "qwen2.5-14b:q4_k_m"
BAR = 0.004
WIDTH = 112


@dataclass(frozen=True)
class Page:
    """One recipe's answer. `here` is what it means on the H200 the traces come from, `gb10` what the record says."""

    title: str
    question: str
    arithmetic: tuple[str, ...]
    command: str
    result: tuple[str, ...]
    verdict: str
    here: str
    gb10: str

    def show(self) -> None:
        """Print the page."""
        print(f"{self.title}\n")
        for name, lines in (
            ("question", (self.question,)),
            ("arithmetic", self.arithmetic),
            ("command", (self.command,)),
            ("result", self.result),
            ("verdict", (self.verdict,)),
            ("on H200", (self.here,)),
            ("on GB10", (self.gb10,)),
        ):
            for place, line in enumerate(lines):
                first = f"{name if place == 0 else '':<11}"
                print(textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=" " * 11))
