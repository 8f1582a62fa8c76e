// mmvq_v2 with both units of a thread loaded before either is accumulated. There is no loop: a row has at most
// 2 x blockDim units, and the dispatch table must keep longer rows away. Same units in the same order through the
// same unit_acc and block sum, so the result is that of v2 bit for bit.
#include "quant.cuh"
#include "reduce.cuh"

// operands as in mmvq_v2.cu; grid (rows, tokens)
template <class Unit>
DEVICE void mmvq_pf(const u8* weights, u64 row_bytes, const u8* acts, const float* bias, const float* residual,
                    float* out, int rows, int cols) {
    const int units = cols / UNIT;
    const u8* row = weights + blockIdx.x * row_bytes;
    const u8* token = acts + (u64)blockIdx.y * units * Q8_BLOCK;
    const int first = threadIdx.x, second = first + blockDim.x;
    float acc = 0.0f;
    if (first < units) {
        Unit r0, r1;
        const bool two = second < units;
        unit_load(r0, row, token, first, cols);
        if (two) unit_load(r1, row, token, second, cols);
        acc = unit_acc(r0, acc);
        if (two) acc = unit_acc(r1, acc);
    }
    acc = block_sum_to_first(acc);
    if (threadIdx.x == 0) store_row(acc, bias, residual, out, blockIdx.x, rows, blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_pf_q6_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,
                    int cols) {
    mmvq_pf<Q6KUnit>(weights, q6_k_row(cols), acts, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_pf_q4_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,
                    int cols) {
    mmvq_pf<Q4KUnit>(weights, q4_k_row(cols), acts, bias, residual, out, rows, cols);
}
