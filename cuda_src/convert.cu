// f32 <-> f16, four values a thread.
#include "common.cuh"

// x f32 [n]; out f16 [n], nearest even; n a multiple of 4
extern "C" __global__ void __launch_bounds__(256) f32_to_f16(const float* x, u16* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    const float4 v = ((const float4*)x)[i];
    ((uint2*)out)[i] = uint2{pack2(v.x, v.y), pack2(v.z, v.w)};
}

// x f16 [n]; out f32 [n]; n a multiple of 4
extern "C" __global__ void __launch_bounds__(256) f16_to_f32(const u16* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    const uint2 v = ((const uint2*)x)[i];
    ((float4*)out)[i] = float4{low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y)};
}
