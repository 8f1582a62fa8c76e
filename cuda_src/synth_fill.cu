// Synthetic weights: every byte is a function of the tensor's key and its place, so any block can be made alone and
// the host makes the same bytes (engine/synthetic.py). One thread a block of the format.
#include "synth.cuh"

// Words 0..17 of the block's 18 are its 144 bytes; word 0's first four bytes become d and dmin.
extern "C" __global__ void __launch_bounds__(256)
    synth_q4_K(u8* out, int cols, int key_lo, int key_hi, int d_bits, int dmin_bits) {
    const int b = BLOCK_INDEX, blocks = cols / SUPER;
    if (b >= blocks) return;
    const u64 index = (u64)blockIdx.x * blocks + b, key = key_of(key_lo, key_hi);
    u64* to = (u64*)(out + index * Q4_K_STRIDE);
    for (int w = 0; w < 18; ++w) {
        u64 word = random_word(key, index * 18 + w);
        if (w == 0) {
            const u16 d = jitter(d_bits, word), dmin = jitter(dmin_bits, word << 4);
            word = (word & 0xffffffff00000000ull) | (u32)dmin << 16 | d;
        }
        to[w] = word;
    }
}

// Words 0..25 are ql, qh and the scales; word 26 gives d, and the rest of the stride is zero.
extern "C" __global__ void __launch_bounds__(256)
    synth_q6_K(u8* out, int cols, int key_lo, int key_hi, int d_bits, int dmin_bits) {
    const int b = BLOCK_INDEX, blocks = cols / SUPER;
    if (b >= blocks) return;
    const u64 index = (u64)blockIdx.x * blocks + b, key = key_of(key_lo, key_hi);
    u64* to = (u64*)(out + index * Q6_K_STRIDE);
    for (int w = 0; w < 26; ++w) to[w] = random_word(key, index * 27 + w);
    to[26] = jitter(d_bits, random_word(key, index * 27 + 26));
    to[27] = 0;
}

// Words 0..3 are the quants, word 4 gives d; the last block of a row also clears the row's padding.
extern "C" __global__ void __launch_bounds__(256)
    synth_q8_0(u8* out, int cols, int key_lo, int key_hi, int d_bits, int dmin_bits) {
    const int b = BLOCK_INDEX, blocks = cols / UNIT;
    if (b >= blocks) return;
    const u64 index = (u64)blockIdx.x * blocks + b, key = key_of(key_lo, key_hi);
    u8* row = out + blockIdx.x * q8_0_row(cols);
    for (int w = 0; w < 4; ++w) ((u64*)(row + (u64)b * UNIT))[w] = random_word(key, index * 5 + w);
    ((u16*)(row + cols))[b] = jitter(d_bits, random_word(key, index * 5 + 4));
    if (b == blocks - 1)
        for (u64 at = cols + 2 * (u64)blocks; at < q8_0_row(cols); at += 2) *(u16*)(row + at) = 0;
}

// offset + scale * u, u the top 24 bits of word i as a signed fraction in [-1, 1)
DEVICE float synth_value(u64 key, u64 i, float offset, float scale) {
    const int top = (int)(random_word(key, i) >> 40) - (1 << 23);
    return add_rn(offset, mul_rn(scale, mul_rn((float)top, 1.0f / (1 << 23))));
}
extern "C" __global__ void __launch_bounds__(256)
    synth_f16(u16* out, int cols, int key_lo, int key_hi, float offset, float scale) {
    const int c = BLOCK_INDEX;
    if (c >= cols) return;
    const u64 i = (u64)blockIdx.x * cols + c;
    out[i] = float_to_half(synth_value(key_of(key_lo, key_hi), i, offset, scale));
}
extern "C" __global__ void __launch_bounds__(256)
    synth_bf16(u16* out, int cols, int key_lo, int key_hi, float offset, float scale) {
    const int c = BLOCK_INDEX;
    if (c >= cols) return;
    const u64 i = (u64)blockIdx.x * cols + c;
    out[i] = float_to_bf16(synth_value(key_of(key_lo, key_hi), i, offset, scale));
}
extern "C" __global__ void __launch_bounds__(256)
    synth_f32(float* out, int cols, int key_lo, int key_hi, float offset, float scale) {
    const int c = BLOCK_INDEX;
    if (c >= cols) return;
    const u64 i = (u64)blockIdx.x * cols + c;
    out[i] = synth_value(key_of(key_lo, key_hi), i, offset, scale);
}
