// Rows of an embedding matrix as f32, eight values a thread.
#include "octet_planes.cuh"

// weights in the GPU layout; tokens i32 [tokens]; out f32 [tokens][cols]; grid (ceil(cols / 1024), tokens)
template <class Format> DEVICE void embed(const u8* weights, const int* tokens, float* out, int cols) {
    const int e = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (e >= cols) return;
    const Float8 w = Format::octet(weights + tokens[blockIdx.y] * Format::row_bytes(cols), cols, e);
    float4* to = (float4*)(out + (u64)blockIdx.y * cols + e);
    to[0] = float4{w.v[0], w.v[1], w.v[2], w.v[3]};
    to[1] = float4{w.v[4], w.v[5], w.v[6], w.v[7]};
}

#define EMBED(name, Format)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                            \
        name(const u8* weights, const int* tokens, float* out, int cols) {                                       \
        embed<Format>(weights, tokens, out, cols);                                                               \
    }
EMBED(embed_q4_K, Q4K)
EMBED(embed_q6_K, Q6K)
EMBED(embed_q8_0, Q80)
EMBED(embed_f16, F16)
EMBED(embed_f32, F32)
EMBED(embed_q4_0, Q40)
EMBED(embed_q4_1, Q41)
EMBED(embed_q5_0, Q50)
EMBED(embed_q5_1, Q51)
EMBED(embed_q2_K, Q2K)
EMBED(embed_q3_K, Q3K)
EMBED(embed_q5_K, Q5K)
EMBED(embed_iq4_nl, IQ4NL)
EMBED(embed_iq4_xs, IQ4XS)
EMBED(embed_bf16, BF16)
