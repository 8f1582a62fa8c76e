"""Kernels of the fast build: tiles made and read, and the step itself.

The step kernel's work is a table of phases (`fast_tables`); its spec is made by `fast_plan` for the phases of one
launch, because coverage and bytes are theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from attrib.manifest import Dim3
from engine.kernels import Coverage, KernelSpec, Kind, Shape, Traffic, ceil_div, one_each, require
from engine.kernels_ops import query_group
from engine.repack import gpu_bytes
from engine.tiles import RECORD_BYTES, UNIT, WARPS, steps, tile_bytes

THREADS = (WARPS + 1) * 32
STEP_CAPABILITY = (9, 0)  # bulk copies into shared memory, launches that start early
PACK_THREADS, DEQUANTIZE_THREADS, DEQUANTIZE_ROWS = 128, 256, 8
FORMATS = tuple(RECORD_BYTES)  # a format's number is its place, as in fast_step.cu
_PLACE: tuple[tuple[str, Kind], ...] = (
    ("base", "i32"),
    ("stride", "i32"),
    ("half", "i32"),
    ("all", "i32"),
    ("piece", "i32"),
    ("blocks", "i32"),
)
STEP_PARAMS: tuple[tuple[str, Kind], ...] = (
    ("phases", "ptr"),
    ("streams", "ptr"),
    ("segments", "ptr"),
    ("state", "ptr"),
    ("rope", "ptr"),
    ("part_acc", "ptr"),
    ("part_ml", "ptr"),
    ("counters", "ptr"),
    ("part_value", "ptr"),
    ("part_index", "ptr"),
    ("stamps", "ptr"),
    ("first", "i32"),
    ("last", "i32"),
    ("segment_count", "i32"),
    ("qk_segment", "i32"),
    ("ring_bytes", "i32"),
    ("scratch_bytes", "i32"),
    ("image_steps", "i32"),
    ("most_pairs", "i32"),
    ("heads", "i32"),
    ("kv_heads", "i32"),
    ("capacity", "i32"),
    ("interleaved", "i32"),
    ("turns", "i32"),
    ("eps", "f32"),
    ("scale", "f32"),
)


def tile_pack(quant: str) -> KernelSpec:
    """rows [rows] in the row layout of `repack` -> their places in tiles that were zero before (`tiles`).

    Row r goes to packed row base + stride × r, or, with half = head_dim/2 > 0, to base + r with elements d and d + half
    of its head next to each other. all, piece, blocks: the matrix's tiles, and its arrangement (`tiles.arrange`). A
    thread makes one lane of a record, 128 weights.
    """

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        units = one_each(ceil_div(shape.cols, UNIT), grid[1] * block[0])
        return Coverage((("row", one_each(shape.rows, grid[0])), ("unit", units)))

    def traffic(shape: Shape) -> Traffic:
        return Traffic(
            weight_bytes=gpu_bytes(quant, shape.rows, shape.cols), act_bytes=tile_bytes(quant, shape.rows, shape.cols)
        )

    return KernelSpec(
        name=f"tile_pack_{quant}",
        source="tile_pack.cu",
        params=(("rows", "ptr"), ("tiles", "ptr"), ("cols", "i32"), *_PLACE),
        block=lambda shape: (PACK_THREADS, 1, 1),
        grid=lambda shape: (shape.rows, ceil_div(shape.cols, UNIT * PACK_THREADS), 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: None,
    )


def tile_dequantize(quant: str) -> KernelSpec:
    """out f16 [rows][cols] = tensor rows first .. first + rows - 1, which lie in tiles as `tile_pack` puts them."""
    name = f"tile_dequantize_{quant}"

    def items(shape: Shape) -> int:
        return ceil_div(shape.rows, DEQUANTIZE_ROWS) * steps(shape.cols)

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        return Coverage((("rows of a step", one_each(items(shape), grid[0] * block[0] // 32)),))

    def traffic(shape: Shape) -> Traffic:
        return Traffic(weight_bytes=tile_bytes(quant, shape.rows, shape.cols), act_bytes=2 * shape.rows * shape.cols)

    return KernelSpec(
        name=name,
        source="tile_dequantize.cu",
        params=(("tiles", "ptr"), ("out", "ptr"), ("rows", "i32"), ("cols", "i32"), ("first", "i32"), *_PLACE),
        block=lambda shape: (DEQUANTIZE_THREADS, 1, 1),
        grid=lambda shape: (ceil_div(items(shape), DEQUANTIZE_THREADS // 32), 1, 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: require(shape.cols % 32 == 0, name, "a multiple of 32 weights a row"),
    )


def fast_step(
    *,
    blocks: int,
    shared_bytes: int,
    defines: tuple[tuple[str, int], ...],
    coverage: Callable[[Dim3], Coverage],
    traffic: Traffic,
) -> KernelSpec:
    """Phases of a step in one launch of one block a multiprocessor.

    defines: HEAD_DIM, GROUP (query heads that share a KV head, at most 8), FORMATS (bit i: tiles of format i).
    Blocks of a launch of several phases wait for each other: there is one a multiprocessor at most, so all are resident
    as soon as earlier launches leave. A cooperative launch would prove it, and was no faster.
    """
    return KernelSpec(
        name="fast_step",
        source="fast_step.cu",
        params=STEP_PARAMS,
        block=lambda shape: (THREADS, 1, 1),
        grid=lambda shape: (blocks, 1, 1),
        coverage=lambda shape, grid, block: coverage(grid),
        traffic=lambda shape: traffic,
        check=lambda shape: None,
        defines=defines,
        shared_bytes=shared_bytes,
        early=True,
        capability=STEP_CAPABILITY,
    )


def fast_step_alone(heads: int, kv_heads: int, head_dim: int) -> KernelSpec:
    """The step kernel without a model: all tile formats, no phases; for whoever compiles every kernel."""
    defines = (("HEAD_DIM", head_dim), ("GROUP", query_group(heads, kv_heads)), ("FORMATS", (1 << len(FORMATS)) - 1))
    nothing = Coverage(())
    return fast_step(blocks=1, shared_bytes=0, defines=defines, coverage=lambda grid: nothing, traffic=Traffic())
