"""Every kernel of every build, for a compiler or a test that must see them all."""

from __future__ import annotations

from engine import kernels_fast, kernels_matvec, kernels_ops, kernels_weights
from engine.kernels import KernelSpec
from engine.quant_blocks import DEQUANTIZERS
from engine.repack import GPU_QUANTS
from engine.tiles import RECORD_BYTES


def catalog(heads: int = 40, kv_heads: int = 8, head_dim: int = 128) -> tuple[KernelSpec, ...]:
    """All specs with their default build parameters; attention for the given head counts."""
    k_quants = ("q4_K", "q6_K")
    return (
        kernels_matvec.quantize_q8(),
        *(kernels_matvec.mmvq(quant) for quant in DEQUANTIZERS),
        *(kernels_matvec.mmvq(quant, prefetch=True) for quant in k_quants),
        *(kernels_matvec.mmvq_reread(quant) for quant in k_quants),
        *(kernels_matvec.matvec_padded_f32(quant) for quant in k_quants),
        *(kernels_matvec.matvec_float(quant) for quant in GPU_QUANTS),
        kernels_ops.swiglu(),
        kernels_ops.swiglu(half=True),
        kernels_ops.add_residual(),
        kernels_ops.add_bias(),
        kernels_ops.rms_norm(),
        kernels_ops.rms_norm(half=True),
        kernels_ops.rope_kv_write(),
        kernels_ops.attn_split(heads, kv_heads, head_dim),
        kernels_ops.attn_combine(),
        kernels_ops.attn_prefill(head_dim),
        *(kernels_ops.embed(quant) for quant in GPU_QUANTS),
        kernels_ops.argmax_partial(),
        kernels_ops.advance(),
        *(kernels_weights.dequantize_f16(quant) for quant in GPU_QUANTS if quant != "f16"),
        *(kernels_weights.synth_fill(quant) for quant in GPU_QUANTS),
        *(kernels_fast.tile_pack(quant) for quant in RECORD_BYTES),
        *(kernels_fast.tile_dequantize(quant) for quant in RECORD_BYTES),
        kernels_fast.fast_step_alone(heads, kv_heads, head_dim),
    )
