// The stream that synthetic weights are made of; engine/synthetic.py makes the same words.
#pragma once
#include "quant.cuh"

// Word i of the stream `key`: the splitmix64 output function over a counter.
DEVICE u64 random_word(u64 key, u64 i) {
    u64 z = key + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
DEVICE u64 key_of(int low, int high) { return (u64)(u32)high << 32 | (u32)low; }

// A scale near `bits`: the f16 pattern plus 0..15, taken from the top of a word whose low bytes are used elsewhere.
DEVICE u16 jitter(int bits, u64 word) { return (u16)(bits + (int)(word >> 60)); }

// Row blockIdx.x, block blockIdx.y blockDim.x + threadIdx.x of a [rows][cols] matrix in the GPU layout.
#define BLOCK_INDEX (blockIdx.y * blockDim.x + threadIdx.x)

// Of a finite value, to nearest even.
DEVICE u16 float_to_bf16(float value) {
    const u32 bits = float_as_int(value);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
