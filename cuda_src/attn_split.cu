// Decode attention over one piece of the KV range: GROUP query heads of one KV head share every K and V load.
// HEAD_DIM/8 lanes hold a position, eight dimensions each, so one load instruction is 16 bytes a lane, coalesced.
#include "attention.cuh"
#include "quant.cuh"

#ifndef GROUP
#define GROUP 5  // query heads a block
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#define THREADS 128
#define LANES (HEAD_DIM / 8)        // lanes a position
#define SLOTS (THREADS / LANES)     // positions at once
#define BATCH (ATTN_TILE / SLOTS)   // positions a slot has in flight

// q f32 [heads][HEAD_DIM]; k_cache, v_cache f16 [kv_heads][capacity][HEAD_DIM]; position i32 [1] (KV length - 1);
// part_acc f32 [heads][splits][HEAD_DIM]; part_ml f32 [heads][splits][2]; grid (heads / GROUP, splits)
extern "C" __global__ void __launch_bounds__(THREADS)
    attn_split(const float* q, const u16* k_cache, const u16* v_cache, const int* position, float* part_acc,
               float* part_ml, int heads, int kv_heads, int capacity, int splits, float scale) {
    __shared__ __align__(16) float slot_acc[SLOTS][GROUP][HEAD_DIM];
    __shared__ float slot_m[SLOTS][GROUP], slot_l[SLOTS][GROUP];
    const int kv_len = *position + 1, chunk = split_chunk(kv_len, splits);
    const int begin = blockIdx.y * chunk, end = min(begin + chunk, kv_len);
    if (begin >= kv_len) return;
    const int head0 = blockIdx.x * GROUP;
    const u64 cache = (u64)(head0 / (heads / kv_heads)) * capacity;
    const int slot = threadIdx.x / LANES, dim = threadIdx.x % LANES * 8;

    Float8 query[GROUP], acc[GROUP];
    float m[GROUP], l[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        m[g] = NO_SCORE;
        l[g] = 0.0f;
        query[g] = F32::octet((const u8*)q, 0, (head0 + g) * HEAD_DIM + dim);
#pragma unroll
        for (int d = 0; d < 8; ++d) {
            query[g].v[d] *= scale * LOG2_E;
            acc[g].v[d] = 0.0f;
        }
    }
    for (int tile = begin; tile < end; tile += ATTN_TILE) {
        uint4 keys[BATCH], values[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int p = min(tile + b * SLOTS + slot, end - 1);  // past the end: a valid address, weight 0
            keys[b] = load16(k_cache + (cache + p) * HEAD_DIM + dim);
            values[b] = load16(v_cache + (cache + p) * HEAD_DIM + dim);
        }
        float s[BATCH][GROUP];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const Float8 key = halves(keys[b]);
            const bool live = tile + b * SLOTS + slot < end;
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float dot = 0.0f;
#pragma unroll
                for (int d = 0; d < 8; ++d) dot = fma_rn(query[g].v[d], key.v[d], dot);
                dot = warp_sum<LANES>(dot);
                s[b][g] = live ? dot : NO_SCORE;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float top = m[g];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) top = max_nan(top, s[b][g]);
            const float shrink = exp2_fast(m[g] - top);
            m[g] = top;
            l[g] *= shrink;
#pragma unroll
            for (int d = 0; d < 8; ++d) acc[g].v[d] *= shrink;
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                s[b][g] = tile + b * SLOTS + slot < end ? exp2_fast(s[b][g] - top) : 0.0f;
                l[g] += s[b][g];
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const Float8 value = halves(values[b]);
#pragma unroll
            for (int g = 0; g < GROUP; ++g)
#pragma unroll
                for (int d = 0; d < 8; ++d) acc[g].v[d] = fma_rn(s[b][g], value.v[d], acc[g].v[d]);
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        float4* to = (float4*)&slot_acc[slot][g][dim];
        to[0] = float4{acc[g].v[0], acc[g].v[1], acc[g].v[2], acc[g].v[3]};
        to[1] = float4{acc[g].v[4], acc[g].v[5], acc[g].v[6], acc[g].v[7]};
        if (dim == 0) {
            slot_m[slot][g] = m[g];
            slot_l[slot][g] = l[g];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        const int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float top = NO_SCORE, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) top = max_nan(top, slot_m[k][g]);
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) {
            const float weight = exp2_fast(slot_m[k][g] - top);
            sum = fma_rn(weight, slot_acc[k][g][d], sum);
            total = fma_rn(weight, slot_l[k][g], total);
        }
        const u64 part = (u64)(head0 + g) * splits + blockIdx.y;
        part_acc[part * HEAD_DIM + d] = sum;
        if (d == 0) {
            part_ml[2 * part] = top;
            part_ml[2 * part + 1] = total;
        }
    }
}
