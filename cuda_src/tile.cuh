// The tile layout of weights (engine/tiles.py): where the bits are, and how one record meets quantized activations.
#pragma once
#include "fast_intrinsics.cuh"

#define TILE_ROWS 8
#define STEP 512            // columns a record
#define SUB 32              // weights that share a scale of activations
#define PLANE (WARP * 16)   // bytes of one plane of 16 bytes a lane

#ifndef WARPS
#define WARPS 15            // of a block that multiply; one more fetches weights
#endif
#define THREADS (WARPS * WARP)

DEVICE int steps_of(int cols) { return (cols + STEP - 1) / STEP; }

// --- activations of one step as shared memory holds them ---

#define IMAGE_BYTES 640     // i8 [8 pieces][4 units][16] | f32 scale [4 units][4] | i16 [4 units][4][2] sums of 16
#define IMAGE_SCALES 512
#define IMAGE_SUMS 576

// One lane's 128 activations: four 32s of q (two vectors each) and their scales; their sums times the scale, of each
// 32; and `offset` times the sum of each 16, to start a dot product of weights stored with that offset. A format uses
// one kind of sum; the compiler drops the other.
struct Activations {
    uint4 q[8];
    float scale[4], total[4];
    int start[8];

    template <int offset> DEVICE void load(const u8* image, int unit) {
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = *(const uint4*)(image + (i * 4 + unit) * 16);
        const float4 s = *(const float4*)(image + IMAGE_SCALES + unit * 16);
        const uint4 n = *(const uint4*)(image + IMAGE_SUMS + unit * 16);
        scale[0] = s.x, scale[1] = s.y, scale[2] = s.z, scale[3] = s.w;
        const u32 pairs[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int low = (int)(pairs[j] << 16) >> 16, high = (int)pairs[j] >> 16;
            start[2 * j] = offset * low;
            start[2 * j + 1] = offset * high;
            total[j] = mul_rn(scale[j], (float)(low + high));
        }
    }
};

DEVICE int dot16(uint4 w, uint4 y, int c) { return dp4a(w.w, y.w, dp4a(w.z, y.z, dp4a(w.y, y.y, dp4a(w.x, y.x, c)))); }
DEVICE int dot16_unsigned(uint4 w, uint4 y, int c) {
    return dp4a_unsigned(w.w, y.w, dp4a_unsigned(w.z, y.z, dp4a_unsigned(w.y, y.y, dp4a_unsigned(w.x, y.x, c))));
}
DEVICE uint4 masked(uint4 v, u32 mask) { return {v.x & mask, v.y & mask, v.z & mask, v.w & mask}; }

// Eight spare bit pairs, four in the top of each byte of both words, as one 16-bit number. The product moves pair i of
// a word from bit 8i to bit 24 + 2i; no two partial products share a bit.
DEVICE u16 spare_bits(u32 low, u32 high) {
    const u32 gather = 1u << 24 | 1u << 18 | 1u << 12 | 1u << 6, pairs = 0x03030303;
    return (u16)((low >> 6 & pairs) * gather >> 24 | (high >> 6 & pairs) * gather >> 24 << 8);
}

// Sixteen weights of one row of a record: columns 32 p + 8 h .. + 7 for `part` = 2 p + h, and those 16 further on.
struct Sixteen {
    Float8 low, high;
};

// scale × (byte − zero) of eight unsigned bytes. A byte in the lowest bits of 2^23 is that number plus the byte.
DEVICE Float8 of_bytes(u32 first, u32 second, int zero, float scale) {
    Float8 out;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const float shifted = int_as_float(byte_perm(k < 4 ? first : second, 0x4b000000, 0x7440 | (k & 3)));
        out.v[k] = mul_rn(scale, sub_rn(shifted, 8388608.0f + zero));
    }
    return out;
}

// Each format: RECORD bytes of a record; OFFSET of its integers; load, from a record in shared memory to registers;
// dot, the lane's share of its row; part, for a warp whose lanes are the parts of one row of a record in global memory.

struct TileQ4K {
    static const int RECORD = 2304, OFFSET = 0;
    uint4 q[4];
    uint2 head;

