// Causal attention of many new positions. A block takes 32 (token, head) pairs of one KV head: the heads of a group
// share each K/V tile in shared memory. In the score step a lane owns a key, in the value step some dimensions.
#include "attention.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#define THREADS 128
#define ROWS 32                             // pairs a block
#define WARP_ROWS (ROWS * WARP / THREADS)   // pairs a warp
#define KEY_STRIDE (HEAD_DIM + 8)           // 16-byte reads of 32 neighbouring keys hit all banks evenly
#define DIMS (HEAD_DIM / WARP)              // value dimensions a lane

// q f32 [tokens][heads][HEAD_DIM]; k_cache, v_cache f16 [kv_heads][capacity][HEAD_DIM], already holding the new
// positions; position i32 [1], of token 0; out f32 [tokens][heads][HEAD_DIM];
// grid (ceil(tokens heads / kv_heads / 32), kv_heads)
extern "C" __global__ void __launch_bounds__(THREADS)
    attn_prefill(const float* q, const u16* k_cache, const u16* v_cache, const int* position, float* out, int tokens,
                 int heads, int kv_heads, int capacity, float scale) {
    __shared__ __align__(16) float queries[ROWS][HEAD_DIM];
    __shared__ __align__(16) u16 keys[ATTN_TILE][KEY_STRIDE], values[ATTN_TILE][HEAD_DIM];
    const int group = heads / kv_heads, pairs = tokens * group, pair0 = blockIdx.x * ROWS, start = *position;
    const int last = start + min((pair0 + ROWS - 1) / group, tokens - 1);  // the last position any pair sees
    const u64 cache = (u64)blockIdx.y * capacity;
    const int lane = lane_id(), row0 = warp_id() * WARP_ROWS;

    for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += THREADS) {
        const int r = i / HEAD_DIM, pair = min(pair0 + r, pairs - 1);
        const u64 head = (u64)(pair / group) * heads + blockIdx.y * group + pair % group;
        queries[r][i % HEAD_DIM] = q[head * HEAD_DIM + i % HEAD_DIM] * (scale * LOG2_E);
    }
    float m[WARP_ROWS], l[WARP_ROWS], acc[WARP_ROWS][DIMS];
    int seen[WARP_ROWS];  // the last position each pair may attend to
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r) {
        m[r] = NO_SCORE;
        l[r] = 0.0f;
        seen[r] = start + min(pair0 + row0 + r, pairs - 1) / group;
#pragma unroll
        for (int d = 0; d < DIMS; ++d) acc[r][d] = 0.0f;
    }
    for (int tile = 0; tile <= last; tile += ATTN_TILE) {
        __syncthreads();
        for (int i = threadIdx.x; i < ATTN_TILE * HEAD_DIM / 8; i += THREADS) {
            const int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
            const u64 from = (cache + min(tile + p, last)) * HEAD_DIM + d;  // past the end: a repeat, weight 0
            *(uint4*)&keys[p][d] = load16(k_cache + from);
            *(uint4*)&values[p][d] = load16(v_cache + from);
        }
        __syncthreads();
        float s[WARP_ROWS] = {};
#pragma unroll 2
        for (int d = 0; d < HEAD_DIM; d += 8) {
            const Float8 key = halves(*(const uint4*)&keys[lane][d]);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) {
                const float4 a = *(const float4*)&queries[row0 + r][d], b = *(const float4*)&queries[row0 + r][d + 4];
                s[r] = fma_rn(a.x, key.v[0], fma_rn(a.y, key.v[1], fma_rn(a.z, key.v[2], fma_rn(a.w, key.v[3], s[r]))));
                s[r] = fma_rn(b.x, key.v[4], fma_rn(b.y, key.v[5], fma_rn(b.z, key.v[6], fma_rn(b.w, key.v[7], s[r]))));
            }
        }
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) {
            const bool live = tile + lane <= seen[r];
            const float top = max_nan(m[r], warp_max(live ? s[r] : NO_SCORE));
            const float shrink = exp2_fast(m[r] - top);
            m[r] = top;
            s[r] = live ? exp2_fast(s[r] - top) : 0.0f;
            l[r] = fma_rn(l[r], shrink, warp_sum(s[r]));
#pragma unroll
            for (int d = 0; d < DIMS; ++d) acc[r][d] *= shrink;
        }
#pragma unroll 4
        for (int p = 0; p < ATTN_TILE; ++p) {
            float value[DIMS];
#pragma unroll
            for (int d = 0; d < DIMS; d += 2) {
                const u32 two = *(const u32*)&values[p][lane * DIMS + d];
                value[d] = low_half(two);
                value[d + 1] = high_half(two);
            }
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) {
                const float weight = shuffle(s[r], p);
#pragma unroll
                for (int d = 0; d < DIMS; ++d) acc[r][d] = fma_rn(weight, value[d], acc[r][d]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r) {
        const int pair = pair0 + row0 + r;
        if (pair >= pairs) continue;
        const u64 head = (u64)(pair / group) * heads + blockIdx.y * group + pair % group;
#pragma unroll
        for (int d = 0; d < DIMS; ++d) out[head * HEAD_DIM + lane * DIMS + d] = div_rn(acc[r][d], l[r]);
    }
}
