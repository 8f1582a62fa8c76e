// Biases of q, k and v where a prompt brings them along, rotary positions and the KV write: one thread a pair of
// elements, several tokens a block.
#include "common.cuh"

DEVICE float biased(const float* x, const float* bias, int i) { return bias ? add_rn(x[i], bias[i]) : x[i]; }

// q f32 [tokens][heads][head_dim], rotated in place; k, v f32 [tokens][kv_heads][head_dim]; biases f32
// [heads][head_dim] and [kv_heads][head_dim], or null; table f32 [capacity][head_dim/2][2], cos and sin; position i32
// [1], of token 0; k_cache, v_cache f16 [kv_heads][capacity][head_dim];
// grid (heads + 2 kv_heads, ceil(tokens / those of a block)), head_dim/2 threads a token of a block
extern "C" __global__ void rope_kv_write(float* q, const float* k, const float* v, const float* q_bias,
                                         const float* k_bias, const float* v_bias, const float* table,
                                         const int* position, u16* k_cache, u16* v_cache, int tokens, int heads,
                                         int kv_heads, int head_dim, int capacity, int interleaved) {
    const int pairs = head_dim / 2, pair = threadIdx.x % pairs;
    const int t = (blockIdx.y * blockDim.x + threadIdx.x) / pairs, at = *position + t;
    if (t >= tokens || at >= capacity) return;
    int head = blockIdx.x;
    const int a = interleaved ? 2 * pair : pair, b = interleaved ? a + 1 : pair + pairs;
    if (head >= heads + kv_heads) {
        head -= heads + kv_heads;
        const float* x = v + ((u64)t * kv_heads + head) * head_dim;
        const float* bias = v_bias ? v_bias + head * head_dim : v_bias;
        u32* to = (u32*)(v_cache + ((u64)head * capacity + at) * head_dim);
        to[pair] = pack2(biased(x, bias, 2 * pair), biased(x, bias, 2 * pair + 1));
        return;
    }
    const float* angle = table + ((u64)at * pairs + pair) * 2;
    const float c = angle[0], s = angle[1];
    if (head < heads) {
        float* x = q + ((u64)t * heads + head) * head_dim;
        const float* bias = q_bias ? q_bias + head * head_dim : q_bias;
        const float xa = biased(x, bias, a), xb = biased(x, bias, b);
        x[a] = fma_rn(xa, c, -mul_rn(xb, s));
        x[b] = fma_rn(xa, s, mul_rn(xb, c));
        return;
    }
    head -= heads;
    const float* x = k + ((u64)t * kv_heads + head) * head_dim;
    const float* bias = k_bias ? k_bias + head * head_dim : k_bias;
    const float xa = biased(x, bias, a), xb = biased(x, bias, b);
    u16* to = k_cache + ((u64)head * capacity + at) * head_dim;
    to[a] = float_to_half(fma_rn(xa, c, -mul_rn(xb, s)));
    to[b] = float_to_half(fma_rn(xa, s, mul_rn(xb, c)));
}
