// Eight weights e .. e+7 (e a multiple of 8) of one row of planes, as floats: what embedding and dequantization read.
#pragma once
#include "quant_planes.cuh"

// Nibbles of an octet in runs of 16, one a result.
struct Octet {
    int q[8];
};
DEVICE Octet nibble_octet(const u8* row, int e) {
    const int part = e % UNIT / 8;
    const uint2 words = load8(row + 16 * (u64)(e / UNIT) + 8 * (part & 1));
    Octet out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.q[k] = (k < 4 ? words.x : words.y) >> (8 * (k & 3) + 4 * (part >> 1)) & 15;
    return out;
}
// Adds the bits of quants e .. e+7, in runs of 4, above the `place` low ones; bits: the unit's 32.
DEVICE void add_bits(Octet& o, u32 bits, int e, int place) {
    const int part = e % UNIT / 8;
#pragma unroll
    for (int k = 0; k < 8; ++k) o.q[k] |= (bits >> (8 * (k & 3) + 2 * part + (k >> 2)) & 1) << place;
}
DEVICE Octet crumb_octet(const u8* row, int e) {
    const int part = e % UNIT / 8;
    const u32 word = load4(row + 8 * (u64)(e / UNIT) + 4 * (part >> 1));
    Octet out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.q[k] = word >> (8 * (k & 3) + 4 * (part & 1) + 2 * (k >> 2)) & 3;
    return out;
}
DEVICE Octet iq4_octet(const u8* row, int e) {
    const u32 word = load4(row + e / 2), low = iq4_values(word), high = iq4_values(word >> 16);
    Octet out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.q[k] = (i8)((k < 4 ? low : high) >> 8 * (k & 3) & 0xff);
    return out;
}
// d (q - zero)
DEVICE Float8 scaled(const Octet& o, float d, int zero) {
    Float8 out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.v[k] = mul_rn(d, (float)(o.q[k] - zero));
    return out;
}
// d q + offset
DEVICE Float8 moved(const Octet& o, float d, float offset) {
    Float8 out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.v[k] = add_rn(mul_rn(d, (float)o.q[k]), offset);
    return out;
}

struct Q40 {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / 32 * (u64)18); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        return scaled(nibble_octet(row, e), half_to_float(load2(row + cols / 2 + 2 * (e / UNIT))), 8);
    }
};
struct Q41 {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / 32 * (u64)20); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        const u32 d_m = load4(row + cols / 2 + 4 * (e / UNIT));
        return moved(nibble_octet(row, e), low_half(d_m), high_half(d_m));
    }
};
struct Q50 {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / 32 * (u64)22); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        Octet o = nibble_octet(row, e);
        add_bits(o, load4(row + cols / 2 + 4 * (e / UNIT)), e, 4);
        return scaled(o, half_to_float(load2(row + cols / 2 + cols / 8 + 2 * (e / UNIT))), 16);
    }
};
struct Q51 {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / 32 * (u64)24); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        Octet o = nibble_octet(row, e);
        add_bits(o, load4(row + cols / 2 + 4 * (e / UNIT)), e, 4);
        const u32 d_m = load4(row + cols / 2 + cols / 8 + 4 * (e / UNIT));
        return moved(o, low_half(d_m), high_half(d_m));
    }
};
struct IQ4NL {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / 32 * (u64)18); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        return scaled(iq4_octet(row, e), half_to_float(load2(row + cols / 2 + 2 * (e / UNIT))), 0);
    }
};
struct Q2K {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / SUPER * (u64)84); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        const u8* scales = row + cols / 4;
        const u32 d_min = load4(scales + cols / 16 + 4 * (e / SUPER));
        const int both = scales[e / 16];
        const float d = mul_rn(low_half(d_min), (float)(both & 15)), m = mul_rn(high_half(d_min), (float)(both >> 4));
        return moved(crumb_octet(row, e), d, -m);
    }
};
struct Q3K {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / SUPER * (u64)110); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        Octet o = crumb_octet(row, e);
        add_bits(o, load4(row + cols / 4 + 4 * (e / UNIT)), e, 2);
        const int s = e % SUPER / UNIT, second = e % UNIT / 16;
        const u8* scales = q3_k_scales(row, e / SUPER, cols);
        const int scale = q3_k_scale(scales[(2 * s & 7) + second], scales[8 + (2 * s & 3) + second], s);
        const float d = half_to_float(load2(row + cols / 64 * 27 + 2 * (e / SUPER)));
        return scaled(o, mul_rn(d, (float)scale), 4);
    }
};
struct Q5K {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / SUPER * (u64)176); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        Octet o = nibble_octet(row, e);
        add_bits(o, load4(row + cols / 2 + 4 * (e / UNIT)), e, 4);
        const uint4 head = load16(row + cols / 2 + cols / 8 + 16 * (e / SUPER));
        int scale, min;
        q4_k_scale(head, e % SUPER / UNIT, &scale, &min);
        return moved(o, mul_rn(low_half(head.x), (float)scale), -mul_rn(high_half(head.x), (float)min));
    }
};
struct IQ4XS {
    DEVICE static u64 row_bytes(int cols) { return plane_row(cols / SUPER * (u64)136); }
    DEVICE static Float8 octet(const u8* row, int cols, int e) {
        const uint2 head = load8(row + cols / 2 + 8 * (e / SUPER));
        const float d = mul_rn(low_half(head.x), (float)iq4_xs_scale(head, e % SUPER / UNIT));
        return scaled(iq4_octet(row, e), d, 0);
    }
};
struct BF16 {
    DEVICE static u64 row_bytes(int cols) { return 2 * (u64)cols; }
    DEVICE static Float8 octet(const u8* row, int, int e) {
        const uint4 w = load16(row + 2 * (u64)e);
        return {{int_as_float(w.x << 16), int_as_float(w.x & 0xffff0000u), int_as_float(w.y << 16),
                 int_as_float(w.y & 0xffff0000u), int_as_float(w.z << 16), int_as_float(w.z & 0xffff0000u),
                 int_as_float(w.w << 16), int_as_float(w.w & 0xffff0000u)}};
    }
};