    DEVICE void load(const u8* record, int lane) {
#pragma unroll
        for (int j = 0; j < 4; ++j) q[j] = *(const uint4*)(record + j * PLANE + lane * 16);
        head = *(const uint2*)(record + 4 * PLANE + lane * 8);
    }
    DEVICE float dot(const Activations& x, int lane) const {
        const u32 scales = head.x & 0x3f3f3f3f, mins = head.y & 0x3f3f3f3f;
        float sum = 0.0f, least = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            // high nibbles stay where they are, sixteen times too large as unsigned bytes
            const int high = dot16_unsigned(masked(q[j], 0xf0f0f0f0), x.q[2 * j + 1], 0);
            const int both = dot16(masked(q[j], 0x0f0f0f0f), x.q[2 * j], high >> 4);
            sum = fma_rn(x.scale[j], (float)(both * (int)byte_of(scales, j)), sum);
            least = fma_rn(x.total[j], (float)byte_of(mins, j), least);
        }
        const float mine = half_to_float(spare_bits(head.x, head.y)), other = shuffle_xor(mine, 1);
        const bool odd = lane & 1;
        return fma_rn(odd ? other : mine, sum, -mul_rn(odd ? mine : other, least));
    }
    DEVICE static Sixteen part(const u8* record, int row, int part) {
        const int unit = part / 8, j = part / 2 % 4;
        const uint2 q = load8(record + j * PLANE + (4 * row + unit) * 16 + part % 2 * 8);
        const uint2 head = load8(record + 4 * PLANE + (4 * row + unit) * 8);
        const float mine = half_to_float(spare_bits(head.x, head.y)), other = shuffle_xor(mine, 8);
        const bool odd = unit & 1;
        const float d = mul_rn(odd ? other : mine, (float)(byte_of(head.x, j) & 63));
        const float m = mul_rn(odd ? mine : other, (float)(byte_of(head.y, j) & 63));
        Sixteen out = {of_bytes(q.x & 0x0f0f0f0f, q.y & 0x0f0f0f0f, 0, d),
                       of_bytes(q.x >> 4 & 0x0f0f0f0f, q.y >> 4 & 0x0f0f0f0f, 0, d)};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            out.low.v[k] = sub_rn(out.low.v[k], m);
            out.high.v[k] = sub_rn(out.high.v[k], m);
        }
        return out;
    }
};

struct TileQ6K {
    static const int RECORD = 3360, OFFSET = -32;
    uint4 q[6];
    uint2 scales;
    u16 d;

    DEVICE void load(const u8* record, int lane) {
#pragma unroll
        for (int j = 0; j < 6; ++j) q[j] = *(const uint4*)(record + j * PLANE + lane * 16);
        scales = *(const uint2*)(record + 6 * PLANE + lane * 8);
        d = *(const u16*)(record + 6 * PLANE + WARP * 8 + (lane >> 1) * 2);
    }
    // Weights 4i .. 4i + 3 of 16 are the low six bits of word i; the last four are spread over the top two.
    DEVICE static uint4 sixteen(u32 a, u32 b, u32 c) {
        const u32 six = 0x3f3f3f3f;
        return {a & six, b & six, c & six, (a >> 6 & 0x03030303) | (b >> 4 & 0x0c0c0c0c) | (c >> 2 & 0x30303030)};
    }
    DEVICE float dot(const Activations& x, int) const {
        const u32* words = (const u32*)q;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32* w = words + 6 * j;
            const u32 pair = j < 2 ? scales.x : scales.y;
            const int first = dot16(sixteen(w[0], w[1], w[2]), x.q[2 * j], x.start[2 * j]);
            const int second = dot16(sixteen(w[3], w[4], w[5]), x.q[2 * j + 1], x.start[2 * j + 1]);
            const int scaled =
                first * signed_byte_of(pair, 2 * (j & 1)) + second * signed_byte_of(pair, 2 * (j & 1) + 1);
            sum = fma_rn(x.scale[j], (float)scaled, sum);
        }
        return mul_rn(half_to_float(d), sum);
    }
    DEVICE static Sixteen part(const u8* record, int row, int part) {
        const int unit = part / 8, j = part / 2 % 4, lane = 4 * row + unit;
        // words 6 j .. 6 j + 5 of the lane's 24: a whole vector and, before or after it, half of one
        const bool second = j & 1;
        const uint4 whole = load16(record + (j + j / 2 + second) * PLANE + lane * 16);
        const uint2 rest = load8(record + (j / 2 * 3 + 1) * PLANE + lane * 16 + 8 * second);
        const u16 scales = load2(record + 6 * PLANE + lane * 8 + 2 * j);
        const float d = half_to_float(load2(record + 6 * PLANE + WARP * 8 + (lane >> 1) * 2));
        const uint4 low = second ? sixteen(rest.x, rest.y, whole.x) : sixteen(whole.x, whole.y, whole.z);
        const uint4 high = second ? sixteen(whole.y, whole.z, whole.w) : sixteen(whole.w, rest.x, rest.y);
        const bool later = part & 1;
        return {of_bytes(later ? low.z : low.x, later ? low.w : low.y, 32, mul_rn(d, (float)(i8)scales)),
                of_bytes(later ? high.z : high.x, later ? high.w : high.y, 32, mul_rn(d, (float)(i8)(scales >> 8)))};
    }
};

