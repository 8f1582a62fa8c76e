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

// Eight values as f16.
DEVICE uint4 packed8(const Float8& x) {
    return {pack2(x.v[0], x.v[1]), pack2(x.v[2], x.v[3]), pack2(x.v[4], x.v[5]), pack2(x.v[6], x.v[7])};
}
// Four values, as the type of the memory they go to.
DEVICE void store4(float* to, float4 v) { *(float4*)to = v; }
DEVICE void store4(u16* to, float4 v) { *(uint2*)to = uint2{pack2(v.x, v.y), pack2(v.z, v.w)}; }

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
