// Quantized matrix x q8 activations, one block a row, one unit of 32 weights a thread and turn of the loop.
#include "octet_planes.cuh"
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

#define MMVQ(name, Unit, row_bytes)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        name(const u8* weights, const u8* acts, const float* bias, const float* residual, float* out, int rows,       \
             int cols) {                                                                                              \
        mmvq<Unit>(weights, row_bytes, acts, bias, residual, out, rows, cols);                                        \
    }
MMVQ(mmvq_v2_q6_K, Q6KUnit, q6_k_row(cols))
MMVQ(mmvq_v2_q4_K, Q4KUnit, q4_k_row(cols))
MMVQ(mmvq_v2_q8_0, Q80Unit, q8_0_row(cols))
MMVQ(mmvq_v2_q4_0, Q40Unit, Q40::row_bytes(cols))
MMVQ(mmvq_v2_q4_1, Q41Unit, Q41::row_bytes(cols))
MMVQ(mmvq_v2_q5_0, Q50Unit, Q50::row_bytes(cols))
MMVQ(mmvq_v2_q5_1, Q51Unit, Q51::row_bytes(cols))
MMVQ(mmvq_v2_q2_K, Q2KUnit, Q2K::row_bytes(cols))
MMVQ(mmvq_v2_q3_K, Q3KUnit, Q3K::row_bytes(cols))
MMVQ(mmvq_v2_q5_K, Q5KUnit, Q5K::row_bytes(cols))
MMVQ(mmvq_v2_iq4_nl, IQ4NLUnit, IQ4NL::row_bytes(cols))
MMVQ(mmvq_v2_iq4_xs, IQ4XSUnit, IQ4XS::row_bytes(cols))
