"""What the rules know of a trace: matched kernels by rule file, and rules proposed for the largest that none knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attrib import rules as rulebook
from attrib.categories import OTHER, category_of
from attrib.jsonout import document
from attrib.steps import believable
from attrib.trace import Trace

SCHEMA = "attrib.rules/1"
WORDS = "words alone"
"""Matched by no rule, and given a category by a word in the function name (`categories.toml`)."""
UNKNOWN = "nothing"
TOP = 10
LINE = 100
"""Columns of a line that is proposed."""


@dataclass(frozen=True)
class Share:
    """Part of the kernels of a trace; kernel time is the sum of durations, in seconds."""

    launches: int
    seconds: float
    kernels: int
    """distinct functions"""


@dataclass(frozen=True)
class Unmatched:
    """A function that no rule knows, with what its words say and the rule that would make it certain."""

    function: str
    example: str
    """one of its demangled names"""
    category: str
    share: Share

    @property
    def proposal(self) -> str:
        """A `[[kernel]]` rule ready to paste into a rule file; a long name by how it begins and ends."""
        hint = "" if self.category != OTHER else "  # say which: see `attrib rules list`"
        kept = len(self.function)
        while len(line := f"function = {_quoted(_pattern(self.function, kept))}") > LINE:
            kept = min(kept, LINE) - 2
        return f'[[kernel]]\ncategory = "{self.category}"{hint}\n{line}\n'


def _pattern(function: str, kept: int) -> str:
    """Of the name, or of so many characters at its begin and end."""
    if kept >= len(function):
        return f"^{re.escape(function)}$"
    tail = kept // 3
    return f"^{re.escape(function[: kept - tail])}.*{re.escape(function[len(function) - tail :])}$"


def _quoted(pattern: str) -> str:
    if "'" not in pattern:
        return f"'{pattern}'"
    return '"' + pattern.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Check:
    """How much of a trace's kernel time each rule file knows, by file and by category."""

    trace: str
    total: Share
    files: dict[str, Share]
    """by rule file in the order they are tried, then `words alone` and `nothing`"""
    categories: dict[str, Share]
    streams: dict[str, int]
    """launches that a file's stream rules would give weight bytes, with --model"""
    unmatched: tuple[Unmatched, ...]
    """largest first"""
    excluded: dict[str, int]
    """launches by the reason they have no part in it"""

    @property
    def matched(self) -> float:
        """Share of kernel time that rule files know, 0 to 1."""
        return self.of_time(sum(s.seconds for name, s in self.files.items() if name not in (WORDS, UNKNOWN)))

    def of_time(self, seconds: float) -> float:
        """Seconds as a share of kernel time, 0 to 1; NaN where no launch took any."""
        return seconds / self.total.seconds if self.total.seconds else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Shares in percent of kernel time; proposals as TOML text."""

        def share(part: Share) -> dict[str, Any]:
            return {
                "launches": part.launches,
                "kernels": part.kernels,
                "ms": part.seconds * 1e3,
                "pct_of_kernel_time": 100 * self.of_time(part.seconds),
            }

        return document(
            {
                "schema": SCHEMA,
                "file": self.trace,
                "matched_pct_of_kernel_time": 100 * self.matched,
                "total": share(self.total),
                "files": {name: share(part) for name, part in self.files.items()},
                "categories": {name: share(part) for name, part in self.categories.items()},
                "streams": self.streams,
                "excluded": self.excluded,
                "unmatched": [
                    {
                        "function": one.function,
                        "example": one.example,
                        "category": one.category,
                        **share(one.share),
                        "rule": one.proposal,
                    }
                    for one in self.unmatched
                ],
            }
        )


def check(trace: Trace, given: rulebook.Rules | None = None, top: int = TOP) -> Check:
    """Match every kernel of a trace against the rules, a given file before those shipped.

    Launches with times that cannot be have no part in it and are counted. The `top` functions with the most time that
    no rule knows are listed. Raises NoDataError when no launch has usable times.
    """
    kernels, names = trace.kernels, trace.names
    excluded: Counter[str] = Counter()
    good = believable(trace, excluded)
    variants = kernels.variant[good]
    number = len(names.function)
    launches = np.bincount(variants, minlength=number)
    nanoseconds = np.bincount(variants, weights=(kernels.end - kernels.start)[good], minlength=number)
    books = rulebook.in_effect(given)
    source, category = [], []
    for function, full in zip(names.function, names.full, strict=True):
        found = rulebook.match(books, function, full)
        words = category_of(function)
        source.append(found[0].name if found is not None else UNKNOWN if words == OTHER else WORDS)
        category.append(found[1].category if found is not None else words)

    def share(wanted: Sequence[int]) -> Share:
        functions = {names.function[v] for v in wanted}
        return Share(int(launches[wanted].sum()), float(nanoseconds[wanted].sum()) * 1e-9, len(functions))

    def by(labels: Sequence[str], order: Sequence[str]) -> dict[str, Share]:
        found = {name: [v for v in seen if labels[v] == name] for name in order}
        return {name: share(wanted) for name, wanted in found.items() if wanted}

    seen = [int(v) for v in np.flatnonzero(launches)]
    order = list(dict.fromkeys([*(book.name for book in books), WORDS, UNKNOWN]))
    shares = by(category, list(dict.fromkeys(category)))
    unknown: dict[str, list[int]] = {}
    for v in seen:
        if source[v] in (WORDS, UNKNOWN):
            unknown.setdefault(names.function[v], []).append(v)
    unmatched = [Unmatched(f, names.full[vs[0]], category[vs[0]], share(vs)) for f, vs in unknown.items()]
    unmatched.sort(key=lambda one: (-one.share.seconds, one.function))
    streams = {
        book.name: int(sum(launches[v] for v in seen if book.stream(names.function[v]) is not None)) for book in books
    }
    return Check(
        trace=trace.path.name,
        total=share(seen),
        files=by(source, order),
        categories=dict(sorted(shares.items(), key=lambda item: -item[1].seconds)),
        streams={name: count for name, count in streams.items() if count},
        unmatched=tuple(unmatched[:top]),
        excluded=dict(excluded),
    )
