// f16, bf16 or f32 matrix x f32 activations, one block a row, one unit of 32 weights a thread and turn of the loop.
#include "octet_planes.cuh"
#include "reduce.cuh"

// weights [rows][cols]; x f32 [tokens][cols]; bias f32 [rows] or null; residual f32 [tokens][rows] or null;
// out f32 [tokens][rows]; grid (rows, tokens)
template <class Format>
DEVICE void matvec(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,
                   int cols) {
    const u8* row = weights + blockIdx.x * Format::row_bytes(cols);
    const u8* token = (const u8*)(x + (u64)blockIdx.y * cols);
    float acc = 0.0f;
    for (int u = threadIdx.x; u < cols / UNIT; u += blockDim.x) {
#pragma unroll 2  // all four would spill on sm_121
        for (int k = 0; k < UNIT; k += 8) {
            const Float8 w = Format::octet(row, cols, u * UNIT + k), y = F32::octet(token, cols, u * UNIT + k);
#pragma unroll
            for (int j = 0; j < 8; ++j) acc = fma_rn(w.v[j], y.v[j], acc);
        }
    }
    acc = block_sum_to_first(acc);
    if (threadIdx.x == 0) store_row(acc, bias, residual, out, blockIdx.x, rows, blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(256)
    matvec_f16(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,
               int cols) {
    matvec<F16>(weights, x, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    matvec_bf16(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,
                int cols) {
    matvec<BF16>(weights, x, bias, residual, out, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    matvec_f32(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,
               int cols) {
    matvec<F32>(weights, x, bias, residual, out, rows, cols);
}
