// Shared by every kernel: lane arithmetic, packing, and the epilogue of the matrix-vector kernels.
#pragma once
#include "intrinsics.cuh"

#define WARP 32
#define LOG2_E 1.4426950408889634f

struct Float8 {
    float v[8];
};

DEVICE int lane_id() { return threadIdx.x & (WARP - 1); }
DEVICE int warp_id() { return threadIdx.x >> 5; }

DEVICE u32 pack2(float low, float high) { return (u32)float_to_half(low) | (u32)float_to_half(high) << 16; }
DEVICE float low_half(u32 pair) { return half_to_float((u16)(pair & 0xffff)); }
DEVICE float high_half(u32 pair) { return half_to_float((u16)(pair >> 16)); }

DEVICE Float8 halves(uint4 packed) {
    return {{low_half(packed.x), high_half(packed.x), low_half(packed.y), high_half(packed.y), low_half(packed.z),
             high_half(packed.z), low_half(packed.w), high_half(packed.w)}};
}

// out[t][row] = sum (+ bias[row]) (+ residual[t][row]); bias and residual may be null, residual may be out.
DEVICE void store_row(float sum, const float* bias, const float* residual, float* out, int row, int rows, int t) {
    const u64 at = (u64)t * rows + row;
    if (bias) sum = add_rn(sum, bias[row]);
    if (residual) sum = add_rn(sum, residual[at]);
    out[at] = sum;
}
