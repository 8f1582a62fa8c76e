// out = silu(gate) * up, four values a thread.
#include "common.cuh"

DEVICE float silu_times(float gate, float up) {
    return mul_rn(div_rn(gate, add_rn(1.0f, exp2_fast(-gate * LOG2_E))), up);
}
template <class Out> DEVICE void gated(const float* gate, const float* up, Out* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    const float4 g = ((const float4*)gate)[i], u = ((const float4*)up)[i];
    store4(out + 4 * (u64)i,
           float4{silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z), silu_times(g.w, u.w)});
}

// gate, up, out f32 [n], n a multiple of 4; out may be gate or up
extern "C" __global__ void __launch_bounds__(256) swiglu(const float* gate, const float* up, float* out, int n) {
    gated(gate, up, out, n);
}
// the same, out f16 [n]
extern "C" __global__ void __launch_bounds__(256) swiglu_f16(const float* gate, const float* up, u16* out, int n) {
    gated(gate, up, out, n);
}
