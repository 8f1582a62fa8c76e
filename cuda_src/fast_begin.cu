// The start of a step of the fast build: the token's embedding, and counters at zero.
#include "quant.cuh"

// weights in the row layout; token i32 [1]; out f32 [cols]; counters u32 [count]; grid (ceil(cols / 1024)), 128 threads
template <class Format>
DEVICE void begin(const u8* weights, const int* token, float* out, u32* counters, int cols, int count) {
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
    const int e = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (e >= cols) return;
    const Float8 w = Format::octet(weights + *token * Format::row_bytes(cols), cols, e);
    float4* to = (float4*)(out + e);
    to[0] = float4{w.v[0], w.v[1], w.v[2], w.v[3]};
    to[1] = float4{w.v[4], w.v[5], w.v[6], w.v[7]};
}

#define BEGIN(name, Format)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                            \
        name(const u8* weights, const int* token, float* out, u32* counters, int cols, int count) {              \
        begin<Format>(weights, token, out, counters, cols, count);                                               \
    }
BEGIN(fast_begin_q4_K, Q4K)
BEGIN(fast_begin_q6_K, Q6K)
BEGIN(fast_begin_q8_0, Q80)
BEGIN(fast_begin_f16, F16)
BEGIN(fast_begin_f32, F32)
