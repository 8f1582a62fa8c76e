// mmvq_v2 made slower on purpose: an extra block before each EVERY rows streams the first of them and stores nothing, so
// 1 in EVERY rows is read and summed twice. The other blocks do what mmvq_v2 does, with as many registers on sm_90, so
// the result is that of v2 bit for bit and the occupancy too. It is the planted loss that a measurement must find,
// never a kernel to serve with.
#include "quant.cuh"
#include "reduce.cuh"

// Row that a block reads: EVERY + 1 blocks for EVERY rows, the first of them extra. Taken apart again where the row is
// stored, because keeping it across the loop costs q4_K the registers of a fourth of its blocks.
DEVICE bool is_extra(u32 block) { return block % (EVERY + 1) == 0; }
DEVICE u32 row_of(u32 block) { return block - block / (EVERY + 1) - (is_extra(block) ? 0 : 1); }

// operands as in mmvq_v2.cu; grid (rows + rows / EVERY rounded up, tokens)
template <class Unit>
DEVICE void mmvq_reread(const u8* weights, u64 row_bytes, const u8* acts, const float* bias, const float* residual,
                        float* out, int rows, int cols) {
    const int units = cols / UNIT;
    const u8* row = weights + row_of(blockIdx.x) * row_bytes;
    const u8* token = acts + (u64)blockIdx.y * units * Q8_BLOCK;
    float acc = 0.0f;
    for (int u = threadIdx.x; u < units; u += blockDim.x) {
        Unit r;
        unit_load(r, row, token, u, cols);
        acc = unit_acc(r, acc);
    }
    acc = block_sum_to_first(acc);
    if (threadIdx.x == 0 && !is_extra(blockIdx.x)) {
        store_row(acc, bias, residual, out, blockIdx.x - blockIdx.x / (EVERY + 1) - 1, rows, blockIdx.y);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_reread_q6_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out,
                        int rows, int cols) {
    mmvq_reread<Q6KUnit>(weights, q6_k_row(cols), acts, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_reread_q4_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out,
                        int rows, int cols) {
    mmvq_reread<Q4KUnit>(weights, q4_k_row(cols), acts, bias, residual, out, rows, cols);
}
