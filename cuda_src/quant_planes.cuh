// Formats whose row is planes: one field of all blocks, then the next field of all blocks (engine/repack.py PLANES), so
// that a thread loads its 32 weights whole and no other thread loads them again. Units and octets as in quant.cuh.
#pragma once
#include "quant.cuh"

DEVICE u64 plane_row(u64 bytes) { return (bytes + 15) / 16 * 16; }

DEVICE int q8_sum(const Q8Regs& y) { return (int)y.head.y + (int)y.head.z; }

// Quants of a unit in runs of 16: the low nibbles are 0..15, the high ones 16..31.
DEVICE int nibble_dot(uint4 q, const Q8Regs& y) { return dot16(nibbles(q, 0), y.q0) + dot16(nibbles(q, 4), y.q1); }
// 16 (q - 8) as signed bytes, of the low (left = 4) or high (left = 0) nibbles.
DEVICE uint4 centred(uint4 v, int left) {
    const u32 mask = 0xf0f0f0f0, eight = 0x80808080;
    return {(v.x << left & mask) ^ eight, (v.y << left & mask) ^ eight, (v.z << left & mask) ^ eight,
            (v.w << left & mask) ^ eight};
}
// Bits in runs of 4: bit n of byte b belongs to quant 4n + b. Fifth bits of quants 4n .. 4n+15 join their nibbles.
DEVICE uint4 with_bit(uint4 low, u32 bits, int n, int place) {
    const u32 one = 0x01010101;
    return {low.x | (bits >> n & one) << place, low.y | (bits >> (n + 1) & one) << place,
            low.z | (bits >> (n + 2) & one) << place, low.w | (bits >> (n + 3) & one) << place};
}
DEVICE int five_bit_dot(uint4 q, u32 fifth, const Q8Regs& y) {
    return dot16(with_bit(nibbles(q, 0), fifth, 0, 4), y.q0) + dot16(with_bit(nibbles(q, 4), fifth, 4, 4), y.q1);
}
// Two-bit quants in runs of 4: bits 2k of byte b are quant 4k + b of sixteen.
DEVICE uint4 crumbs(u32 q) {
    const u32 mask = 0x03030303;
    return {q & mask, q >> 2 & mask, q >> 4 & mask, q >> 6 & mask};
}

// The iq4 table at four indices, the low 16 bits of `four`, as bytes; quant_blocks.py IQ4_VALUES has the same values.
DEVICE u32 iq4_values(u32 four) {
    const u32 low = byte_perm(0xbfad9881u, 0xf6eaddcfu, four), high = byte_perm(0x26190d01u, 0x71594535u, four);
    return byte_perm(low, high, 0x3210 | (four & 0x8888) >> 1);
}
DEVICE int iq4_dot(uint4 q, const Q8Regs& y) {
    int dot = dp4a(iq4_values(q.x), y.q0.x, dp4a(iq4_values(q.x >> 16), y.q0.y, 0));
    dot = dp4a(iq4_values(q.y), y.q0.z, dp4a(iq4_values(q.y >> 16), y.q0.w, dot));
    dot = dp4a(iq4_values(q.z), y.q1.x, dp4a(iq4_values(q.z >> 16), y.q1.y, dot));
    return dp4a(iq4_values(q.w), y.q1.z, dp4a(iq4_values(q.w >> 16), y.q1.w, dot));
}

// --- 32 weights a block ---

struct Q40Unit {
    uint4 q;
    u16 d;
    Q8Regs y;
};
struct Q41Unit {
    uint4 q;
    u32 d_m;
    Q8Regs y;
};
struct Q50Unit {
    uint4 q;
    u32 fifth;
    u16 d;
    Q8Regs y;
};
struct Q51Unit {
    uint4 q;
    u32 fifth, d_m;
    Q8Regs y;
};
struct IQ4NLUnit {
    uint4 q;
    u16 d;
    Q8Regs y;
};

