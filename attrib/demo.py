"""The demo: census, stragglers and anatomy of a recorded 14B decode, with charts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from attrib import api
from attrib.anatomy import Anatomy
from attrib.census import Census
from attrib.errors import RefusedError
from attrib.stragglers import Stragglers

TRACE = "llama.cpp-14b-tg16-h200.sqlite.xz"
OPTIONS: dict[str, str] = {"model": "qwen2.5-14b:q4_k_m", "anchor": "14b:tg16", "build": "llama.cpp, ggml 0.25.3"}


@dataclass(frozen=True)
class Demo:
    """Results of the bundled trace and where its charts are."""

    title: str
    census: Census
    stragglers: Stragglers
    anatomy: Anatomy
    charts: tuple[Path, ...]


def run(out: Path) -> Demo:
    """Analyse the bundled trace of llama.cpp decoding a 14B q4_K_M model on an H200; charts go to `out`.

    Raises RefusedError when `out` cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{out} cannot be made: {error.strerror}") from error
    with as_file(files("attrib").joinpath("demo_data", TRACE)) as packed:
        attribution = api.attribution(packed, **OPTIONS)
    census = api.census(attribution)
    stragglers = api.stragglers(census)
    anatomy = api.anatomy(attribution)
    charts = {"census.png": census.plot, "stragglers.png": stragglers.plot, "anatomy.png": anatomy.plot}
    for name, plot in charts.items():
        plot(str(out / name))
    return Demo(TRACE.removesuffix(".xz"), census, stragglers, anatomy, tuple(out / name for name in charts))
