// From the row layout of weights (engine/repack.py) to tiles (engine/tiles.py), once, when a model is loaded.
#include "quant.cuh"
#include "tile_rows.cuh"

// One lane of one record: `unit` counts 128-weight units of the source row, `record` is where they go.

struct PackQ4K {
    typedef TileQ4K Tile;
    DEVICE static u64 row_bytes(int cols) { return q4_k_row(cols); }
    DEVICE static void pack(const u8* row, int, int unit, u8* record, int lane) {
        const u8* block = row + (u64)(unit / 2) * Q4_K_STRIDE;
        const uint4 head = load16(block);
        u8* to = record + 4 * PLANE + lane * 8;
        const u32 spare = unit & 1 ? head.x >> 16 : head.x & 0xffff;
        for (int j = 0; j < 4; ++j) {
            const int sub = 4 * (unit & 1) + j, shift = 4 * (sub & 1);
            const u8* from = block + 16 + 32 * (sub >> 1);
            u8* plane = record + j * PLANE + lane * 16;
            for (int b = 0; b < 16; ++b)
                plane[b] = (u8)((from[b] >> shift & 15) | (from[16 + b] >> shift & 15) << 4);
            int scale, min;
            q4_k_scale(head, sub, &scale, &min);
            to[j] = (u8)(scale | (spare >> 2 * j & 3) << 6);
            to[4 + j] = (u8)(min | (spare >> (8 + 2 * j) & 3) << 6);
        }
    }
};

struct PackQ6K {
    typedef TileQ6K Tile;
    DEVICE static u64 row_bytes(int cols) { return q6_k_row(cols); }
    DEVICE static u32 six(const u8* block, int half, int l) {  // weight l of a 128-weight half
        const int sub = l / 32, at = l % 32;
        const u32 low = block[64 * half + 32 * (sub & 1) + at] >> 4 * (sub >> 1) & 15;
        return low | (block[128 + 32 * half + at] >> 2 * sub & 3) << 4;
    }
    DEVICE static void pack(const u8* row, int, int unit, u8* record, int lane) {
        const u8* block = row + (u64)(unit / 2) * Q6_K_STRIDE;
        const int half = unit & 1;
        for (int group = 0; group < 8; ++group) {
            record[6 * PLANE + lane * 8 + group] = block[192 + 8 * half + group];
            for (int i = 0; i < 3; ++i) {
                const int word = 3 * group + i;
                u8* to = record + word / 4 * PLANE + lane * 16 + word % 4 * 4;
                for (int b = 0; b < 4; ++b) {
                    const u32 last = six(block, half, 16 * group + 12 + b) >> 2 * i & 3;
                    to[b] = (u8)(six(block, half, 16 * group + 4 * i + b) | last << 6);
                }
            }
        }
        if (!half) *(u16*)(record + 6 * PLANE + WARP * 8 + (lane >> 1) * 2) = load2(block + 208);
    }
};

struct PackQ50 {
    typedef TileQ50 Tile;
    DEVICE static u64 row_bytes(int cols) { return ((u64)cols / UNIT * 22 + 15) / 16 * 16; }
    DEVICE static void pack(const u8* row, int cols, int unit, u8* record, int lane) {
        const u64 blocks = cols / UNIT, first = 4 * (u64)unit;  // planes: nibbles, fifth bits, d
        const int units = min(4, (int)(blocks - first));
        for (int j = 0; j < units; ++j) {
            *(uint4*)(record + j * PLANE + lane * 16) = load16(row + 16 * (first + j));
            ((u32*)(record + 4 * PLANE + lane * 16))[j] = load4(row + 16 * blocks + 4 * (first + j));
            ((u16*)(record + 5 * PLANE + lane * 8))[j] = load2(row + 20 * blocks + 2 * (first + j));
        }
    }
};

struct PackQ80 {
    typedef TileQ80 Tile;
    DEVICE static u64 row_bytes(int cols) { return q8_0_row(cols); }
    DEVICE static void pack(const u8* row, int cols, int unit, u8* record, int lane) {
        const int units = min(4, cols / UNIT - 4 * unit);  // 32s of the row that there are
        for (int j = 0; j < 2 * units; ++j)
            *(uint4*)(record + j * PLANE + lane * 16) = load16(row + 128 * (u64)unit + 16 * j);
        for (int j = 0; j < units; ++j)
            ((u16*)(record + 8 * PLANE + lane * 8))[j] = load2(row + cols + 2 * (4 * (u64)unit + j));
    }
};

// rows: the tensor in the row layout; tiles: the matrix it is fused into, zeros before; grid (rows, ceil(units / 128)),
// 128 threads, one 128-weight unit each
template <class Pack>
DEVICE void pack_tiles(const u8* rows, u8* tiles, int cols, int base, int stride, int half, Arrangement matrix) {
    const int unit = blockIdx.y * blockDim.x + threadIdx.x;
    if (unit * 128 >= cols) return;
    const int row = packed_row(blockIdx.x, base, stride, half);
    const u64 record = matrix.place(row / TILE_ROWS, unit / 4, steps_of(cols));
    const int lane = 4 * (row % TILE_ROWS) + unit % 4;
    Pack::pack(rows + blockIdx.x * Pack::row_bytes(cols), cols, unit, tiles + record * Pack::Tile::RECORD, lane);
}

#define PACK(name, Pack)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                        \
        name(const u8* rows, u8* tiles, int cols, int base, int stride, int half, int all, int piece,        \
             int blocks) {                                                                                   \
        pack_tiles<Pack>(rows, tiles, cols, base, stride, half, {all, piece, blocks});                       \
    }
PACK(tile_pack_q4_K, PackQ4K)
PACK(tile_pack_q6_K, PackQ6K)
PACK(tile_pack_q5_0, PackQ50)
PACK(tile_pack_q8_0, PackQ80)
