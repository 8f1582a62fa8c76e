"""What a report is about: an attribution with the name, manifest and date it goes by."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from attrib import compare_sides
from attrib.attribution import Attribution, Options, attribute
from attrib.files import TRACE
from attrib.manifest import Manifest
from attrib.manifest import load as load_manifest
from attrib.trace import open_trace

_RUN_TIME = re.compile(r"(\d{8}T\d{6})Z-")


@dataclass(frozen=True)
class Subject:
    """One run or trace; `recorded` is the UTC time its run directory is named by, empty where there is none."""

    attribution: Attribution
    label: str
    manifest: Manifest | None = None
    recorded: str = ""


def load(path: Path, options: Options, reader: str = "auto", label: str = "") -> Subject:
    """Read a trace or a run directory; a run directory brings its manifest unless other bytes are given.

    `label` replaces the name of the folder or file. Raises NoDataError for a folder that is no run directory, and what
    reading and joining raise.
    """
    given = options.model or options.table or options.manifest
    if is_run(path) and given:
        attribution = attribute(open_trace(path / TRACE, reader), options)
        found = compare_sides.Loaded(attribution, None, path.resolve().name)
    else:
        found = compare_sides.load(path, options, reader)
    if found.manifest is None and options.manifest is not None:
        said = options.manifest if isinstance(options.manifest, Manifest) else load_manifest(options.manifest)
        found = replace(found, manifest=said)
    name = (label or found.label).encode(errors="replace").decode()  # a file name may hold bytes that are no text
    return Subject(found.attribution, name, found.manifest, _recorded(name))


def is_run(path: Path) -> bool:
    """Whether the path is a run directory rather than a trace, which may be a folder too."""
    return (path / TRACE).exists()


def _recorded(name: str) -> str:
    """`2026-01-31 12:00:05` from a run directory's name; empty for any other name."""
    found = _RUN_TIME.match(name)
    try:
        return str(datetime.strptime(found[1], "%Y%m%dT%H%M%S")) if found else ""
    except ValueError:
        return ""
