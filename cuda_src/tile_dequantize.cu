// Rows of a tensor that lies in tiles, as f16, for prefill's matrix products.
#include "tile_rows.cuh"

// tiles: the matrix that the tensor is fused into; out f16 [rows][cols] of tensor rows first + block x; grid (rows,
// ceil(cols / 4096)), 256 threads; a warp takes one step of 512 columns, so that its place is worked out once
template <class Tile>
DEVICE void dequantize(const u8* tiles, u16* out, int cols, int first, int base, int stride, int half,
                       Arrangement matrix) {
    const int step = blockIdx.y * (blockDim.x / WARP) + warp_id(), steps = steps_of(cols);
    if (step >= steps) return;
    const int row = packed_row(first + blockIdx.x, base, stride, half);
    const u8* record = tiles + matrix.place(row / TILE_ROWS, step, steps) * Tile::RECORD;
    u16* to = out + (u64)blockIdx.x * cols + step * STEP;
#pragma unroll
    for (int e = lane_id() * 8; e < STEP; e += WARP * 8) {
        if (step * STEP + e >= cols) break;
        const Float8 w = Tile::octet(record, row % TILE_ROWS, e);
        *(uint4*)(to + e) = {pack2(w.v[0], w.v[1]), pack2(w.v[2], w.v[3]), pack2(w.v[4], w.v[5]),
                             pack2(w.v[6], w.v[7])};
    }
}

#define DEQUANTIZE(name, Tile)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u8* tiles, u16* out, int cols, int first, int base, int stride, int half, int all,        \
             int piece, int blocks) {                                                                        \
        dequantize<Tile>(tiles, out, cols, first, base, stride, half, {all, piece, blocks});                 \
    }
DEQUANTIZE(tile_dequantize_q4_K, TileQ4K)
DEQUANTIZE(tile_dequantize_q6_K, TileQ6K)
DEQUANTIZE(tile_dequantize_q5_0, TileQ50)
DEQUANTIZE(tile_dequantize_q8_0, TileQ80)
