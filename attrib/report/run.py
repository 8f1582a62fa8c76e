"""A report about one run: census, stragglers, anatomy, heat map and timeline as one JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attrib.anatomy import Anatomy, anatomy
from attrib.attribution import Attribution
from attrib.census import Census, census
from attrib.device import Roofline
from attrib.errors import NoDataError
from attrib.jsonout import clean
from attrib.report.facts import Fact, run_facts
from attrib.report.heat import heat
from attrib.report.provenance import provenance
from attrib.report.subject import Subject
from attrib.report.timeline import timeline
from attrib.report.verdict import Verdict, run_verdict
from attrib.stragglers import Stragglers
from attrib.stragglers import stragglers as rank

MOST_ROWS = 5000
"""Rows of a census by kernel or layer that a page holds; the command line prints them all."""
DIGITS = 7
COLUMNS = (
    "site", "category", "launches", "bytes", "kv_bytes", "exclusive_us", "duration_us", "gbps", "gbps_duration",
    "pct_of_peak", "class_gbps", "ms_per_step", "pct_of_span", "spread_pct", "recoverable_ms", "straggler",
    "impossible", "overlapped", "wait_us",
)  # fmt: skip
"""Keys of a census row, in JSON names, that the page's tables show."""


@dataclass(frozen=True)
class RunPart:
    """Everything a page says about one run: results, and the document made of them."""

    subject: Subject
    census: Census
    anatomy: Anatomy
    stragglers: Stragglers | None
    verdict: Verdict
    facts: tuple[Fact, ...]
    provenance: list[tuple[str, str]]
    warnings: tuple[str, ...]
    document: dict[str, Any]


def run_part(subject: Subject, rate_class: str | None = None) -> RunPart:
    """Analyse a subject for a page; `rate_class` is as for a census."""
    attribution = subject.attribution
    by_site = census(attribution, rate_class)
    by_kernel, by_layer = (census(attribution, rate_class, by) for by in ("kernel", "layer"))
    parts = anatomy(attribution)
    ranked, lacking = _rank(by_site)
    step = timeline(attribution)
    used = np.unique(attribution.trace.kernels.variant[attribution.steps.rows[0]])
    places = {int(variant): place for place, variant in enumerate(used)}
    warnings = tuple(dict.fromkeys((*by_site.warnings, *parts.warnings)))
    document = {
        "label": subject.label,
        "census": by_site.to_json(),
        "class_curve": _curve(by_site),
        "stages": by_site.stages.describe() if by_site.stages is not None else None,
        "rows": {name: _rows(found) for name, found in (("site", by_site), ("kernel", by_kernel), ("layer", by_layer))},
        "stragglers": ranked.to_json() if ranked is not None else None,
        "stragglers_lack": lacking,
        "anatomy": parts.to_json(),
        "heat": heat(attribution, by_layer),
        "timeline": step.to_json(places),
        **_names(attribution, places),
        "warnings": list(warnings),
    }
    return RunPart(
        subject=subject,
        census=by_site,
        anatomy=parts,
        stragglers=ranked,
        verdict=run_verdict(by_site, ranked, lacking),
        facts=tuple(run_facts(subject, by_site, parts, ranked)),
        provenance=provenance(subject, by_site),
        warnings=warnings,
        document=clean(document),
    )


def _rank(by_site: Census) -> tuple[Stragglers | None, str]:
    """The ranking, or a sentence that says why there is none."""
    try:
        return rank(by_site), ""
    except NoDataError as error:
        text = str(error)
        return None, f"{text[:1].upper()}{text[1:]}."


def _curve(by_site: Census) -> dict[str, float] | None:
    """The class as t0 in µs and bandwidth in GB/s, or as a band in GB/s."""
    if by_site.rate_class is None:
        return None
    found = by_site.rate_class.rate
    if isinstance(found, Roofline):
        return {"t0_us": found.t0 * 1e6, "bw_gbps": found.bandwidth / 1e9}
    return {"lo_gbps": found.lo / 1e9, "hi_gbps": found.hi / 1e9}


def _rows(found: Census) -> dict[str, Any]:
    """The census as columns; the site census itself is in the document with every digit."""
    sites = found.to_json()["sites"][:MOST_ROWS]
    return {
        "omitted": len(found.rows) - len(sites),
        "columns": {key: [_short(row[key]) for row in sites] for key in COLUMNS},
    }


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _names(attribution: Attribution, places: dict[int, int]) -> dict[str, Any]:
    """Sites, distinct kernel variants, and which variants each row of a census is made of."""
    trace, traffic = attribution.trace, attribution.traffic
    names, shapes = trace.names, trace.kernels.variants
    variants = [
        {
            "kernel": names.full[variant],
            "label": names.label[variant],
            "grid": [int(size) for size in shapes.grid[variant]],
            "block": [int(size) for size in shapes.block[variant]],
        }
        for variant in places
    ]
    first = trace.kernels.variant[attribution.steps.rows[0]]
    counts: dict[tuple[int, int], int] = {}
    for site, variant in zip(traffic.site.tolist(), first.tolist(), strict=True):
        key = (site, places[variant])
        counts[key] = counts.get(key, 0) + 1
    return {
        "sites": [{"site": s.key, "role": s.role, "quant": s.quant, "category": s.category} for s in traffic.sites],
        "variants": variants,
        "site_variants": [[site, variant, number] for (site, variant), number in counts.items()],
    }
