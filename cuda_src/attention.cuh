// What the attention kernels agree on. Scores are kept in base 2: s = scale * log2(e) * q.k, weights are 2^(s - m).
#pragma once
#include "reduce.cuh"

#define ATTN_TILE 32        // positions a tile
#define NO_SCORE -1e30f     // below every score, and finite: differences of it are never NaN

// Positions a split takes: whole tiles, dealt out evenly. engine/kernels_ops.py live_splits computes the same.
DEVICE int split_chunk(int kv_len, int splits) {
    const int tiles = (kv_len + ATTN_TILE - 1) / ATTN_TILE;
    return (tiles + splits - 1) / splits * ATTN_TILE;
}
