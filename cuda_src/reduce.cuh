// Sums and maxima over a warp or a block, in one fixed order: the same inputs always give the same bits.
#pragma once
#include "common.cuh"

// Over groups of `lanes` neighbouring lanes (a power of two); every lane gets the result.
template <int lanes = WARP> DEVICE float warp_sum(float v) {
#pragma unroll
    for (int k = lanes / 2; k > 0; k >>= 1) v = add_rn(v, shuffle_xor(v, k));
    return v;
}
template <int lanes = WARP> DEVICE int warp_sum(int v) {
#pragma unroll
    for (int k = lanes / 2; k > 0; k >>= 1) v += shuffle_xor(v, k);
    return v;
}
template <int lanes = WARP> DEVICE float warp_max(float v) {
#pragma unroll
    for (int k = lanes / 2; k > 0; k >>= 1) v = max_nan(v, shuffle_xor(v, k));
    return v;
}

// For blocks of up to 256 threads in whole warps; thread 0 alone gets the sum. Missing warps of a narrower block
// are left out, which equals adding +0.
DEVICE float block_sum_to_first(float v) {
    __shared__ float sums[8];
    v = warp_sum(v);
    if (lane_id() == 0) sums[warp_id()] = v;
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x == 0) {
        const int warps = blockDim.x / WARP;
#pragma unroll
        for (int w = 0; w < 8; ++w)
            if (w < warps) total = add_rn(total, sums[w]);
    }
    return total;
}

// For blocks of up to 1024 threads in whole warps; every thread gets the sum. Called once a kernel.
DEVICE float block_sum_to_all(float v) {
    __shared__ float sums[WARP];
    v = warp_sum(v);
    if (lane_id() == 0) sums[warp_id()] = v;
    __syncthreads();
    return warp_sum(lane_id() < (int)(blockDim.x / WARP) ? sums[lane_id()] : 0.0f);
}
