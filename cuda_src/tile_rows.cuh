// Where a row of a tensor lies among the packed rows of the matrix that it is fused into (engine/fast_model.py).
#pragma once
#include "tile.cuh"

// Packed row of tensor row `row`: base + stride × row, or, with half = head_dim / 2 > 0, base + the rows of its head
// with element d and element d + half next to each other.
DEVICE int packed_row(int row, int base, int stride, int half) {
    if (half == 0) return base + stride * row;
    const int within = row % (2 * half);
    return base + row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}