struct TileQ50 {
    static const int RECORD = 2816, OFFSET = -16;
    uint4 q[4], fifth;
    uint2 d;

    DEVICE void load(const u8* record, int lane) {
#pragma unroll
        for (int j = 0; j < 4; ++j) q[j] = *(const uint4*)(record + j * PLANE + lane * 16);
        fifth = *(const uint4*)(record + 4 * PLANE + lane * 16);
        d = *(const uint2*)(record + 5 * PLANE + lane * 8);
    }
    DEVICE static uint4 with_fifth(uint4 v, u32 bits, int shift, int first) {
        const u32 low = 0x0f0f0f0f, one = 0x01010101;
        return {(v.x >> shift & low) | (bits >> first & one) << 4,
                (v.y >> shift & low) | (bits >> (first + 1) & one) << 4,
                (v.z >> shift & low) | (bits >> (first + 2) & one) << 4,
                (v.w >> shift & low) | (bits >> (first + 3) & one) << 4};
    }
    DEVICE static float scale(uint2 d, int j) {
        const u32 pair = j < 2 ? d.x : d.y;
        return j & 1 ? high_half(pair) : low_half(pair);
    }
    DEVICE float dot(const Activations& x, int) const {
        const u32 bits[4] = {fifth.x, fifth.y, fifth.z, fifth.w};
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int first = dot16(with_fifth(q[j], bits[j], 0, 0), x.q[2 * j], x.start[2 * j] + x.start[2 * j + 1]);
            const int both = dot16(with_fifth(q[j], bits[j], 4, 4), x.q[2 * j + 1], first);
            sum = fma_rn(mul_rn(x.scale[j], scale(d, j)), (float)both, sum);
        }
        return sum;
    }
    DEVICE static Sixteen part(const u8* record, int row, int part) {
        const int j = part / 2 % 4, lane = 4 * row + part / 8, one = 0x01010101;
        const uint2 q = load8(record + j * PLANE + lane * 16 + part % 2 * 8);
        const u32 bits = load4(record + 4 * PLANE + lane * 16 + j * 4) >> part % 2 * 2;
        const float d = scale(load8(record + 5 * PLANE + lane * 8), j);
        return {of_bytes((q.x & 0x0f0f0f0f) | (bits & one) << 4, (q.y & 0x0f0f0f0f) | (bits >> 1 & one) << 4, 16, d),
                of_bytes((q.x >> 4 & 0x0f0f0f0f) | (bits >> 4 & one) << 4,
                         (q.y >> 4 & 0x0f0f0f0f) | (bits >> 5 & one) << 4, 16, d)};
    }
};

struct TileQ80 {
    static const int RECORD = 4352, OFFSET = 0;
    uint4 q[8];
    uint2 d;

    DEVICE void load(const u8* record, int lane) {
#pragma unroll
        for (int j = 0; j < 8; ++j) q[j] = *(const uint4*)(record + j * PLANE + lane * 16);
        d = *(const uint2*)(record + 8 * PLANE + lane * 8);
    }
    DEVICE float dot(const Activations& x, int) const {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int both = dot16(q[2 * j + 1], x.q[2 * j + 1], dot16(q[2 * j], x.q[2 * j], 0));
            sum = fma_rn(mul_rn(x.scale[j], TileQ50::scale(d, j)), (float)both, sum);
        }
        return sum;
    }
    DEVICE static Sixteen part(const u8* record, int row, int part) {
        const int j = part / 2 % 4, lane = 4 * row + part / 8;
        const u8* at = record + 2 * j * PLANE + lane * 16 + part % 2 * 8;
        const uint2 low = load8(at), high = load8(at + PLANE);
        const float d = TileQ50::scale(load8(record + 8 * PLANE + lane * 8), j);
        const u32 sign = 0x80808080;  // a signed byte, 128 larger, is an unsigned one
        return {of_bytes(low.x ^ sign, low.y ^ sign, 128, d), of_bytes(high.x ^ sign, high.y ^ sign, 128, d)};
    }
};
