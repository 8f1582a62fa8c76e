// f32 activations -> q8 blocks of 32; eight lanes a block, four values a lane (one 16-byte load).
#include "reduce.cuh"
#include "quant.cuh"

#define SMALLEST 1e-30f  // a block below it becomes zeros: 127 / max would overflow

// x f32 [tokens][cols]; out q8 blocks [tokens][cols/32], 48 bytes each; grid (ceil(cols / 512), tokens), 128 threads
extern "C" __global__ void __launch_bounds__(128) quantize_q8(const float* x, u8* out, int cols) {
    const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const bool inside = at < cols;  // lanes past the end stay for the shuffles
    const float4 v = inside ? *(const float4*)(x + (u64)blockIdx.y * cols + at) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    const float mine = max_nan(max_nan(fabsf(v.x), fabsf(v.y)), max_nan(fabsf(v.z), fabsf(v.w)));
    const float largest = warp_max<8>(mine);
    const float inverse = largest >= SMALLEST ? div_rn(127.0f, largest) : 0.0f;
    const int a = round_even(mul_rn(v.x, inverse)), b = round_even(mul_rn(v.y, inverse));
    const int c = round_even(mul_rn(v.z, inverse)), d = round_even(mul_rn(v.w, inverse));
    const int half_sum = warp_sum<4>(a + b + c + d);    // lanes 0..3 hold quants 0..15, lanes 4..7 the rest
    const int other_sum = shuffle_xor(half_sum, 4);
    if (!inside) return;
    u8* block = out + ((u64)blockIdx.y * (cols / UNIT) + at / UNIT) * Q8_BLOCK;
    const int lane = threadIdx.x & 7;
    ((u32*)(block + 16))[lane] = (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | (u32)(d & 0xff) << 24;
    if (lane == 0) {
        ((float*)block)[0] = div_rn(largest, 127.0f);
        ((int*)block)[1] = half_sum;
        ((int*)block)[2] = other_sum;
        ((int*)block)[3] = 0;
    }
}
