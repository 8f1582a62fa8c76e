// Matrix of any type x f32 activations, one block a row, one unit of 32 weights a thread and turn of the loop.
#include "octet_planes.cuh"
#include "reduce.cuh"

// weights [rows] in the GPU layout; x f32 [tokens][cols]; bias f32 [rows] or null; residual f32 [tokens][rows] or null;
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

#define MATVEC(name, Format)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        name(const u8* weights, const float* x, const float* bias, const float* residual, float* out, int rows,       \
             int cols) {                                                                                              \
        matvec<Format>(weights, x, bias, residual, out, rows, cols);                                                  \
    }
MATVEC(matvec_f16, F16)
MATVEC(matvec_bf16, BF16)
MATVEC(matvec_f32, F32)
MATVEC(matvec_q4_0, Q40)
MATVEC(matvec_q4_1, Q41)
MATVEC(matvec_q5_0, Q50)
MATVEC(matvec_q5_1, Q51)
MATVEC(matvec_q8_0, Q80)
MATVEC(matvec_q2_K, Q2K)
MATVEC(matvec_q3_K, Q3K)
MATVEC(matvec_q4_K, Q4K)
MATVEC(matvec_q5_K, Q5K)
MATVEC(matvec_q6_K, Q6K)
MATVEC(matvec_iq4_nl, IQ4NL)
MATVEC(matvec_iq4_xs, IQ4XS)
