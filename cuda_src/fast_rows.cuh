// From the partial sums of a phase's records to its rows, and what becomes of a row.
#pragma once
#include "fast_input.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

#define LOWEST -3.402823466e38f

// Lanes that share the adding up of one row, as a power of two: as many as the block has, up to eight.
DEVICE int log2_lanes(int rows) {
    int log2 = 3;
    while (log2 > 0 && rows << log2 > THREADS) --log2;
    return log2;
}

// A row of the fused q and k matrix (engine/fast_tables.py): which head, and which element of it.
struct HeadRow {
    int head, element;
};
DEVICE HeadRow head_row(int row, int interleaved) {
    const int within = row % HEAD_DIM;
    return {row / HEAD_DIM, interleaved ? within : within / 2 + (within & 1) * (HEAD_DIM / 2)};
}

// The best of some logits. Of equal values the lowest index wins, NaN never.
struct Best {
    float value;
    int index;
    DEVICE void take(float other, int at) {
        if (other > value || (other == value && at < index)) {
            value = other;
            index = at;
        }
    }
    // Each warp's best so far, kept in shared memory.
    DEVICE void keep(float* values, int* indices) {
#pragma unroll
        for (int k = WARP / 2; k > 0; k >>= 1) take(shuffle_xor(value, k), shuffle_xor(index, k));
        if (lane_id()) return;
        take(values[warp_id()], indices[warp_id()]);
        values[warp_id()] = value;
        indices[warp_id()] = index;
    }
};

// What a row needs beside its sum, asked for before the weights are multiplied: the residual or the bias.
DEVICE float early(const Phase& p, const Step& s, const Share& block, int part) {
    const int rows = block.tiles * TILE_ROWS, row = (int)threadIdx.x >> log2_lanes(rows);
    if (row >= rows) return 0.0f;
    const int at = block.tile * TILE_ROWS + row;
    if (p.operation == ADD) return load_fresh(p.out + at);
    if (p.operation != QKV || !p.bias) return 0.0f;
    if (part) return p.bias[(s.heads + s.kv_heads) * HEAD_DIM + at];
    const HeadRow place = head_row(at, s.interleaved);
    return p.bias[place.head * HEAD_DIM + place.element];
}

// A row of q, k or v: turned where it is of q or k, shared, and k and v kept in the cache too.
DEVICE void store_qkv(const Phase& p, const Step& s, int part, int local, int row, float v, float partner, u32 turn) {
    if (part) {
        const int head = row / HEAD_DIM, element = row % HEAD_DIM;
        share(p.shared + (s.heads + s.kv_heads) * HEAD_DIM + row, v, turn);
        p.v[((u64)head * s.capacity + s.position) * HEAD_DIM + element] = float_to_half(v);
        return;
    }
    const HeadRow place = head_row(row, s.interleaved);
    const float2 angle = s.angles[local / 2];
    // the even row of a pair is a, the odd one b: a cos - b sin, then a sin + b cos
    const float turned = row & 1 ? fma_rn(partner, angle.y, mul_rn(v, angle.x))
                                 : fma_rn(v, angle.x, -mul_rn(partner, angle.y));
    share(p.shared + place.head * HEAD_DIM + place.element, turned, turn);
    if (place.head >= s.heads)
        p.k[((u64)(place.head - s.heads) * s.capacity + s.position) * HEAD_DIM + place.element] = float_to_half(turned);
}

// partials [record][TILE_ROWS], records numbered step × tiles + tile; each row is added up in one fixed order.
DEVICE void finish_rows(const Phase& p, const Step& s, const Share& block, int steps, const float* partials, int part,
                        float scale, float aside, Best& best, u32 turn) {
    const int rows = block.tiles * TILE_ROWS, log2 = log2_lanes(rows), lanes = 1 << log2;
    const int part_of_row = threadIdx.x & (lanes - 1), row0 = block.tile * TILE_ROWS;
    for (int first = 0; first < rows << log2; first += THREADS) {  // whole blocks: all lanes shuffle
        const int local = (first + (int)threadIdx.x) >> log2;
        const bool live = local < rows;
        const float* from = partials + part_of_row * rows + min(local, rows - 1);
        float v = 0.0f;
#pragma unroll 4
        for (int k = part_of_row; k < steps; k += lanes) {
            v = add_rn(v, *from);
            from += rows << log2;
        }
        if (lanes > 4) v = add_rn(v, shuffle_xor(v, 4));
        if (lanes > 2) v = add_rn(v, shuffle_xor(v, 2));
        if (lanes > 1) v = add_rn(v, shuffle_xor(v, 1));
        v = mul_rn(v, scale);
        const int row = row0 + local;
        const bool mine = live && !part_of_row;
        if (p.operation == QKV) {
            if (p.bias && live) {
                const HeadRow place = head_row(row, s.interleaved);
                const int at = part ? (s.heads + s.kv_heads) * HEAD_DIM + row : place.head * HEAD_DIM + place.element;
                v = add_rn(v, first ? p.bias[at] : aside);
            }
            const float partner = shuffle_xor(v, lanes);
            if (mine) store_qkv(p, s, part, local, row, v, partner, turn);
        } else if (p.operation == GATE_UP) {  // rows gate i, up i, gate i + 1, up i + 1
            const float up = shuffle_xor(v, lanes);
            const float one = mul_rn(mul_rn(v, reciprocal(add_rn(1.0f, exp2_fast(mul_rn(-LOG2_E, v))))), up);
            const float two = shuffle_xor(one, 2 * lanes);
            if (mine && !(row & 3))
                store_relaxed((u32*)p.shared + row / 4, with_turn(brief(one) | (u32)brief(two) << 16, turn));
        } else if (mine) {
            if (p.operation == ADD) {
                const float sum = add_rn(v, first ? p.out[row] : aside);
                p.out[row] = sum;
                share(p.shared + row, sum, turn);
            } else {
                p.out[p.row + row] = v;
                best.take(v, p.row + row);
            }
        }
    }
}
