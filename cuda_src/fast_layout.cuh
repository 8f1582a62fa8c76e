// What a step of the fast build is made of: phases in order, each ending where another block needs its results.
// engine/fast_tables.py writes these structures.
#pragma once
#include "fast_ring.cuh"

enum Operation { QKV, ATTEND, ADD, GATE_UP, LOGITS };

// flags
#define AFTER_ALL 1    // needs what other blocks wrote in the phase before
#define NORM_INPUT 2   // input is quantized after RMSNorm with `gamma`
#define PLAIN_INPUT 4  // input is quantized as it is
#define BRIEF_INPUT 8  // the same, from bf16; none of the three: the phase before's quantized input serves again
#define LAST_LOGITS 16 // the arg max is complete after this phase
#define IN_ODD 32      // the turn of what is read, and of what is shared: see Turn
#define OUT_ODD 64
#define NORMED_ROWS 128 // results are divided by the root mean square of the normed input

struct Phase {
    const float* x;      // input [columns]; attention: q, then this token's k and v, f32 [all heads][HEAD_DIM]
    const float* gamma;  // f32 [columns], or null
    const float* bias;   // f32 [q rows | k rows | v rows], or null
    float* out;          // f32, read by no other block: the residual's rows, or logits
    float* shared;       // for other blocks, each word with its turn: f32, or bf16 pairs of silu(gate) · up
    u16 *k, *v;          // the layer's cache, f16 [kv_heads][capacity][HEAD_DIM]
    int operation, flags, cols, row;  // row: of segment 0's first row, where a matrix is cut into several phases
    u64 unused;
};

// Blocks wait for each other's results by looking at them: the lowest bit of a shared word says in which turn it was
// written, and turns alternate from layer to layer. A block that reads a word of a layer has read the one before, so a
// stale word always shows. What a layer shares is overwritten a layer later, by blocks that needed results of every
// block, each of which had read it by then; so every block must have rows in each residual and in gate and up.
struct Turn {
    u32 in, out;
};
DEVICE u32 with_turn(u32 word, u32 turn) { return (word & ~1u) | turn; }
DEVICE void share(float* to, float value, u32 turn) { store_relaxed((u32*)to, with_turn(float_as_int(value), turn)); }

// Two words at an even place; each shows its own turn.
DEVICE void share2(float* to, float2 value, u32 turn) {
    store_relaxed8(to, uint2{with_turn(float_as_int(value.x), turn), with_turn(float_as_int(value.y), turn)});
}

DEVICE bool in_turn(uint4 v, u32 turn) {
    return ((v.x & v.y & v.z & v.w & 1) == turn) && (((v.x | v.y | v.z | v.w) & 1) == turn);
}

// Four shared words, once all are of this turn.
DEVICE float4 load_shared4(const float* p, u32 turn) {
    uint4 v;
    do v = load_relaxed16(p);
    while (!in_turn(v, turn));
    return {int_as_float(v.x), int_as_float(v.y), int_as_float(v.z), int_as_float(v.w)};
}

// The model and the launch, the same for every phase.
struct Step {
    int heads, kv_heads, capacity, interleaved, position;
    float eps, scale;
    const float2* angles;  // shared memory: cosine and sine of each rotary pair this block computes
};

struct Scratch {
    u8* image;            // quantized input, IMAGE_BYTES a step; attention uses it and the partials together
    float* partials;      // [records][TILE_ROWS]
    float* squares;       // [WARPS] sums of squares of the input
};