DEVICE void unit_load(Q40Unit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load16(row + 16 * (u64)unit);
    r.d = load2(row + cols / 2 + 2 * (u64)unit);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q41Unit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load16(row + 16 * (u64)unit);
    r.d_m = load4(row + cols / 2 + 4 * (u64)unit);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q50Unit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load16(row + 16 * (u64)unit);
    r.fifth = load4(row + cols / 2 + 4 * (u64)unit);
    r.d = load2(row + cols / 2 + cols / 8 + 2 * (u64)unit);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q51Unit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load16(row + 16 * (u64)unit);
    r.fifth = load4(row + cols / 2 + 4 * (u64)unit);
    r.d_m = load4(row + cols / 2 + cols / 8 + 4 * (u64)unit);
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(IQ4NLUnit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load16(row + 16 * (u64)unit);
    r.d = load2(row + cols / 2 + 2 * (u64)unit);
    r.y = q8_load(acts, unit);
}

// Integer parts stay below 2^24, so their conversion to float is exact.
DEVICE float scaled_acc(const Q8Regs& y, u16 d, int dot, float acc) {
    return fma_rn(mul_rn(q8_scale(y), half_to_float(d)), (float)dot, acc);
}
// d dot + m sum, m the high half
DEVICE float offset_acc(const Q8Regs& y, u32 d_m, int dot, float acc) {
    const float offset = mul_rn(high_half(d_m), (float)q8_sum(y));
    return fma_rn(q8_scale(y), fma_rn(low_half(d_m), (float)dot, offset), acc);
}
DEVICE float unit_acc(const Q40Unit& r, float acc) {
    return scaled_acc(r.y, r.d, (dot16(centred(r.q, 4), r.y.q0) + dot16(centred(r.q, 0), r.y.q1)) >> 4, acc);
}
DEVICE float unit_acc(const Q41Unit& r, float acc) { return offset_acc(r.y, r.d_m, nibble_dot(r.q, r.y), acc); }
DEVICE float unit_acc(const Q50Unit& r, float acc) {
    return scaled_acc(r.y, r.d, five_bit_dot(r.q, r.fifth, r.y) - 16 * q8_sum(r.y), acc);
}
DEVICE float unit_acc(const Q51Unit& r, float acc) {
    return offset_acc(r.y, r.d_m, five_bit_dot(r.q, r.fifth, r.y), acc);
}
DEVICE float unit_acc(const IQ4NLUnit& r, float acc) { return scaled_acc(r.y, r.d, iq4_dot(r.q, r.y), acc); }

// --- 256 weights a block ---

struct Q2KUnit {
    uint2 q;
    u16 scales;  // scale and min of the first sixteen in the low byte, of the others in the high one
    u32 d_min;
    Q8Regs y;
};
struct Q3KUnit {
    uint2 q;
    u32 third;
    u16 scales_low, scales_high, d;
    Q8Regs y;
    int sub;
};
struct Q5KUnit {
    uint4 q, head;
    u32 fifth;
    Q8Regs y;
    int sub;
};
struct IQ4XSUnit {
    uint4 q;
    uint2 head;
    Q8Regs y;
    int sub;
};

// Where the scales of sub-block s are: low nibbles in byte pair 2s % 8 (the upper nibbles from s = 4 on), high bits
// 2 (s / 2) of byte pair 8 + 2s % 4.
DEVICE const u8* q3_k_scales(const u8* row, int block, int cols) { return row + cols / 8 * 3 + 12 * (u64)block; }
DEVICE int q3_k_scale(u32 low, u32 high, int s) {
    return (int)((low >> 4 * (s >> 2) & 15) | (high >> 2 * (s >> 1) & 3) << 4) - 32;
}
DEVICE int iq4_xs_scale(uint2 head, int s) {
    return (int)((head.y >> 4 * s & 15) | (head.x >> (16 + 2 * s) & 3) << 4) - 32;
}

DEVICE void unit_load(Q2KUnit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.q = load8(row + 8 * (u64)unit);
    r.scales = load2(row + cols / 4 + 2 * (u64)unit);
    r.d_min = load4(row + cols / 4 + cols / 16 + 4 * (u64)(unit >> 3));
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q3KUnit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.sub = unit & 7;
    const u8* scales = q3_k_scales(row, unit >> 3, cols);
    r.q = load8(row + 8 * (u64)unit);
    r.third = load4(row + cols / 4 + 4 * (u64)unit);
    r.scales_low = load2(scales + (2 * r.sub & 7));
    r.scales_high = load2(scales + 8 + (2 * r.sub & 3));
    r.d = load2(row + cols / 64 * 27 + 2 * (u64)(unit >> 3));
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(Q5KUnit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.sub = unit & 7;
    r.q = load16(row + 16 * (u64)unit);
    r.fifth = load4(row + cols / 2 + 4 * (u64)unit);
    r.head = load16(row + cols / 2 + cols / 8 + 16 * (u64)(unit >> 3));
    r.y = q8_load(acts, unit);
}
DEVICE void unit_load(IQ4XSUnit& r, const u8* row, const u8* acts, int unit, int cols) {
    r.sub = unit & 7;
    r.q = load16(row + 16 * (u64)unit);
    r.head = load8(row + cols / 2 + 8 * (u64)(unit >> 3));
    r.y = q8_load(acts, unit);
}

DEVICE float unit_acc(const Q2KUnit& r, float acc) {
    const int scales = r.scales;
    const int mins = (scales >> 4 & 15) * (int)r.y.head.y + (scales >> 12) * (int)r.y.head.z;
    const int dot0 = dot16(crumbs(r.q.x), r.y.q0), dot1 = dot16(crumbs(r.q.y), r.y.q1);
    const int dot = (scales & 15) * dot0 + (scales >> 8 & 15) * dot1;
    const float offset = mul_rn(high_half(r.d_min), (float)mins);
    return fma_rn(q8_scale(r.y), fma_rn(low_half(r.d_min), (float)dot, -offset), acc);
}
DEVICE float unit_acc(const Q3KUnit& r, float acc) {
    const int dot0 = dot16(with_bit(crumbs(r.q.x), r.third, 0, 2), r.y.q0) - 4 * (int)r.y.head.y;
    const int dot1 = dot16(with_bit(crumbs(r.q.y), r.third, 4, 2), r.y.q1) - 4 * (int)r.y.head.z;
    const int sum = q3_k_scale(r.scales_low & 0xff, r.scales_high & 0xff, r.sub) * dot0 +
                    q3_k_scale(r.scales_low >> 8, r.scales_high >> 8, r.sub) * dot1;
    return scaled_acc(r.y, r.d, sum, acc);
}
DEVICE float unit_acc(const Q5KUnit& r, float acc) {
    int scale, min;
    q4_k_scale(r.head, r.sub, &scale, &min);
    const float mins = mul_rn(high_half(r.head.x), (float)(min * q8_sum(r.y)));
    const int dot = five_bit_dot(r.q, r.fifth, r.y);
    return fma_rn(q8_scale(r.y), fma_rn(low_half(r.head.x), (float)(scale * dot), -mins), acc);
}
DEVICE float unit_acc(const IQ4XSUnit& r, float acc) {
    return scaled_acc(r.y, (u16)(r.head.x & 0xffff), iq4_xs_scale(r.head, r.sub) * iq4_dot(r.q, r.y), acc);
}
