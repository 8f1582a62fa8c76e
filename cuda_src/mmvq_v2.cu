// Quantized matrix x q8 activations, one block a row, one unit of 32 weights a thread and turn of the loop.
#include "quant.cuh"
#include "reduce.cuh"

// weights [rows] in the GPU layout; acts q8 blocks [tokens][cols/32]; bias f32 [rows] or null;
// residual f32 [tokens][rows] or null; out f32 [tokens][rows]; grid (rows, tokens)
template <class Unit>
DEVICE void mmvq(const u8* weights, u64 row_bytes, const u8* acts, const float* bias, const float* residual, float* out,
                 int rows, int cols) {
    const int units = cols / UNIT;
    const u8* row = weights + blockIdx.x * row_bytes;
    const u8* token = acts + (u64)blockIdx.y * units * Q8_BLOCK;
    float acc = 0.0f;
    for (int u = threadIdx.x; u < units; u += blockDim.x) {
        Unit r;
        unit_load(r, row, token, u, cols);
        acc = unit_acc(r, acc);
    }
    acc = block_sum_to_first(acc);
    if (threadIdx.x == 0) store_row(acc, bias, residual, out, blockIdx.x, rows, blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_q6_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,
                 int cols) {
    mmvq<Q6KUnit>(weights, q6_k_row(cols), acts, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_q4_K(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,
                 int cols) {
    mmvq<Q4KUnit>(weights, q4_k_row(cols), acts, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    mmvq_v2_q8_0(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,
                 int cols) {
    mmvq<Q80Unit>(weights, q8_0_row(cols), acts, bias, residual, out, rows, cols);
}
