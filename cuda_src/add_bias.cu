// Adds one bias row to every token.
#include "common.cuh"

// x f32 [tokens][cols]; bias f32 [cols]; grid (ceil(cols / 256), tokens)
extern "C" __global__ void __launch_bounds__(256) add_bias(float* x, const float* bias, int cols) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    float* at = x + (u64)blockIdx.y * cols + c;
    *at = add_rn(*at, bias[c]);
}
