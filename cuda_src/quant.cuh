// Block formats in the GPU layout: where the bits are, how a unit of 32 weights meets 32 q8 activations, and how
// eight neighbouring weights become floats. engine/quant.py and engine/repack.py describe the same bytes.
#pragma once
#include "common.cuh"

#define UNIT 32             // weights a unit
#define SUPER 256           // weights a q4_K or q6_K block
#define Q4_K_STRIDE 144     // f16 d, f16 dmin, 12 scale bytes | 128 bytes of nibbles
#define Q6_K_STRIDE 224     // ql 128 | qh 64 | scales 16 | f16 d, padded from 210 to a 16-byte multiple
#define Q8_BLOCK 48         // f32 d, i32 sum of q[0..15], i32 sum of q[16..31], i32 0 | int8 q[32]

DEVICE u64 q4_k_row(int cols) { return (u64)(cols / SUPER) * Q4_K_STRIDE; }
DEVICE u64 q6_k_row(int cols) { return (u64)(cols / SUPER) * Q6_K_STRIDE; }
// cols int8, then cols/32 f16, rounded up to 16 bytes
DEVICE u64 q8_0_row(int cols) { return ((u64)cols + cols / 16 + 15) / 16 * 16; }

struct Q8Regs {
    uint4 head, q0, q1;  // header, quants 0..15, quants 16..31
};
DEVICE Q8Regs q8_load(const u8* acts, int unit) {
    const u8* block = acts + (u64)unit * Q8_BLOCK;
    return {load16(block), load16(block + 16), load16(block + 32)};
}
DEVICE float q8_scale(const Q8Regs& y) { return int_as_float(y.head.x); }

// The 6-bit scale and min of sub-block s, from the 16 bytes that start a q4_K block.
DEVICE void q4_k_scale(uint4 head, int s, int* scale, int* min) {
    const int shift = 8 * (s & 3);
    const u32 first = head.y >> shift & 0xff, second = head.z >> shift & 0xff, third = head.w >> shift & 0xff;
    *scale = s < 4 ? first & 63 : (third & 15) | first >> 6 << 4;
    *min = s < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
}

// --- units: load everything first, accumulate later, so that a kernel may issue several loads before either ---

struct Q4KUnit {
    uint4 head, a, b;  // d, dmin, scales; 32 bytes of nibbles
    Q8Regs y;
    int sub;
};
struct Q6KUnit {
    uint4 la, lb, ha, hb;  // 32 bytes of ql, 32 bytes of qh
    u16 scales, d;
    Q8Regs y;
    int sub;
};
struct Q80Unit {
    uint4 a, b;
    u16 d;
    Q8Regs y;
};

// row: one row of weights, 16-byte aligned; acts: the q8 blocks of one token; unit < cols/32
DEVICE void unit_load(Q4KUnit& r, const u8* row, const u8* acts, int unit, int) {
    const u8* block = row + (u64)(unit >> 3) * Q4_K_STRIDE;
    r.sub = unit & 7;
    const u8* nibbles = block + 16 + 32 * (r.sub >> 1);
    r.head = load16(block);
    r.a = load16(nibbles);
    r.b = load16(nibbles + 16);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q6KUnit& r, const u8* row, const u8* acts, int unit, int) {
    const u8* block = row + (u64)(unit >> 3) * Q6_K_STRIDE;
    r.sub = unit & 7;
    const int half = r.sub >> 2;
    const u8* low = block + 64 * half + 32 * (r.sub & 1);
    const u8* high = block + 128 + 32 * half;
    r.la = load16(low);
    r.lb = load16(low + 16);
    r.ha = load16(high);
    r.hb = load16(high + 16);
    r.scales = load2(block + 192 + 2 * r.sub);
    r.d = load2(block + 208);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q80Unit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.a = load16(row + (u64)unit * UNIT);
    r.b = load16(row + (u64)unit * UNIT + 16);
    r.d = load2(row + cols + 2 * (u64)unit);
    r.y = q8_load(acts, unit);
}

DEVICE int dot16(uint4 w, uint4 y) { return dp4a(w.w, y.w, dp4a(w.z, y.z, dp4a(w.y, y.y, dp4a(w.x, y.x, 0)))); }
DEVICE uint4 nibbles(uint4 v, int shift) {
    const u32 mask = 0x0f0f0f0f;
    return {v.x >> shift & mask, v.y >> shift & mask, v.z >> shift & mask, v.w >> shift & mask};
}
DEVICE uint4 with_high(uint4 low, uint4 high, int shift) {
    const u32 mask = 0x03030303;
    return {low.x | (high.x >> shift & mask) << 4, low.y | (high.y >> shift & mask) << 4,
            low.z | (high.z >> shift & mask) << 4, low.w | (high.w >> shift & mask) << 4};
}

