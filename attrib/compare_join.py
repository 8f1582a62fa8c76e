"""Which sites of two sides are the same work: joined by name, then by role and bytes; what is left stays a row."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attrib.compare_sides import SiteTimes
from attrib.rules import FUSED

BYTES_TOLERANCE = 0.1
"""Padding a super-block (210 stored, 224 padded) changes the bytes of a matrix by 7 %; a lost matrix by far more."""
_PARTS = {fused: frozenset(parts.split("+")) for parts, fused in FUSED.items()}
NAME, ROLE, ONLY_A, ONLY_B = "name", "role", "only A", "only B"


@dataclass(frozen=True)
class Pair:
    """Sites of A and of B that do the same work; one of the two is empty for a site of one side only."""

    label: str
    how: str
    category: str
    a: tuple[SiteTimes, ...]
    b: tuple[SiteTimes, ...]


def weight(sites: Sequence[SiteTimes]) -> float:
    """Weight bytes per step of several sites; NaN where unknown or for none."""
    return sum(site.weight_bytes for site in sites) if sites else math.nan


def launches(sites: Sequence[SiteTimes]) -> int:
    """Launches per step of several sites."""
    return sum(site.launches for site in sites)


def join(a: Sequence[SiteTimes], b: Sequence[SiteTimes]) -> list[Pair]:
    """Pair the sites of two sides; every site is in exactly one pair, and categories are never mixed.

    A fused role (`ffn_gate_up`) meets the sum of its parts (`ffn_gate` + `ffn_up`); a role in other quant types on
    the two sides meets itself. Roles that share no name keep rows of their own.
    """
    pairs = []
    for category, roles, own, other in _families(a, b):
        pairs.extend(_joined(category, roles, own, other))
    return pairs


def _roles(site: SiteTimes) -> frozenset[str]:
    role = site.site.role
    return _PARTS.get(role, frozenset(role.split("+")))


def _families(
    a: Sequence[SiteTimes], b: Sequence[SiteTimes]
) -> Iterable[tuple[str, frozenset[str], list[SiteTimes], list[SiteTimes]]]:
    """Sites of one category that share roles, directly or through a fused role: (category, roles, of A, of B)."""
    groups: dict[str, list[frozenset[str]]] = defaultdict(list)
    for site in (*a, *b):
        merged = _roles(site)
        apart = []
        for group in groups[site.site.category]:
            if group & merged:
                merged |= group
            else:
                apart.append(group)
        groups[site.site.category] = [*apart, merged]
    for category, found in groups.items():
        for roles in found:
            own, other = (
                [site for site in side if site.site.category == category and _roles(site) & roles] for side in (a, b)
            )
            yield category, roles, own, other


def _joined(category: str, roles: frozenset[str], a: list[SiteTimes], b: list[SiteTimes]) -> list[Pair]:
    common = {site.site.key for site in a} & {site.site.key for site in b}
    rest_a, rest_b = ([site for site in side if site.site.key not in common] for side in (a, b))
    if (rest_a or rest_b) and _alike(a, b) and not (rest_a and rest_b and _alike(rest_a, rest_b)):
        return [_by_role(category, roles, a, b)]
    pairs = []
    for key in sorted(common):
        mine, theirs = (tuple(site for site in side if site.site.key == key) for side in (a, b))
        pairs.append(Pair(key, NAME, category, mine, theirs))
    if rest_a and rest_b:
        return [*pairs, _by_role(category, roles, rest_a, rest_b)]
    pairs += [Pair(site.site.key, ONLY_A, category, (site,), ()) for site in rest_a]
    return pairs + [Pair(site.site.key, ONLY_B, category, (), (site,)) for site in rest_b]


def _alike(a: Sequence[SiteTimes], b: Sequence[SiteTimes]) -> bool:
    """Whether both stream the same bytes but for padding, or are as many launches."""
    own, other = weight(a), weight(b)
    return abs(own - other) <= BYTES_TOLERANCE * max(own, other) or launches(a) == launches(b)


def _by_role(category: str, roles: frozenset[str], a: Sequence[SiteTimes], b: Sequence[SiteTimes]) -> Pair:
    fewer = min((a, b), key=len)
    shared = {site.site.role for site in (*a, *b)}
    fused = next((name for name, parts in _PARTS.items() if parts == roles), "+".join(sorted(roles)))
    label = fewer[0].site.key if len(fewer) == 1 else shared.pop() if len(shared) == 1 else fused
    return Pair(label, ROLE, category, tuple(a), tuple(b))
