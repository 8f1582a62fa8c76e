// Where a row of a tensor lies among the packed rows of the matrix that it is fused into (engine/fast_model.py), and
// where a record of that matrix lies in memory (engine/tiles.py arrangement).
#pragma once
#include "tile.cuh"

// Packed row of tensor row `row`: base + stride × row, or, with half = head_dim / 2 > 0, base + the rows of its head
// with element d and element d + half next to each other.
DEVICE int packed_row(int row, int base, int stride, int half) {
    if (half == 0) return base + stride * row;
    const int within = row % (2 * half);
    return base + row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

// A matrix of `tiles` tiles in pieces of `piece` tiles; a piece is divided among `blocks` blocks, each block's part
// lies in the order its warps multiply it. tiles × blocks stays below 2^31: every model's does.
struct Arrangement {
    int tiles, piece, blocks;

    DEVICE u64 place(int tile, int step, int steps) const {
        const int before = tile / piece * piece, count = min(piece, tiles - before), t = tile - before;
        const int block = ((t + 1) * blocks - 1) / count, first = block * count / blocks;
        const int end = (block + 1) * count / blocks;
        const int each = (end - first) * steps / WARPS, more = (end - first) * steps % WARPS;
        int record = step * (end - first) + t - first, warp, turn;
        if (record < more * (each + 1)) {
            warp = record / (each + 1);
            turn = record % (each + 1);
        } else {
            record -= more * (each + 1);
            warp = more + record / each;
            turn = record % each;
        }
        return (u64)(before + first) * steps + turn * WARPS + warp;
    }
};
