"""Stragglers: sites under the class, ranked by the time per step that class rate would give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attrib.census import Census, SiteRow
from attrib.census_groups import NOUNS
from attrib.device import GIGA
from attrib.errors import NoDataError
from attrib.jsonout import document
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.stragglers/1"


@dataclass(frozen=True, repr=False)
class Stragglers:
    """The sites of a census that stream under the class, most recoverable first; seconds per step."""

    census: Census
    rows: tuple[SiteRow, ...]

    @property
    def recoverable(self) -> float:
        """Seconds per step that all of them together would give back at class rate."""
        return sum(row.recoverable for row in self.rows)

    def __repr__(self) -> str:
        return f"<Stragglers: {self.describe()}>"

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(index=False, na_rep="–"))

    def to_json(self) -> dict[str, Any]:
        """Ranking with the class and totals; unknown values are null."""
        full = self.census.to_json()
        sites = {id(row): entry for row, entry in zip(self.census.rows, full["sites"], strict=True)}
        return document(
            {
                "schema": SCHEMA,
                **{key: full[key] for key in ("device", "model", "build", "anchor", "class", "steps", "matched")},
                "recoverable_ms": self.recoverable * 1e3,
                "recoverable_pct_of_span": 100 * self.recoverable / self.census.span if self.census.span else np.nan,
                "stragglers": [sites[id(row)] for row in self.rows],
                "warnings": full["warnings"],
            }
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per straggler, most recoverable first."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        return pd.DataFrame(self.to_json()["stragglers"])

    def plot(self, path: str) -> None:
        """Bars against the class with the recoverable ms, written to a PNG or SVG file."""
        from attrib.plots import plot_stragglers  # noqa: PLC0415 - matplotlib is imported only to draw

        plot_stragglers(self, path)

    def describe(self) -> str:
        """One sentence with the verdict."""
        one, several = NOUNS[self.census.by]
        if not self.rows:
            return f"No {one} streams below the class."
        names = ", ".join(f"{row.site} ({row.rate / GIGA:.4g} GB/s)" for row in self.rows[:3])
        share = 100 * self.recoverable / self.census.span
        more = f" and {len(self.rows) - 3} more" if len(self.rows) > 3 else ""
        return (
            f"{counted(len(self.rows), f'{one} streams', f'{several} stream')} below the class: {names}{more}; "
            f"at class rate the step would lose {self.recoverable * 1e3:.3f} ms ({share:.1f} %)."
        )


def stragglers(census: Census) -> Stragglers:
    """Rank the sites under the class; raises NoDataError when there are no rates or no class to compare with."""
    if not np.isfinite(census.step_bytes):
        raise NoDataError(
            "no launch has known weight bytes, so nothing can be a straggler; pass --model, --bytes or --manifest"
        )
    if census.rate_class is None:
        raise NoDataError("no class is known for this device; pass --class LO:HI or run `attrib roofline`")
    below = sorted((row for row in census.rows if row.straggler), key=lambda row: -row.recoverable)
    return Stragglers(census, tuple(below))
