"""Reports to test: of the recorded traces, of a step worked out by hand, and of a trace whose names are hostile."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from attrib.attribution import Options
from attrib.report.page import Report, pair_report, run_report
from attrib.report.subject import Subject, load
from tests.helpers import data, persistent_step, small_step
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

DECODE, LONG = "llama.cpp-14b-tg16-h200", "llama.cpp-14b-d3254-tg16-h200"
ENGINE = "engine-14b-d3254-h200"
MODEL = "qwen2.5-14b:q4_k_m"
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    'a" onmouseover="alert(1)\' & &lt;b&gt; \u2028 | `x` \\',
    "<!--<script>",
)


@cache
def subject(name: str, model: str | None = MODEL, anchor: str = "") -> Subject:
    """A recorded trace with its bytes."""
    if name == ENGINE:
        return load(data.trace(name), Options(manifest=data.DATA / f"{name}.manifest.json"))
    return load(data.trace(name), Options(model=model, anchor=anchor))


@cache
def recorded(name: str, model: str | None = MODEL) -> Report:
    """The report of a recorded trace."""
    return run_report(subject(name, model))


@cache
def pair() -> Report:
    """llama.cpp against the engine at one KV length."""
    return pair_report(subject(LONG, MODEL, "14b:@3254"), subject(ENGINE))


def small(folder: Path) -> Report:
    """The report of the step worked out by hand."""
    trace, manifest = small_step.write(folder)
    return run_report(load(trace, Options(manifest=manifest)), "220:225")


def staged(folder: Path) -> Report:
    """The report of a step that one persistent kernel runs, divided into its stages."""
    trace, manifest = persistent_step.write(folder)
    return run_report(load(trace, Options(manifest=manifest)), "2000:3000")


def hostile(folder: Path) -> Report:
    """A report whose kernels, file and build have names that try to become markup."""
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    graph = process.graph([Node(Kernel(f"k{i}", name), 2000 + 100 * i, gap=50) for i, name in enumerate(HOSTILE)])
    at = 1_000_000
    for _ in range(4):
        at = process.replay(graph, at) + 9000
    path = trace.write(folder / "<b>&\"'.sqlite")
    return run_report(load(path, Options(build=HOSTILE[0], anchor=HOSTILE[1])))


class Page(HTMLParser):
    """What a browser would make of a page: elements by name with their attributes, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, text: str) -> None:
        if self._script:
            self.scripts[-1] += text


def of_first_run(report: Report) -> dict[str, Any]:
    """The document of the first run of a report."""
    found: dict[str, Any] = report.to_json()["runs"][0]
    return found
