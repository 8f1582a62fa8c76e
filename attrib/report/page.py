"""The page itself: a document set into the template with its styles and scripts, as one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attrib import palette
from attrib.compare import Comparison, compare
from attrib.compare_sides import Side
from attrib.errors import RefusedError
from attrib.files import write_whole
from attrib.jsonout import clean
from attrib.report.facts import Fact, pair_facts
from attrib.report.run import RunPart, run_part
from attrib.report.subject import Subject
from attrib.report.verdict import Verdict, pair_verdict

SCHEMA = "attrib.report/1"
SUFFIXES = (".html", ".htm")
STYLES = ("base.css", "parts.css", "charts.css", "print.css")
SCRIPTS = (
    "base.js", "format.js", "theme.js", "svg.js", "grid.js", "census.js", "scene.js", "paint.js", "timeline.js",
    "heat.js", "rates.js", "anatomy.js", "pair.js", "main.js",
)  # fmt: skip
"""In the order they run; all share one function scope."""


@dataclass(frozen=True, repr=False)
class Report:
    """A finished report: of one run, or of a pair when `comparison` is there."""

    title: str
    verdict: Verdict
    facts: tuple[Fact, ...]
    runs: tuple[RunPart, ...]
    comparison: Comparison | None

    def __repr__(self) -> str:
        return f"<Report of {self.title}: {self.verdict.headline}>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything that travels with the numbers."""
        return self.comparison.warnings if self.comparison is not None else self.runs[0].warnings

    def to_json(self) -> dict[str, Any]:
        """The document the page embeds; unknown values are null."""
        found = {
            "schema": SCHEMA,
            "title": self.title,
            "verdict": asdict(self.verdict),
            "runs": [part.document for part in self.runs],
            "comparison": self.comparison.to_json() if self.comparison is not None else None,
            "palette": {
                "categories": {name: asdict(ink) for name, ink in palette.categories().items()},
                **{name.lower(): asdict(getattr(palette, name)) for name in ("BAR", "BELOW", "BAND")},
            },
        }
        body: dict[str, Any] = clean(found)
        return body

    def to_html(self) -> str:
        """The whole page. It may load nothing and run no script but its own: its policy names their hash."""
        assets = files("attrib").joinpath("report").joinpath("assets")

        def joined(names: Iterable[str]) -> str:
            return "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in names)

        script = f'(() => {{\n"use strict";\n{joined(SCRIPTS)}\n}})();\n'
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return (
            _environment()
            .get_template("page.html")
            .render(
                report=self,
                sides="AB" if self.comparison is not None else "",
                document=self.to_json(),
                style=Markup(joined(STYLES)),
                script=Markup(script),
                script_hash=f"sha256-{digest}",
            )
        )

    def write(self, path: str | Path) -> None:
        """Write the page whole; raises RefusedError for an ending that no browser opens as a page."""
        target = Path(path)
        if target.suffix.lower() not in SUFFIXES:
            raise RefusedError(f"{path}: a report is a page; give a name that ends in {' or '.join(SUFFIXES)}")
        text = self.to_html()
        write_whole(target, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def run_report(subject: Subject, rate_class: str | None = None) -> Report:
    """A report about one run; `rate_class` is as for a census."""
    part = run_part(subject, rate_class)
    return Report(subject.label, part.verdict, part.facts, (part,), None)


def pair_report(a: Subject, b: Subject, force: bool = False, rate_class: str | None = None) -> Report:
    """A report about where a step of `b` takes longer or less than one of `a`; refuses what `compare` refuses."""
    found = compare(Side.of(a.attribution, a.label), Side.of(b.attribution, b.label), force)
    runs = tuple(run_part(subject, rate_class) for subject in (a, b))
    return Report(f"{a.label} and {b.label}", pair_verdict(found), tuple(pair_facts(found)), runs, found)


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("attrib.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # tojson escapes <, >, & and ' itself, so that no name can end the script element
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False}
    return found
