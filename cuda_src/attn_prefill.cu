// Causal attention of many new positions on tensor cores. A block takes 64 (token, head) pairs of one KV head, a warp 16
// of them: the heads of a group share each tile of keys and values in shared memory. Weights of a tile go from the
// first product to the second without leaving their lanes.
#include "attention.cuh"
#include "fast_intrinsics.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#define THREADS 128
#define WARP_PAIRS 16
#define PAIRS (WARP_PAIRS * THREADS / WARP)
#define KEYS 64                     // positions a tile
// Rows of a tile, in f16: 16-byte reads of eight lanes, two rows of keys or four of values, meet all banks once.
#define KEY_STRIDE (HEAD_DIM + 32)
#define VALUE_STRIDE (HEAD_DIM + 8)
#define CHUNKS (HEAD_DIM / 32)      // of 32 elements of a query or key
#define BLOCKS (HEAD_DIM / 64)      // of 64 elements of a value

// q f32 [tokens][heads][HEAD_DIM]; k_cache, v_cache f16 [kv_heads][capacity][HEAD_DIM], already holding the new
// positions; position i32 [1], of token 0; out f16 [tokens][heads][HEAD_DIM];
// grid (ceil(tokens heads / kv_heads / 64), kv_heads)
extern "C" __global__ void __launch_bounds__(THREADS)
    attn_prefill(const float* q, const u16* k_cache, const u16* v_cache, const int* position, u16* out, int tokens,
                 int heads, int kv_heads, int capacity, float scale) {
    __shared__ __align__(16) u16 keys[KEYS][KEY_STRIDE], values[KEYS][VALUE_STRIDE];
    const int group = heads / kv_heads, pairs = tokens * group, start = *position;
    // the last pairs see most positions: their blocks start first
    const int pair0 = (gridDim.x - 1 - blockIdx.x) * PAIRS;
    const int last = start + (min(pair0 + PAIRS, pairs) - 1) / group;  // the last position any pair sees
    const u64 cache = (u64)blockIdx.y * capacity;
    const int lane = lane_id(), g = lane / 4, t = lane % 4;

    // Of pairs g and g + 8 of the warp: the query in base-2 units, the last position it sees, maximum and sum of its
    // weights. A lane has elements 32 c + 8 t .. + 7 of a query, and of keys: both products permute them alike.
    uint4 query[CHUNKS][2];
    u64 row[2];
    int seen[2];
    float top[2] = {NO_SCORE, NO_SCORE}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int pair = min(pair0 + warp_id() * WARP_PAIRS + g + 8 * r, pairs - 1);
        row[r] = ((u64)(pair / group) * heads + blockIdx.y * group + pair % group) * HEAD_DIM;
        seen[r] = start + pair / group;
        const float unit = scale * LOG2_E;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const float4 a = load_float4(q + row[r] + 32 * c + 8 * t), b = load_float4(q + row[r] + 32 * c + 8 * t + 4);
            query[c][r] = {pack2(a.x * unit, a.y * unit), pack2(a.z * unit, a.w * unit),
                           pack2(b.x * unit, b.y * unit), pack2(b.z * unit, b.w * unit)};
        }
    }
    // elements 64 b + 16 t + m of both pairs, and 64 b + 16 t + 8 + m
    float acc[BLOCKS][8][4] = {};

    for (int tile = 0; tile <= last; tile += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * HEAD_DIM / 8; i += THREADS) {
            const int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
            const u64 from = (cache + min(tile + p, last)) * HEAD_DIM + d;  // past the end: a repeat, weight 0
            *(uint4*)&keys[p][d] = load16(k_cache + from);
            *(uint4*)&values[p][d] = load16(v_cache + from);
        }
        __syncthreads();
        // s[n]: positions 8 n + 2 t and the next, of both pairs
        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const uint4 key = *(const uint4*)&keys[8 * n + g][32 * c + 8 * t], low = query[c][0], high = query[c][1];
                const u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
                const u32 first_key[2] = {key.x, key.y}, second_key[2] = {key.z, key.w};
                mma_16x8x16(s[n], first, first_key);
                mma_16x8x16(s[n], second, second_key);
            }
        }
        u32 weights[KEYS / 8][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float best = top[r], total = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = s[n][2 * r + i];
                    score = tile + 8 * n + 2 * t + i <= seen[r] ? score : NO_SCORE;
                    best = max_nan(best, score);
                }
            }
            best = max_nan(best, shuffle_xor(best, 1));
            best = max_nan(best, shuffle_xor(best, 2));
            const float shrink = exp2_fast(top[r] - best);
            top[r] = best;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                // a tile's first position is seen by every pair unless the tile is past them all: then top is a score
                const float a = exp2_fast(s[n][2 * r] - best), b = exp2_fast(s[n][2 * r + 1] - best);
                total += a + b;
                weights[n][r] = pack2(a, b);
            }
            sum[r] = fma_rn(sum[r], shrink, total);
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
                for (int m = 0; m < 8; ++m) acc[b][m][2 * r] *= shrink, acc[b][m][2 * r + 1] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            const u32 a[4] = {weights[n][0], weights[n][1], weights[n + 1][0], weights[n + 1][1]};
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                uint4 rows[4];  // positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9, elements 64 b + 8 g .. + 7
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    rows[i] = *(const uint4*)&values[8 * n + 2 * t + (i & 1) + 8 * (i >> 1)][64 * b + 8 * g];
                const u32* word[4] = {(const u32*)&rows[0], (const u32*)&rows[1], (const u32*)&rows[2],
                                      (const u32*)&rows[3]};
#pragma unroll
                for (int m = 0; m < 8; m += 2) {
                    const u32 even[2] = {low_halves(word[0][m / 2], word[1][m / 2]),
                                         low_halves(word[2][m / 2], word[3][m / 2])};
                    const u32 odd[2] = {high_halves(word[0][m / 2], word[1][m / 2]),
                                        high_halves(word[2][m / 2], word[3][m / 2])};
                    mma_16x8x16(acc[b][m], a, even);
                    mma_16x8x16(acc[b][m + 1], a, odd);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = sum[r];
        total = add_rn(total, shuffle_xor(total, 1));
        total = add_rn(total, shuffle_xor(total, 2));
        if (pair0 + warp_id() * WARP_PAIRS + g + 8 * r >= pairs) continue;
        const float by = div_rn(1.0f, total);
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float(*v)[4] = acc[b];
                const int c = 2 * r + i;
                *(uint4*)(out + row[r] + 64 * b + 16 * t + 8 * i) = {
                    pack2(v[0][c] * by, v[1][c] * by), pack2(v[2][c] * by, v[3][c] * by),
                    pack2(v[4][c] * by, v[5][c] * by), pack2(v[6][c] * by, v[7][c] * by)};
            }
    }
}
