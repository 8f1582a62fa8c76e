// A whole matrix as f16 for prefill's matrix products, eight weights a thread.
#include "octet_planes.cuh"

// weights in the GPU layout; out f16 [rows][cols]; grid (rows, ceil(cols / 2048))
template <class Format> DEVICE void dequantize(const u8* weights, u16* out, int cols) {
    const int e = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (e >= cols) return;
    *(uint4*)(out + (u64)blockIdx.x * cols + e) =
        packed8(Format::octet(weights + blockIdx.x * Format::row_bytes(cols), cols, e));
}

#define DEQUANTIZE(name, Format)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) name(const u8* weights, u16* out, int cols) {              \
        dequantize<Format>(weights, out, cols);                                                                  \
    }
DEQUANTIZE(dequantize_f16_q4_K, Q4K)
DEQUANTIZE(dequantize_f16_q6_K, Q6K)
DEQUANTIZE(dequantize_f16_q8_0, Q80)
DEQUANTIZE(dequantize_f16_f32, F32)
DEQUANTIZE(dequantize_f16_q4_0, Q40)
DEQUANTIZE(dequantize_f16_q4_1, Q41)
DEQUANTIZE(dequantize_f16_q5_0, Q50)
DEQUANTIZE(dequantize_f16_q5_1, Q51)
DEQUANTIZE(dequantize_f16_q2_K, Q2K)
DEQUANTIZE(dequantize_f16_q3_K, Q3K)
DEQUANTIZE(dequantize_f16_q5_K, Q5K)
DEQUANTIZE(dequantize_f16_iq4_nl, IQ4NL)
DEQUANTIZE(dequantize_f16_iq4_xs, IQ4XS)
DEQUANTIZE(dequantize_f16_bf16, BF16)
