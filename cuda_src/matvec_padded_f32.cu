// Quantized matrix x f32 activations: a warp dequantizes two blocks a turn, half a warp a block, 16 weights a lane,
// and reads each activation once for its NR0 rows. Coalesced 4- and 8-byte loads, no activation quantization.
#include "quant.cuh"
#include "reduce.cuh"

#ifndef NR0
#define NR0 2  // rows a warp
#endif
#ifndef NSG
#define NSG 2  // warps a block
#endif

struct Q4KLane {
    DEVICE static u64 row_bytes(int cols) { return q4_k_row(cols); }
    // lane i of 16 has bytes 8i..8i+7 of the nibbles: eight weights of sub-block 2c and eight of 2c+1, c = i/4
    DEVICE static int first(int i) { return 64 * (i >> 2) + 8 * (i & 3); }
    DEVICE static int quad_at(int k) { return 32 * (k >> 1) + 4 * (k & 1); }
    DEVICE static float dot(const u8* row, int block_index, int i, const float4* x) {
        const u8* block = row + (u64)block_index * Q4_K_STRIDE;
        const uint4 head = load16(block);
        const uint2 q = load8(block + 16 + 8 * i);
        float acc = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 v = (k & 1 ? q.y : q.x) >> 4 * (k >> 1);
            int scale, min;
            q4_k_scale(head, 2 * (i >> 2) + (k >> 1), &scale, &min);
            const float d = mul_rn(low_half(head.x), (float)scale), m = mul_rn(high_half(head.x), (float)min);
            acc = fma_rn(fma_rn(d, (float)(v & 15), -m), x[k].x, acc);
            acc = fma_rn(fma_rn(d, (float)(v >> 8 & 15), -m), x[k].y, acc);
            acc = fma_rn(fma_rn(d, (float)(v >> 16 & 15), -m), x[k].z, acc);
            acc = fma_rn(fma_rn(d, (float)(v >> 24 & 15), -m), x[k].w, acc);
        }
        return acc;
    }
};

struct Q6KLane {
    DEVICE static u64 row_bytes(int cols) { return q6_k_row(cols); }
    // lane i of 16 has elements 4(i%8)..+3 of the four quarters of half i/8
    DEVICE static int first(int i) { return 128 * (i >> 3) + 4 * (i & 7); }
    DEVICE static int quad_at(int k) { return 32 * k; }
    DEVICE static float dot(const u8* row, int block_index, int i, const float4* x) {
        const u8* block = row + (u64)block_index * Q6_K_STRIDE;
        const int half = i >> 3, l = 4 * (i & 7);
        const u32 even = load4(block + 64 * half + l), odd = load4(block + 64 * half + 32 + l);
        const u32 high = load4(block + 128 + 32 * half + l);
        const uint2 scales = load8(block + 192 + 8 * half);
        const float d = half_to_float(load2(block + 208));
        float acc = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 low = (k & 1 ? odd : even) >> 4 * (k >> 1) & 0x0f0f0f0f;
            const u32 v = low | (high >> 2 * k & 0x03030303) << 4;
            const u32 word = k < 2 ? scales.x : scales.y;
            const float s = mul_rn(d, (float)(i8)(word >> (16 * (k & 1) + 8 * (l >> 4)) & 0xff));
            acc = fma_rn(mul_rn(s, (float)((int)(v & 63) - 32)), x[k].x, acc);
            acc = fma_rn(mul_rn(s, (float)((int)(v >> 8 & 63) - 32)), x[k].y, acc);
            acc = fma_rn(mul_rn(s, (float)((int)(v >> 16 & 63) - 32)), x[k].z, acc);
            acc = fma_rn(mul_rn(s, (float)((int)(v >> 24 & 63) - 32)), x[k].w, acc);
        }
        return acc;
    }
};

// weights [rows] in the GPU layout; x f32 [tokens][cols]; bias f32 [rows] or null; residual f32 [tokens][rows] or
// null; out f32 [tokens][rows]; grid (ceil(rows / (NSG NR0)), tokens), 32 NSG threads
template <class Lane>
DEVICE void matvec(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,
                   int cols) {
    const int row0 = (blockIdx.x * NSG + warp_id()) * NR0;
    const int i = lane_id() & 15;
    const float* token = x + (u64)blockIdx.y * cols;
    float acc[NR0] = {};
    for (int b = lane_id() >> 4; b < cols / SUPER; b += 2) {
        const float* here = token + (u64)b * SUPER + Lane::first(i);
        float4 y[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) y[k] = load_float4(here + Lane::quad_at(k));
#pragma unroll
        for (int r = 0; r < NR0; ++r) {
            const int row = min(row0 + r, rows - 1);  // the last warp repeats a row rather than branch
            acc[r] = add_rn(acc[r], Lane::dot(weights + row * Lane::row_bytes(cols), b, i, y));
        }
    }
#pragma unroll
    for (int r = 0; r < NR0; ++r) {
        const float sum = warp_sum(acc[r]);
        if (lane_id() == 0 && row0 + r < rows) store_row(sum, bias, residual, out, row0 + r, rows, blockIdx.y);
    }
}

extern "C" __global__ void __launch_bounds__(32 * NSG)
    matvec_padded_f32_q6_K(const u8* weights, const float* x, const float* bias, const float* residual, float* out,
                           int rows, int cols) {
    matvec<Q6KLane>(weights, x, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(32 * NSG)
    matvec_padded_f32_q4_K(const u8* weights, const float* x, const float* bias, const float* residual, float* out,
                           int rows, int cols) {
    matvec<Q4KLane>(weights, x, bias, residual, out, rows, cols);
}
