// mmvq_v2 made slower on purpose: every EVERY-th row is streamed twice and the second sum is stored. Both passes take
// the same units in the same order, so the result is that of v2 bit for bit. It is the planted loss that a
// measurement must find, never a kernel to serve with.
#include "quant.cuh"
#include "reduce.cuh"

#define HUGE_SUM 3.0e38f

template <class Unit> DEVICE float pass(const u8* row, const u8* token, int first, int units, int cols) {
    float acc = 0.0f;
    for (int u = first; u < units; u += blockDim.x) {
        Unit r;
        unit_load(r, row, token, u, cols);
        acc = unit_acc(r, acc);
    }
    return acc;
}

// operands as in mmvq_v2.cu; grid (rows, tokens)
template <class Unit>
DEVICE void mmvq_reread(const u8* weights, u64 row_bytes, const u8* acts, const float* bias, const float* residual,
                        float* out, int rows, int cols) {
    const int units = cols / UNIT;
    const u8* row = weights + blockIdx.x * row_bytes;
    const u8* token = acts + (u64)blockIdx.y * units * Q8_BLOCK;
    float acc = pass<Unit>(row, token, threadIdx.x, units, cols);
    if (blockIdx.x % EVERY == 0) {
        // where the second pass starts depends on the first sum, so that the compiler cannot merge them
        const int shift = acc > HUGE_SUM;
        const float again = pass<Unit>(row, token, threadIdx.x + shift, units, cols);
        acc = shift ? acc : again;
    }
    acc = block_sum_to_first(acc);
    if (threadIdx.x == 0) store_row(acc, bias, residual, out, blockIdx.x, rows, blockIdx.y);
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