// Integer parts stay below 2^24, so their conversion to float is exact.
DEVICE float unit_acc(const Q4KUnit& r, float acc) {
    int scale, min;
    q4_k_scale(r.head, r.sub, &scale, &min);
    const int shift = 4 * (r.sub & 1);
    const int dot = dot16(nibbles(r.a, shift), r.y.q0) + dot16(nibbles(r.b, shift), r.y.q1);
    const int sum = (int)r.y.head.y + (int)r.y.head.z;
    const float mins = mul_rn(high_half(r.head.x), (float)(min * sum));
    return fma_rn(q8_scale(r.y), fma_rn(low_half(r.head.x), (float)(scale * dot), -mins), acc);
}
DEVICE float unit_acc(const Q6KUnit& r, float acc) {
    const int half_shift = 4 * (r.sub >> 1 & 1), pair_shift = 2 * (r.sub & 3);
    const int dot0 = dot16(with_high(nibbles(r.la, half_shift), r.ha, pair_shift), r.y.q0) - 32 * (int)r.y.head.y;
    const int dot1 = dot16(with_high(nibbles(r.lb, half_shift), r.hb, pair_shift), r.y.q1) - 32 * (int)r.y.head.z;
    const int sum = (i8)(r.scales & 0xff) * dot0 + (i8)(r.scales >> 8) * dot1;
    return fma_rn(mul_rn(q8_scale(r.y), half_to_float(r.d)), (float)sum, acc);
}
DEVICE float unit_acc(const Q80Unit& r, float acc) {
    const int dot = dot16(r.a, r.y.q0) + dot16(r.b, r.y.q1);
    return fma_rn(mul_rn(q8_scale(r.y), half_to_float(r.d)), (float)dot, acc);
}

// --- eight weights e .. e+7 (e a multiple of 8) of one row, as floats ---

struct Q4K {
    DEVICE static u64 row_bytes(int cols) { return q4_k_row(cols); }
    DEVICE static Float8 octet(const u8* row, int, int e) {
        const u8* block = row + (u64)(e / SUPER) * Q4_K_STRIDE;
        const int sub = e % SUPER / UNIT, shift = 4 * (sub & 1);
        const uint4 head = load16(block);
        const uint2 q = load8(block + 16 + 32 * (sub >> 1) + e % UNIT);
        int scale, min;
        q4_k_scale(head, sub, &scale, &min);
        const float d = mul_rn(low_half(head.x), (float)scale), m = mul_rn(high_half(head.x), (float)min);
        Float8 out;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const u32 word = k < 4 ? q.x : q.y;
            out.v[k] = sub_rn(mul_rn(d, (float)(word >> (8 * (k & 3) + shift) & 15)), m);
        }
        return out;
    }
};
struct Q6K {
    DEVICE static u64 row_bytes(int cols) { return q6_k_row(cols); }
    DEVICE static Float8 octet(const u8* row, int, int e) {
        const u8* block = row + (u64)(e / SUPER) * Q6_K_STRIDE;
        const int sub = e % SUPER / UNIT, half = sub >> 2, l = e % UNIT;
        const uint2 low = load8(block + 64 * half + 32 * (sub & 1) + l), high = load8(block + 128 + 32 * half + l);
        const int scale = (i8)block[192 + 2 * sub + l / 16];
        const float d = mul_rn(half_to_float(load2(block + 208)), (float)scale);
        Float8 out;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const u32 bits = (k < 4 ? low.x : low.y) >> (8 * (k & 3) + 4 * (sub >> 1 & 1)) & 15;
            const u32 top = (k < 4 ? high.x : high.y) >> (8 * (k & 3) + 2 * (sub & 3)) & 3;
            out.v[k] = mul_rn(d, (float)((int)(bits | top << 4) - 32));
        }
        return out;
    }
};
struct Q80 {
    DEVICE static u64 row_bytes(int cols) { return q8_0_row(cols); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        const uint2 q = load8(row + e);
        const float d = half_to_float(load2(row + cols + 2 * (e / UNIT)));
        Float8 out;
#pragma unroll
        for (int k = 0; k < 8; ++k) out.v[k] = mul_rn(d, (float)(i8)((k < 4 ? q.x : q.y) >> 8 * (k & 3) & 0xff));
        return out;
    }
};
struct F16 {
    DEVICE static u64 row_bytes(int cols) { return 2 * (u64)cols; }
    DEVICE static Float8 octet(const u8* row, int, int e) { return halves(load16(row + 2 * (u64)e)); }
};
struct F32 {
    DEVICE static u64 row_bytes(int cols) { return 4 * (u64)cols; }
    DEVICE static Float8 octet(const u8* row, int, int e) {
        const float4 a = load_float4((const float*)row + e), b = load_float4((const float*)row + e + 4);
        return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    }
};
