"""The demo: census, stragglers and anatomy of a 14B decode, live on a GPU or from the bundled recordings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from attrib import api
from attrib.anatomy import Anatomy
from attrib.attribution import Attribution
from attrib.capture import CaptureError
from attrib.census import Census
from attrib.errors import RefusedError
from attrib.plots import plot_anatomy
from attrib.record import parse_target, record
from attrib.stragglers import Stragglers

ANCHOR, BUILD = "14b:tg128", "reference"
OWN = "engine-14b-tg128-h200"
PEER = "llama.cpp-14b-tg16-h200"
PEER_OPTIONS: Mapping[str, Any] = {
    "model": "qwen2.5-14b:q4_k_m",
    "anchor": "14b:tg16",
    "build": "llama.cpp, ggml 0.25.3",
}


@dataclass(frozen=True)
class Demo:
    """Results and where their charts are; the last anatomy is the peer's, recorded on an H200."""

    title: str
    census: Census
    stragglers: Stragglers
    anatomies: tuple[tuple[str, Anatomy], ...]
    charts: tuple[Path, ...]


def run(out: Path, say: Callable[[str], None]) -> Demo:
    """Record the embedded engine where an NVIDIA driver is installed, else analyse the bundled recording.

    `say` is told what is going on and, where recording fails, why. Raises RefusedError when `out` cannot be made.
    """
    if shutil.which("nvidia-smi") is None:
        say("no NVIDIA GPU here: reading the bundled recording")
        return bundled(out)
    try:
        found = record(parse_target(ANCHOR), BUILD, out / "runs", progress=say)
    except CaptureError as error:
        say(f"{error}; reading the bundled recording instead")
        return bundled(out)
    return _finish(out, found.folder.name, api.attribution(found.folder))


def bundled(out: Path) -> Demo:
    """Analyse the bundled recording of the embedded engine decoding a 14B q4_K_M model on an H200."""
    folder = files("attrib").joinpath("demo_data")
    with (
        as_file(folder.joinpath(f"{OWN}.sqlite.xz")) as trace,
        as_file(folder.joinpath(f"{OWN}.manifest.json")) as said,
    ):
        return _finish(out, OWN, api.attribution(trace, manifest=said, anchor=ANCHOR))


def peer() -> Attribution:
    """The bundled trace of llama.cpp decoding the same model on the same kind of GPU."""
    with as_file(files("attrib").joinpath("demo_data", f"{PEER}.sqlite.xz")) as packed:
        return api.attribution(packed, **PEER_OPTIONS)


def _finish(out: Path, title: str, own: Attribution) -> Demo:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{out} cannot be made: {error.strerror}") from error
    census = api.census(own)
    stragglers = api.stragglers(census)
    anatomies = ((title, api.anatomy(own)), (PEER, api.anatomy(peer())))
    charts = tuple(out / name for name in ("census.png", "stragglers.png", "anatomy.png"))
    census.plot(str(charts[0]))
    stragglers.plot(str(charts[1]))
    plot_anatomy([anatomy for _, anatomy in anatomies], str(charts[2]), [name for name, _ in anatomies])
    return Demo(title, census, stragglers, anatomies, charts)
