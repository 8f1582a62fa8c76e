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

// Eight values as they lie in memory: two vectors of f32, or one of bf16 pairs.
template <InputKind kind> struct Raw {
    uint4 low, high;
    DEVICE void load(const float* x, int at) {
        low = load_relaxed16(kind == BRIEF ? x + 4 * at : x + 8 * at);
        if (kind != BRIEF) high = load_relaxed16(x + 8 * at + 4);
    }
    DEVICE bool ready(u32 turn) const { return in_turn(low, turn) && (kind == BRIEF || in_turn(high, turn)); }
    DEVICE Eight values() const {
        if (kind == BRIEF)
            return {{brief_low(low.x), brief_high(low.x), brief_low(low.y), brief_high(low.y)},
                    {brief_low(low.z), brief_high(low.z), brief_low(low.w), brief_high(low.w)}};
        return {{int_as_float(low.x), int_as_float(low.y), int_as_float(low.z), int_as_float(low.w)},
                {int_as_float(high.x), int_as_float(high.y), int_as_float(high.z), int_as_float(high.w)}};
    }
};

// x [cols], written by other blocks; gamma f32 [cols] for NORMED; wait: until every word is of this turn. The mean
// square is left to the rows' epilogue: it scales every result alike, so the integers need not wait for it.
template <InputKind kind>
DEVICE void quantize_input(const Scratch& scratch, const float* x, const float* gamma, int cols, bool wait, u32 turn) {
    const int LOADS = kind == NORMED ? 2 : 4;  // eights of values a thread loads before it uses the first
    const int eights = steps_of(cols) * (STEP / 8), live = cols / 8;
    float sum = 0.0f;
#pragma unroll 1
    for (int first = threadIdx.x; first < eights; first += LOADS * THREADS) {
        Raw<kind> raw[LOADS];
        Eight g[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = min(first + i * THREADS, live - 1);
            raw[i].load(x, at);
            if (kind == NORMED) g[i] = {load_float4(gamma + 8 * at), load_float4(gamma + 8 * at + 4)};
        }
        for (bool ready = !wait; !ready;) {
            ready = true;
#pragma unroll
            for (int i = 0; i < LOADS; ++i)
                if (!raw[i].ready(turn)) {
                    raw[i].load(x, min(first + i * THREADS, live - 1));
                    ready = false;
                }
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = first + i * THREADS;
            if (at - lane_id() >= eights) break;  // eights go by whole warps
            Eight v = raw[i].values();
            if (at >= live) v.low = v.high = float4{0.0f, 0.0f, 0.0f, 0.0f};
            if (kind == NORMED) {
                sum = squares(v.low, squares(v.high, sum));
                v.low = product(v.low, g[i].low);
                v.high = product(v.high, g[i].high);
            }
            store_eight(scratch.image, v, at);
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
