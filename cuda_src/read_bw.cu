// Reads memory and does nothing else: what a device can stream is the ceiling of every weight matrix.
#include "intrinsics.cuh"

#define UNROLL 8

// data: [n] 16-byte words; sink: one word, written only if the bits of everything read are all ones.
// Each thread keeps UNROLL independent loads in flight; a grid-stride loop covers any n.
extern "C" __global__ void __launch_bounds__(256) read_bw(const uint4* data, u32* sink, int n) {
    const int stride = gridDim.x * blockDim.x;
    u32 all = FULL_MASK;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
        uint4 v[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) v[k] = load16(data + i + k * stride);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) all &= v[k].x & v[k].y & v[k].z & v[k].w;
    }
    for (; i < n; i += stride) {
        const uint4 v = load16(data + i);
        all &= v.x & v.y & v.z & v.w;
    }
    if (all == FULL_MASK) *sink = all;
}
