// A block's own quantized copy of a phase's input: i8 in 32s, with scales and sums (IMAGE_BYTES a step of 512).
#pragma once
#include "fast_layout.cuh"
#include "reduce.cuh"

#define SMALLEST 1e-30f  // 32 values below it become zeros: 127 / max would overflow

struct Eight {
    float4 low, high;
};

DEVICE float largest(float4 v) { return max_nan(max_nan(fabsf(v.x), fabsf(v.y)), max_nan(fabsf(v.z), fabsf(v.w))); }
DEVICE float4 product(float4 a, float4 b) {
    return {mul_rn(a.x, b.x), mul_rn(a.y, b.y), mul_rn(a.z, b.z), mul_rn(a.w, b.w)};
}
DEVICE float squares(float4 v, float sum) {
    return fma_rn(v.x, v.x, fma_rn(v.y, v.y, fma_rn(v.z, v.z, fma_rn(v.w, v.w, sum))));
}
DEVICE u32 quantized(float4 v, float inverse) {
    const int a = round_even(mul_rn(v.x, inverse)), b = round_even(mul_rn(v.y, inverse));
    const int c = round_even(mul_rn(v.z, inverse)), d = round_even(mul_rn(v.w, inverse));
    return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | (u32)(d & 0xff) << 24;
}

// Four neighbouring lanes hold 32 values, eight each; `at` counts eights from the start of the input.
DEVICE void store_eight(u8* image, Eight v, int at) {
    float top = max_nan(largest(v.low), largest(v.high));
    top = max_nan(top, shuffle_xor(top, 1));
    top = max_nan(top, shuffle_xor(top, 2));
    const float inverse = top >= SMALLEST ? mul_rn(127.0f, reciprocal(top)) : 0.0f;
    const u32 low = quantized(v.low, inverse), high = quantized(v.high, inverse);
    const u32 ones = 0x01010101;
    int sum = dp4a(low, ones, dp4a(high, ones, 0));
    sum += shuffle_xor(sum, 1);
    const int other = shuffle_xor(sum, 2);
    const int quarter = at & 3, block = at >> 2, j = block & 3, unit = block >> 2 & 3;
    u8* step = image + (block >> 4) * IMAGE_BYTES;
    *(uint2*)(step + ((2 * j + (quarter >> 1)) * 4 + unit) * 16 + (quarter & 1) * 8) = uint2{low, high};
    if (quarter == 0) {
        ((float*)(step + IMAGE_SCALES))[unit * 4 + j] = mul_rn(top, 1.0f / 127.0f);
        ((u32*)(step + IMAGE_SUMS))[unit * 4 + j] = (u32)(sum & 0xffff) | (u32)other << 16;
    }
}

// Two bf16 as f32, and f32 as bf16, rounded to nearest even. Between gate and down half the bytes are worth more than
// eight bits of fraction: int8 follows, and every block reads all of it.
DEVICE float brief_low(u32 pair) { return int_as_float(pair << 16); }
DEVICE float brief_high(u32 pair) { return int_as_float(pair & 0xffff0000); }
DEVICE u16 brief(float v) {
    const u32 bits = float_as_int(v);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

enum InputKind { NORMED, PLAIN, BRIEF };

template <InputKind kind> DEVICE Eight load_eight(const float* x, int at) {
    if (kind != BRIEF) return {load_fresh4(x + 8 * at), load_fresh4(x + 8 * at + 4)};
    const uint4 v = load_fresh16((const u16*)x + 8 * at);
    return {{brief_low(v.x), brief_high(v.x), brief_low(v.y), brief_high(v.y)},
            {brief_low(v.z), brief_high(v.z), brief_low(v.w), brief_high(v.w)}};
}

// x [cols], written by other blocks; gamma f32 [cols] for NORMED. The mean square is left to the rows' epilogue: it
// scales every result alike, so the integers need not wait for it.
template <InputKind kind>
DEVICE void quantize_input(const Scratch& scratch, const float* x, const float* gamma, int cols) {
    const int LOADS = kind == NORMED ? 2 : 4;  // eights of values a thread loads before it uses the first
    const int eights = steps_of(cols) * (STEP / 8), live = cols / 8;
    float sum = 0.0f;
#pragma unroll 1
    for (int first = threadIdx.x; first < eights; first += LOADS * THREADS) {
        Eight v[LOADS], g[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = first + i * THREADS;
            v[i].low = v[i].high = float4{0.0f, 0.0f, 0.0f, 0.0f};
            if (kind == NORMED) g[i] = v[i];
            if (at < live) {
                v[i] = load_eight<kind>(x, at);
                if (kind == NORMED) g[i] = {load_float4(gamma + 8 * at), load_float4(gamma + 8 * at + 4)};
            }
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = first + i * THREADS;
            if (at - lane_id() >= eights) break;  // eights go by whole warps
            if (kind == NORMED) {
                sum = squares(v[i].low, squares(v[i].high, sum));
                v[i].low = product(v[i].low, g[i].low);
                v[i].high = product(v[i].high, g[i].high);
            }
            store_eight(scratch.image, v[i], at);
        }
    }
    if (kind == NORMED) {
        sum = warp_sum(sum);
        if (lane_id() == 0) scratch.squares[warp_id()] = sum;
    }
}

// 1 / root mean square of the input that quantize_input<NORMED> took.
DEVICE float inverse_rms(const Scratch& scratch, int cols, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum = add_rn(sum, scratch.squares[w]);
    return reciprocal_root(add_rn(mul_rn(sum, reciprocal((float)cols)), eps));
}
