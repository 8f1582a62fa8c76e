// Rows of a tensor that lies in tiles, as f16, for prefill's matrix products.
#include "tile_rows.cuh"

#define TOGETHER 8  // rows a warp takes of one step

// tiles: the matrix that the tensor is fused into; out f16 [rows][cols] of tensor rows from `first` on; 256 threads,
// grid (ceil(ceil(rows / 8) steps / 8)): a warp takes 8 rows of one step of 512 columns, and each of its first lanes
// works out where one of them lies
template <class Tile>
DEVICE void dequantize(const u8* tiles, u16* out, int rows, int cols, int first, int base, int stride, int half,
                       Arrangement matrix) {
    const int item = blockIdx.x * (blockDim.x / WARP) + warp_id(), steps = steps_of(cols), lane = lane_id();
    const int row0 = item / steps * TOGETHER, step = item % steps;
    if (row0 >= rows) return;
    const int mine = packed_row(first + min(row0 + lane % TOGETHER, rows - 1), base, stride, half);
    const int place = (int)matrix.place(mine / TILE_ROWS, step, steps), within = mine % TILE_ROWS;
    const int e = lane / 2 * SUB + lane % 2 * 8;
    u16* to = out + (u64)row0 * cols + step * STEP + e;
    const bool inside = step * STEP + e < cols;
#pragma unroll 4
    for (int r = 0; r < TOGETHER; ++r, to += cols) {
        const Sixteen w = Tile::part(tiles + (u64)(u32)shuffle(place, r) * Tile::RECORD, shuffle(within, r), lane);
        if (!inside || row0 + r >= rows) continue;
        *(uint4*)to = packed8(w.low);
        *(uint4*)(to + 16) = packed8(w.high);
    }
}

#define DEQUANTIZE(name, Tile)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u8* tiles, u16* out, int rows, int cols, int first, int base, int stride, int half,       \
             int all, int piece, int blocks) {                                                               \
        dequantize<Tile>(tiles, out, rows, cols, first, base, stride, half, {all, piece, blocks});           \
    }
DEQUANTIZE(tile_dequantize_q4_K, TileQ4K)
DEQUANTIZE(tile_dequantize_q6_K, TileQ6K)
DEQUANTIZE(tile_dequantize_q5_0, TileQ50)
DEQUANTIZE(tile_dequantize_q8_0, TileQ80)
