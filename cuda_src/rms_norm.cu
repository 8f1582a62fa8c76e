// Root-mean-square norm, one block a token.
#include "reduce.cuh"

template <class Out> DEVICE void normed(const float* x, const float* weight, Out* out, int cols, float eps) {
    const float4* row = (const float4*)(x + (u64)blockIdx.x * cols);
    Out* to = out + (u64)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
        const float4 v = row[i];
        sum = fma_rn(v.x, v.x, fma_rn(v.y, v.y, fma_rn(v.z, v.z, fma_rn(v.w, v.w, sum))));
    }
    sum = block_sum_to_all(sum);
    const float scale = div_rn(1.0f, sqrt_rn(add_rn(div_rn(sum, (float)cols), eps)));
    for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {  // the second read hits L1
        const float4 v = row[i], w = load_float4(weight + 4 * i);
        store4(to + 4 * i, float4{mul_rn(mul_rn(v.x, scale), w.x), mul_rn(mul_rn(v.y, scale), w.y),
                                  mul_rn(mul_rn(v.z, scale), w.z), mul_rn(mul_rn(v.w, scale), w.w)});
    }
}

// x f32 [tokens][cols]; weight f32 [cols]; out f32 [tokens][cols], may be x; cols a multiple of 4; grid (tokens)
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm(const float* x, const float* weight, float* out, int cols, float eps) {
    normed(x, weight, out, cols, eps);
}
// the same, out f16 [tokens][cols]
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_f16(const float* x, const float* weight, u16* out, int cols, float eps) {
    normed(x, weight, out, cols, eps);
}
