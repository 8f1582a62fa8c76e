"""Kernels that make or convert whole matrices: synthetic fill, dequantization for prefill's GEMMs."""

from __future__ import annotations

from attrib.manifest import Dim3
from attrib.models import BLOCKS
from engine.kernels import Coverage, KernelSpec, Kind, Shape, Traffic, ceil_div, one_each, require
from engine.quant import FLOATS
from engine.repack import gpu_bytes
from engine.synthetic import OWN_STREAM

THREADS = 256


def dequantize_f16(quant: str) -> KernelSpec:
    """out f16 [rows][cols] from weights in the GPU layout (any type but f16); block x is the row."""
    name = f"dequantize_f16_{quant}"

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        octets = one_each(shape.cols // 8, grid[1] * block[0])
        return Coverage((("row", one_each(shape.rows, grid[0])), ("octet", octets)))

    def traffic(shape: Shape) -> Traffic:
        return Traffic(weight_bytes=gpu_bytes(quant, shape.rows, shape.cols), act_bytes=2 * shape.rows * shape.cols)

    return KernelSpec(
        name=name,
        source="dequantize_f16.cu",
        params=(("weights", "ptr"), ("out", "ptr"), ("cols", "i32")),
        block=lambda shape: (THREADS, 1, 1),
        grid=lambda shape: (shape.rows, ceil_div(shape.cols, 8 * THREADS), 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: require(shape.cols % 32 == 0, name, "a multiple of 32 weights a row"),
    )


def synth_fill(quant: str) -> KernelSpec:
    """Fill a matrix in the GPU layout with the bytes of `synthetic.synth_rows`; block x is a row.

    key_lo, key_hi: the tensor's 64-bit key. Block types take d_bits and dmin_bits, the f16 patterns the
    scales start from; f16, bf16 and f32 take offset and scale, value = offset + scale · u, u uniform in [-1, 1).
    """
    name = f"synth_{quant}"
    tail: tuple[tuple[str, Kind], ...] = (
        (("offset", "f32"), ("scale", "f32")) if quant in FLOATS else (("d_bits", "i32"), ("dmin_bits", "i32"))
    )
    elements = BLOCKS[quant][0]

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        blocks = one_each(shape.cols // elements, grid[1] * block[0])
        return Coverage((("row", one_each(shape.rows, grid[0])), ("block", blocks)))

    return KernelSpec(
        name=name,
        source="synth_fill.cu" if quant in (*FLOATS, *OWN_STREAM) else "synth_planes.cu",
        params=(("out", "ptr"), ("cols", "i32"), ("key_lo", "i32"), ("key_hi", "i32"), *tail),
        block=lambda shape: (THREADS if shape.cols // elements > 32 else 32, 1, 1),
        grid=lambda shape: (
            shape.rows,
            ceil_div(shape.cols // elements, THREADS if shape.cols // elements > 32 else 32),
            1,
        ),
        coverage=coverage,
        traffic=lambda shape: Traffic(weight_bytes=gpu_bytes(quant, shape.rows, shape.cols)),
        check=lambda shape: None,
    )
