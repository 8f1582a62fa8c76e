// Synthetic weights of the formats whose rows are planes (engine/repack.py PLANES): the bytes of a block are its stream
// of words cut into the planes, but for the scales, which start the last plane and come from one more word.
#include "synth.cuh"

// Bytes a block in each plane, the last one first in `scales`; `two` scales, or one of random sign.
template <int first, int second, int third, int scales, bool two>
DEVICE void synth_planes(u8* out, int cols, int elements, int key_lo, int key_hi, int d_bits, int dmin_bits) {
    const int size = first + second + third + scales, words = (size + 7) / 8 + 1;
    const int b = BLOCK_INDEX, blocks = cols / elements;
    if (b >= blocks) return;
    const u64 index = (u64)blockIdx.x * blocks + b, key = key_of(key_lo, key_hi);
    const u64 row_bytes = ((u64)blocks * size + 15) / 16 * 16;
    u8* row = out + blockIdx.x * row_bytes;
    const u64 last = random_word(key, index * words + words - 1);
    const u16 sign = two ? 0 : (u16)((last >> 59 & 1) << 15);
    u64 word = 0;
    for (int at = 0; at < size; at += 2) {
        if (at % 8 == 0) word = random_word(key, index * words + at / 8);
        u16 value = (u16)(word >> 8 * (at % 8));
        if (at == size - scales) value = jitter(d_bits, last) | sign;
        if (two && at == size - scales + 2) value = jitter(dmin_bits, last << 4);
        int plane = 0, width = first;  // where the block's byte `at` lies: bytes of the planes before, bytes in its own
        if (at >= first) plane = first, width = second;
        if (at >= first + second) plane = first + second, width = third;
        if (at >= first + second + third) plane = first + second + third, width = scales;
        *(u16*)(row + (u64)plane * blocks + (u64)b * width + (at - plane)) = value;
    }
    if (b == blocks - 1)
        for (u64 at = (u64)blocks * size; at < row_bytes; at += 2) *(u16*)(row + at) = 0;
}

#define SYNTH(name, elements, first, second, third, scales, two)                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        name(u8* out, int cols, int key_lo, int key_hi, int d_bits, int dmin_bits) {                                  \
        synth_planes<first, second, third, scales, two>(out, cols, elements, key_lo, key_hi, d_bits, dmin_bits);      \
    }
SYNTH(synth_q4_0, 32, 16, 0, 0, 2, false)
SYNTH(synth_q4_1, 32, 16, 0, 0, 4, true)
SYNTH(synth_q5_0, 32, 16, 4, 0, 2, false)
SYNTH(synth_q5_1, 32, 16, 4, 0, 4, true)
SYNTH(synth_iq4_nl, 32, 16, 0, 0, 2, false)
SYNTH(synth_q2_K, 256, 64, 16, 0, 4, true)
SYNTH(synth_q3_K, 256, 64, 32, 12, 2, false)
SYNTH(synth_q5_K, 256, 128, 32, 0, 16, true)
SYNTH(synth_iq4_xs, 256, 128, 0, 0, 8, false)
