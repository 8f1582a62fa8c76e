"""Matrix × vector kernels of decode, and the activation quantizer that feeds them.

All compute out[t][r] = Σ_c W[r][c] · x[t][c] (+ bias[r]) (+ residual[t][r]):

    weights   matrix in the GPU layout of `repack`, 16-byte aligned
    acts      q8 blocks [tokens][cols/32], 48 bytes each (`quant.Q8_DTYPE`)
    x         f32 [tokens][cols]
    bias      f32 [rows], or 0
    residual  f32 [tokens][rows], or 0; may be `out` itself
    out       f32 [tokens][rows]

A unit is 32 weights of one row against one token, whatever the kernel.
"""

from __future__ import annotations

from dataclasses import replace

from attrib.manifest import Dim3
from attrib.models import BLOCKS
from engine.kernels import (
    Counts,
    Coverage,
    KernelSpec,
    Kind,
    Shape,
    Traffic,
    ceil_div,
    fixed_passes,
    one_each,
    require,
    strided,
)
from engine.quant import Q8_BLOCK_BYTES
from engine.repack import gpu_bytes

UNIT = 32
MAX_THREADS = 256
WARP = 32
QUANTIZE_THREADS = 128
_EPILOGUE: tuple[tuple[str, Kind], ...] = (
    ("bias", "ptr"),
    ("residual", "ptr"),
    ("out", "ptr"),
    ("rows", "i32"),
    ("cols", "i32"),
)


def _traffic(quant: str, act_row_bytes: int, shape: Shape) -> Traffic:
    acts = shape.tokens * (act_row_bytes + 4 * shape.rows)
    return Traffic(weight_bytes=gpu_bytes(quant, shape.rows, shape.cols), act_bytes=acts)


def _row_coverage(shape: Shape, grid: Dim3, units: Counts) -> Coverage:
    """Coverage where grid.x is the row and grid.y the token."""
    rows, tokens = one_each(shape.rows, grid[0]), one_each(shape.tokens, grid[1])
    return Coverage((("row", rows), ("token", tokens), ("unit", units)))


