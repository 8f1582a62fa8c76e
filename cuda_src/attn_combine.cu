// Joins the partial results of attn_split, one block a head; splits without positions are never read.
#include "attention.cuh"

#define MAX_SPLITS 256

// part_acc f32 [heads][splits][head_dim]; part_ml f32 [heads][splits][2]; position i32 [1];
// out f32 [heads][head_dim]; grid (heads), head_dim threads
extern "C" __global__ void attn_combine(const float* part_acc, const float* part_ml, const int* position, float* out,
                                        int head_dim, int splits) {
    __shared__ float weights[MAX_SPLITS], sums[MAX_SPLITS];
    const int kv_len = *position + 1, chunk = split_chunk(kv_len, splits);
    const int live = (kv_len + chunk - 1) / chunk;
    const u64 first = (u64)blockIdx.x * splits;
    for (int s = threadIdx.x; s < live; s += blockDim.x) {
        weights[s] = part_ml[2 * (first + s)];
        sums[s] = part_ml[2 * (first + s) + 1];
    }
    __syncthreads();
    float top = NO_SCORE, total = 0.0f, acc = 0.0f;
    for (int s = 0; s < live; ++s) top = max_nan(top, weights[s]);
    const float* part = part_acc + first * head_dim + threadIdx.x;
#pragma unroll 4
    for (int s = 0; s < live; ++s) {
        const float weight = exp2_fast(weights[s] - top);
        total = fma_rn(weight, sums[s], total);
        acc = fma_rn(weight, part[(u64)s * head_dim], acc);
    }
    out[(u64)blockIdx.x * head_dim + threadIdx.x] = div_rn(acc, total);
}
