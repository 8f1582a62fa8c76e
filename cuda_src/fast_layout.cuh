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

struct Phase {
    const float* x;      // input f32 or bf16 [segment columns], or q f32 [heads][HEAD_DIM]
    const float* gamma;  // f32 [columns], or null
    const float* bias;   // f32 [q rows | k rows | v rows], or null
    float* out;          // f32: q, the attention result, the sum, or logits; bf16: silu(gate) · up
    u16 *k, *v;          // the layer's cache, f16 [kv_heads][capacity][HEAD_DIM]
    int operation, flags, cols, row;  // row: of segment 0's first row, where a matrix is cut into several phases
};

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
