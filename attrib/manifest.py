"""What an engine says about the launches of its graphs: `manifest.json` beside the trace. A leaf.

The engine writes it, the toolkit reads it. The schema name is versioned; an unknown version is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attrib.errors import JoinError
from attrib.files import read_text, write_whole

SCHEMA = "attrib.manifest/1"
Dim3 = tuple[int, int, int]
SIZES = ("weight_bytes", "kv_bytes", "act_bytes", "units", "units_covered")


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU a plan was made for; bandwidth in bytes/s."""

    name: str
    sms: int
    peak_bytes_per_s: float
    threads_per_sm: int
    compute_capability: str = ""


@dataclass(frozen=True)
class ModelInfo:
    """Which model ran: architecture, dimensions, quant recipe and where the weights came from."""

    name: str
    arch: str
    recipe: str
    source: str
    dims: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildInfo:
    """Content hash of kernel sources, flags and dispatch table, with its short name."""

    name: str
    hash: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A part of a persistent kernel between two grid-wide dependencies, in execution order; fields as of a Launch."""

    i: int
    site: str
    layer: int | None
    weight_bytes: int = 0
    kv_bytes: int = 0
    act_bytes: int = 0
    units: int = 0
    units_covered: int = 0


@dataclass(frozen=True)
class Launch:
    """One node of a graph, in creation order.

    `site` is role/quant (`attn_v/q6_K`) or a role alone (`rms_norm`); `layer` is None outside layers. Bytes are
    what the launch must move: weights as stored in the kernel's layout, KV at the anchor's position, and
    activations. `units` is the work the shape asks for and `units_covered` what grid × block reach. A persistent
    kernel names its `stages`; its own sizes are their sums.
    """

    i: int
    site: str
    layer: int | None
    kernel: str
    grid: Dim3
    block: Dim3
    weight_bytes: int = 0
    kv_bytes: int = 0
    act_bytes: int = 0
    units: int = 0
    units_covered: int = 0
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Graph:
    """One captured graph; `name` is `decode` for the decode step."""

    name: str
    nodes: tuple[Launch, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything the toolkit needs to attribute a trace of this engine."""

    device: DeviceInfo
    model: ModelInfo
    anchor: str
    build: BuildInfo
    graphs: tuple[Graph, ...]
    wall_step_ns: tuple[int, ...] = ()

    def graph(self, name: str = "decode") -> Graph:
        """The named graph; raises JoinError when the manifest has none of that name."""
        for graph in self.graphs:
            if graph.name == name:
                return graph
        raise JoinError(f"the manifest has no graph named {name!r}; it has {[g.name for g in self.graphs]}")


def dump(manifest: Manifest, path: Path) -> None:
    """Write the manifest as JSON; the file appears whole or not at all."""
    body = asdict(manifest)
    wall = body.pop("wall_step_ns")
    for node in (node for graph in body["graphs"] for node in graph["nodes"]):
        if not node["stages"]:
            del node["stages"]
    document = {"schema": SCHEMA, **body, "wall": {"step_ns": wall}}
    write_whole(path, lambda temporary: temporary.write_text(json.dumps(document, indent=1), encoding="utf-8"))


def load(path: Path) -> Manifest:
    """Read a manifest; raises JoinError naming the file and the field when it is not one of this version."""
    try:
        document = json.loads(read_text(path))
    except OSError as error:
        raise JoinError(f"manifest {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise JoinError(f"manifest {path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise JoinError(f"manifest {path} has schema {found!r}; this version reads {SCHEMA!r}")
    try:
        return _parse(document)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise JoinError(f"manifest {path} has a missing or wrong field: {error}") from error


def _parse(document: dict[str, Any]) -> Manifest:
    device, model, build = document["device"], document["model"], document["build"]
    return Manifest(
        device=DeviceInfo(
            _text(device, "name"), _count(device, "sms"), _number(device, "peak_bytes_per_s"),
            _count(device, "threads_per_sm"), _text(device, "compute_capability", ""),
        ),
        model=ModelInfo(
            _text(model, "name"), _text(model, "arch"), _text(model, "recipe"), _text(model, "source"),
            {str(key): _count(model["dims"], key) for key in model.get("dims", {})},
        ),
        anchor=_text(document, "anchor"),
        build=BuildInfo(_text(build, "name"), _text(build, "hash"), tuple(str(f) for f in build.get("flags", ()))),
        graphs=tuple(_graph(graph) for graph in document["graphs"]),
        wall_step_ns=tuple(_whole(ns, "wall.step_ns") for ns in document.get("wall", {}).get("step_ns", ())),
    )  # fmt: skip


def _graph(graph: dict[str, Any]) -> Graph:
    name = _text(graph, "name")
    nodes = tuple(_launch(node) for node in graph["nodes"])
    for place, node in enumerate(nodes):
        if node.i != place:
            raise ValueError(f"graph {name!r} has node {node.i} at place {place}")
    return Graph(name, nodes)


def _launch(node: dict[str, Any]) -> Launch:
    try:
        grid, block = _dim3(node, "grid"), _dim3(node, "block")
        stages = _stages(node)
        sizes = _sizes(node)
        for key in SIZES if stages else ():
            total = sum(getattr(stage, key) for stage in stages)
            if sizes[key] != total:
                raise ValueError(f"{key} is {sizes[key]} and its stages add up to {total}")
        return Launch(
            _count(node, "i"), _text(node, "site"), _layer(node), _text(node, "kernel"), grid, block, **sizes,
            stages=stages,
        )  # fmt: skip
    except (AttributeError, TypeError, ValueError) as error:
        place = node.get("i") if isinstance(node, dict) else node
        raise ValueError(f"node {place}: {error}") from error


def _stages(node: dict[str, Any]) -> tuple[Stage, ...]:
    listed = node.get("stages", [])
    if not isinstance(listed, list):
        raise ValueError(f"stages is {str(listed)[:40]}, not a list")
    stages = []
    for place, stage in enumerate(listed):
        if not isinstance(stage, dict):
            raise ValueError(f"stage {place} is {str(stage)[:40]}, not an object")
        try:
            found = Stage(_count(stage, "i"), _text(stage, "site"), _layer(stage), **_sizes(stage))
        except KeyError as error:
            raise ValueError(f"stage {place} has no {error}") from error
        except ValueError as error:
            raise ValueError(f"stage {place}: {error}") from error
        if found.i != place:
            raise ValueError(f"it has stage {found.i} at place {place}")
        stages.append(found)
    return tuple(stages)


def _layer(fields: dict[str, Any]) -> int | None:
    return None if fields.get("layer") is None else _count(fields, "layer")


def _sizes(fields: dict[str, Any]) -> dict[str, int]:
    return {key: _count(fields, key, 0) for key in SIZES}


def _dim3(node: dict[str, Any], key: str) -> Dim3:
    values = [_whole(value, key) for value in node[key]]
    if len(values) != 3:
        raise ValueError(f"{key} has {len(values)} numbers, not 3")
    return (values[0], values[1], values[2])


def _text(fields: dict[str, Any], key: str, default: str | None = None) -> str:
    value = fields[key] if default is None else fields.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not text")
    return value


def _count(fields: dict[str, Any], key: str, default: int | None = None) -> int:
    return _whole(fields[key] if default is None else fields.get(key, default), key)


def _whole(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{key} is {str(value)[:40]}, not a whole number from 0 to 2^63")
    return value


def _number(fields: dict[str, Any], key: str) -> float:
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise ValueError(f"{key} is {str(value)[:40]}, not a number from 0 to 1e18")
    return float(value)
