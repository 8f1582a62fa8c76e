// Rotary positions and the KV write, one block a head and token, one thread a pair of elements.
#include "common.cuh"

// q f32 [tokens][heads][head_dim], rotated in place; k, v f32 [tokens][kv_heads][head_dim];
// table f32 [capacity][head_dim/2][2], cos and sin; position i32 [1], of token 0;
// k_cache, v_cache f16 [kv_heads][capacity][head_dim]; grid (heads + 2 kv_heads, tokens), head_dim/2 threads
extern "C" __global__ void rope_kv_write(float* q, const float* k, const float* v, const float* table,
                                         const int* position, u16* k_cache, u16* v_cache, int heads, int kv_heads,
                                         int head_dim, int capacity, int interleaved) {
    const int pair = threadIdx.x, t = blockIdx.y, at = *position + t;
    if (pair >= head_dim / 2 || at >= capacity) return;
    int head = blockIdx.x;
    const int a = interleaved ? 2 * pair : pair, b = interleaved ? a + 1 : pair + head_dim / 2;
    if (head >= heads + kv_heads) {
        head -= heads + kv_heads;
        const float* from = v + ((u64)t * kv_heads + head) * head_dim;
        u32* to = (u32*)(v_cache + ((u64)head * capacity + at) * head_dim);
        to[pair] = pack2(from[2 * pair], from[2 * pair + 1]);
        return;
    }
    const float* angle = table + ((u64)at * (head_dim / 2) + pair) * 2;
    const float c = angle[0], s = angle[1];
    if (head < heads) {
        float* x = q + ((u64)t * heads + head) * head_dim;
        const float xa = x[a], xb = x[b];
        x[a] = fma_rn(xa, c, -mul_rn(xb, s));
        x[b] = fma_rn(xa, s, mul_rn(xb, c));
        return;
    }
    head -= heads;
    const float* x = k + ((u64)t * kv_heads + head) * head_dim;
    u16* to = k_cache + ((u64)head * capacity + at) * head_dim;
    to[a] = float_to_half(fma_rn(x[a], c, -mul_rn(x[b], s)));
    to[b] = float_to_half(fma_rn(x[a], s, mul_rn(x[b], c)));
}