def mmvq(quant: str, prefetch: bool = False, threads: int = MAX_THREADS) -> KernelSpec:
    """Quantized weights × q8 activations, one block a row.

    `mmvq_v2_*` loops over units; `mmvq_v2_pf_*` (q4_K, q6_K) issues the loads of two units before it
    accumulates either and has no loop, so it is complete only while cols/32 <= 2 × threads; its results are
    bit for bit those of v2 there. threads: a multiple of 32, at most 256.
    """
    name = f"mmvq_v2_pf_{quant}" if prefetch else f"mmvq_v2_{quant}"

    def units(shape: Shape, block: Dim3) -> Counts:
        size = shape.cols // UNIT
        return fixed_passes(size, block[0], 2) if prefetch else strided(size, block[0])

    def check(shape: Shape) -> None:
        multiple = max(UNIT, BLOCKS[quant][0])
        require(shape.cols % multiple == 0, name, f"rows of a multiple of {multiple} weights, not {shape.cols}")

    require(threads % WARP == 0 and WARP <= threads <= MAX_THREADS, name, "32 to 256 threads in whole warps")
    return KernelSpec(
        name=name,
        source="mmvq_v2_pf.cu" if prefetch else "mmvq_v2.cu",
        params=(("weights", "ptr"), ("acts", "ptr"), *_EPILOGUE),
        block=lambda shape: (threads, 1, 1),
        grid=lambda shape: (shape.rows, shape.tokens, 1),
        coverage=lambda shape, grid, block: _row_coverage(shape, grid, units(shape, block)),
        traffic=lambda shape: _traffic(quant, shape.cols // UNIT * Q8_BLOCK_BYTES, shape),
        check=check,
    )


def mmvq_reread(quant: str, every: int = 100) -> KernelSpec:
    """`mmvq` (q4_K, q6_K) with an extra block for each `every` rows that reads one of them again and stores nothing.

    The same bits and, on sm_90, the same blocks an SM: a known loss of speed. Its traffic counts each byte once, as
    the matrix needs, so that the second reading shows as a lower rate.
    """
    plain = mmvq(quant)
    require(every >= 1, plain.name, f"a whole number of rows from 1 between readings, not {every}")

    def stored(blocks: int) -> int:
        """Rows that the first `blocks` blocks of the grid store; the first of every + 1 stores none."""
        return blocks - ceil_div(blocks, every + 1)

    return replace(
        plain,
        name=f"mmvq_v2_reread_{quant}",
        source="mmvq_v2_reread.cu",
        grid=lambda shape: (shape.rows + ceil_div(shape.rows, every), shape.tokens, 1),
        coverage=lambda shape, grid, block: plain.coverage(shape, (stored(grid[0]), grid[1], grid[2]), block),
        defines=(("EVERY", every),),
    )


def matvec_padded_f32(quant: str, rows_per_warp: int = 2, warps: int = 2) -> KernelSpec:
    """q4_K or q6_K weights × f32 activations; a warp dequantizes and multiplies several rows at once.

    rows_per_warp is the build parameter NR0, warps (a block) is NSG.
    """
    name = f"matvec_padded_f32_{quant}"

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        rows = one_each(shape.rows, grid[0] * min(block[0] // WARP, warps) * rows_per_warp)
        tokens, units = one_each(shape.tokens, grid[1]), strided(shape.cols // UNIT, WARP)
        return Coverage((("row", rows), ("token", tokens), ("unit", units)))

    def check(shape: Shape) -> None:
        require(shape.cols % 256 == 0, name, f"rows of a multiple of 256 weights, not {shape.cols}")

    return KernelSpec(
        name=name,
        source="matvec_padded_f32.cu",
        params=(("weights", "ptr"), ("x", "ptr"), *_EPILOGUE),
        block=lambda shape: (WARP * warps, 1, 1),
        grid=lambda shape: (ceil_div(shape.rows, warps * rows_per_warp), shape.tokens, 1),
        coverage=coverage,
        traffic=lambda shape: _traffic(quant, 4 * shape.cols, shape),
        check=check,
        defines=(("NR0", rows_per_warp), ("NSG", warps)),
    )


def matvec_float(quant: str, threads: int = MAX_THREADS) -> KernelSpec:
    """Weights of any type × f32 activations, one block a row; cols a multiple of 32 and of the type's blocks."""
    name = f"matvec_{quant}"

    def check(shape: Shape) -> None:
        multiple = max(UNIT, BLOCKS[quant][0])
        require(shape.cols % multiple == 0, name, f"rows of a multiple of {multiple} weights, not {shape.cols}")

    return KernelSpec(
        name=name,
        source="matvec_float.cu",
        params=(("weights", "ptr"), ("x", "ptr"), *_EPILOGUE),
        block=lambda shape: (threads, 1, 1),
        grid=lambda shape: (shape.rows, shape.tokens, 1),
        coverage=lambda shape, grid, block: _row_coverage(shape, grid, strided(shape.cols // UNIT, block[0])),
        traffic=lambda shape: _traffic(quant, 4 * shape.cols, shape),
        check=check,
    )


def quantize_q8() -> KernelSpec:
    """x f32 [tokens][cols] -> out q8 blocks [tokens][cols/32]; eight threads a block, four values each."""
    name = "quantize_q8"
    per_block = QUANTIZE_THREADS * 4 // UNIT

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        units = one_each(shape.cols // UNIT, grid[0] * (block[0] * 4 // UNIT))
        return Coverage((("token", one_each(shape.tokens, grid[1])), ("unit", units)))

    def traffic(shape: Shape) -> Traffic:
        return Traffic(act_bytes=shape.tokens * (4 * shape.cols + shape.cols // UNIT * Q8_BLOCK_BYTES))

    return KernelSpec(
        name=name,
        source="quantize_q8.cu",
        params=(("x", "ptr"), ("out", "ptr"), ("cols", "i32")),
        block=lambda shape: (QUANTIZE_THREADS, 1, 1),
        grid=lambda shape: (ceil_div(shape.cols // UNIT, per_block), shape.tokens, 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: require(
            shape.cols % UNIT == 0, name, f"rows of a multiple of {UNIT} values, not {shape.cols}"
        ),
    )
