// Decode attention of a step on tensor cores: a block takes one group of query heads and one piece of the KV range, a
// warp 16 positions at a time. Scores are K · Qᵀ and the result is Vᵀ · Pᵀ, so the 8 columns of an mma are query heads
// and both K and V enter as they lie in memory.
#pragma once
#include "fast_layout.cuh"
#include "reduce.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef GROUP
#define GROUP 5  // query heads a block, at most 8
#endif
#ifndef SPLIT
#define SPLIT 128  // positions below which a KV range is not split
#endif
#define POSITIONS 16          // a warp and turn
#define NO_SCORE -1e30f       // below every score, and finite: differences of it are never NaN
#define CHUNKS (HEAD_DIM / 32)
#define HALVES (HEAD_DIM / 64)
#define SLOTS ((WARPS + 1) / 2)  // accumulators in shared memory, each for two warps

#define MOST_SPLITS 72
#define QUERY_ROW (HEAD_DIM + 8)  // f16, so that rows do not share banks

struct AttentionMemory {
    __align__(16) u16 query[8][QUERY_ROW];  // in base-2 units; rows from GROUP on are zero
    __align__(16) u16 key[HEAD_DIM], value[HEAD_DIM];  // of this token: the cache's may not be there yet
    float top[WARPS][8], sum[WARPS][8];
    __align__(16) float slots[SLOTS][GROUP][HEAD_DIM];
    float part_top[GROUP][MOST_SPLITS], part_sum[GROUP][MOST_SPLITS];
};

// A block's piece: the query heads from head0 on, and 16-position tiles begin .. end - 1 of split `split` of `live`.
struct Piece {
    int head0, kv_head, split, live, begin, end;
};

DEVICE int most_splits(int groups, int blocks) { return blocks > groups ? min(blocks / groups, MOST_SPLITS) : 1; }

DEVICE Piece piece_of(int item, int groups, int blocks, int kv_len, int ratio) {
    const int wanted = (kv_len + SPLIT - 1) / SPLIT, tiles = (kv_len + POSITIONS - 1) / POSITIONS;
    const int splits = blocks < groups ? 1 : min(wanted, most_splits(groups, blocks)),
              each = (tiles + splits - 1) / splits;
    const int group = item % groups, split = item / groups;
    return {group * GROUP, group * GROUP / ratio,         split, (tiles + each - 1) / each,
            split * each,  min((split + 1) * each, tiles)};
}

struct Softmax {
    float top[2], sum[2];      // of heads 2t and 2t + 1, t = lane % 4; sums of this lane's positions
    float acc[HEAD_DIM / 16][4];  // [64 half × 4 + i]: elements 64 half + 8 (lane / 4) + 2i (, + 1) of both heads

    DEVICE void open() {
        top[0] = top[1] = NO_SCORE;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    }
    DEVICE void shrink(const float* by) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; ++i) {
            acc[i][0] *= by[0], acc[i][1] *= by[1];
            acc[i][2] *= by[0], acc[i][3] *= by[1];
        }
    }
    DEVICE static void load_values(uint4* values, const u16* v, int first, int kv_len, int half) {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int position = min(first + 2 * t + (r & 1) + 8 * (r >> 1), kv_len - 1);
            values[r] = load_fresh16(v + (u64)position * HEAD_DIM + 64 * half + 8 * g);
        }
    }
    // This token's value, where a lane's positions include it.
    DEVICE static void put_value(uint4* values, const u16* value, int first, int kv_len, int half) {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int r = 0; r < 4; ++r)
            if (first + 2 * t + (r & 1) + 8 * (r >> 1) == kv_len - 1)
                values[r] = *(const uint4*)(value + 64 * half + 8 * g);
    }
    struct Loaded {
        uint4 keys[CHUNKS][2], values[2][4];
    };
    DEVICE static void load_keys(Loaded& loaded, const u16* k, int tile, int kv_len) {
        const int g = lane_id() / 4, t = lane_id() % 4, first = tile * POSITIONS;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u16* row = k + (u64)min(first + g + 8 * r, kv_len - 1) * HEAD_DIM + 8 * t;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) loaded.keys[c][r] = load_fresh16(row + 32 * c);
        }
    }
    // k, v: the cache of one KV head; positions 16 tile .. below kv_len; `loaded` has the tile's keys and the first
    // half of its values, and then those of tile `next`, if it is below `end`. More at once does not fit the registers.
    DEVICE void take(Loaded& loaded, const u16* k, const u16* v, const AttentionMemory& memory, int tile, int next,
                     int end, int kv_len) {
        const int g = lane_id() / 4, t = lane_id() % 4, first = tile * POSITIONS;
        const bool newest = first + POSITIONS >= kv_len;
        if (newest) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (first + g + 8 * r == kv_len - 1)
#pragma unroll
                    for (int c = 0; c < CHUNKS; ++c) loaded.keys[c][r] = *(const uint4*)(memory.key + 32 * c + 8 * t);
            put_value(loaded.values[0], memory.value, first, kv_len, 0);
        }
        if (HALVES == 2) load_values(loaded.values[1], v, first, kv_len, 1);
        float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const uint4 q = *(const uint4*)&memory.query[g][32 * c + 8 * t];
            const uint4 low = loaded.keys[c][0], high = loaded.keys[c][1];
            const u32 even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
            const u32 first_pair[2] = {q.x, q.y}, second_pair[2] = {q.z, q.w};
            mma_16x8x16(s, even, first_pair);
            mma_16x8x16(s, odd, second_pair);
        }
        if (next < end) load_keys(loaded, k, next, kv_len);
        const bool live[2] = {first + g < kv_len, first + g + 8 < kv_len};
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best = max_nan(live[0] ? s[h] : NO_SCORE, live[1] ? s[2 + h] : NO_SCORE);
            best = max_nan(best, shuffle_xor(best, 4));
            best = max_nan(best, shuffle_xor(best, 8));
            best = max_nan(best, shuffle_xor(best, 16));
            best = max_nan(best, top[h]);
            by[h] = exp2_fast(top[h] - best);
            top[h] = best;
            s[h] = live[0] ? exp2_fast(s[h] - best) : 0.0f;
            s[2 + h] = live[1] ? exp2_fast(s[2 + h] - best) : 0.0f;
            sum[h] = fma_rn(sum[h], by[h], s[h] + s[2 + h]);
        }
        shrink(by);
        const u32 weights[2] = {transpose_8x8(pack2(s[0], s[1])), transpose_8x8(pack2(s[2], s[3]))};
        add_half(loaded.values[0], weights, 0);
        if (next < end) load_values(loaded.values[0], v, next * POSITIONS, kv_len, 0);
        if (HALVES == 2) {
            if (newest) put_value(loaded.values[1], memory.value, first, kv_len, 1);
            add_half(loaded.values[1], weights, 1);
        }
    }
    DEVICE void add_half(const uint4* values, const u32* weights, int half) {
        const u32* rows[4] = {(const u32*)&values[0], (const u32*)&values[1], (const u32*)&values[2],
                              (const u32*)&values[3]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 a[4] = {low_halves(rows[0][i], rows[1][i]), high_halves(rows[0][i], rows[1][i]),
                              low_halves(rows[2][i], rows[3][i]), high_halves(rows[2][i], rows[3][i])};
            mma_16x8x16(acc[4 * half + i], a, weights);
        }
    }
    // First of two warps that share a slot: what it holds; second: what it adds.
    DEVICE void store(float (*slot)[HEAD_DIM], bool add) {
        const int g = lane_id() / 4, head = lane_id() % 4 * 2;
        if (head >= GROUP) return;
        const bool both = head + 1 < GROUP;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; ++i) {
            float2* first = (float2*)&slot[head][i / 4 * 64 + 8 * g + 2 * (i % 4)];
            float2* second = (float2*)((float*)first + HEAD_DIM);
            float2 a = {acc[i][0], acc[i][2]}, b = {acc[i][1], acc[i][3]};
            if (add) {
                a.x += first->x, a.y += first->y;
                if (both) b.x += second->x, b.y += second->y;
            }
            *first = a;
            if (both) *second = b;
        }
    }
};

// q of the group and k and v of its KV head for this token, from the phase before; `wait`: until all are of this turn.
DEVICE void load_token(AttentionMemory& memory, const float* x, const Step& s, const Piece& piece, bool wait,
                       u32 turn) {
    const int quarters = HEAD_DIM / 4;
    for (int i = threadIdx.x; i < 10 * quarters; i += THREADS) {
        const int head = i / quarters, e = i % quarters * 4;
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (head < GROUP || head >= 8) {
            const int row = head < GROUP ? piece.head0 + head : s.heads + (head - 8) * s.kv_heads + piece.kv_head;
            const float* from = x + row * HEAD_DIM + e;
            v = wait ? load_shared4(from, turn) : load_fresh4(from);
        }
        const float unit = head < GROUP ? s.scale * LOG2_E : 1.0f;
        u16* to = head < 8 ? memory.query[head] : head == 8 ? memory.key : memory.value;
        *(uint2*)(to + e) = uint2{pack2(v.x * unit, v.y * unit), pack2(v.z * unit, v.w * unit)};
    }
}

// Each block of a group joins its slice of the elements over all pieces, in the order of the splits. What it reads are
// shared words as well, so it waits for them alone. `wait` is false where all pieces ran in earlier launches or turns.
DEVICE float load_part(const float* from, u32 turn) {
    u32 word;
    do word = load_relaxed(from);
    while ((word & 1) != turn);
    return int_as_float(word);
}
DEVICE void join_slice(const Phase& p, const Piece& piece, AttentionMemory& memory, int most, const float* part_acc,
                       const float* part_ml, u32 turn) {
    const int elements = GROUP * HEAD_DIM;
    const int first = elements * piece.split / piece.live, end = elements * (piece.split + 1) / piece.live;
    const int h0 = first / HEAD_DIM, heads = (end - 1) / HEAD_DIM - h0 + 1;
    for (int i = threadIdx.x; i < 2 * heads * piece.live; i += THREADS) {
        const int h = h0 + (i >> 1) / piece.live, split = (i >> 1) % piece.live;
        const float v = load_part(part_ml + 2 * ((u64)(piece.head0 + h) * most + split) + (i & 1), turn);
        (i & 1 ? memory.part_sum : memory.part_top)[h][split] = v;
    }
    // eight lanes an element, each a part of the splits
    const int lanes = 8, lane = threadIdx.x % lanes;
    sync_first<THREADS>();
    for (int base = first; base < end; base += THREADS / lanes) {  // whole warps shuffle
        const int e = min(base + (int)threadIdx.x / lanes, end - 1), h = e / HEAD_DIM, d = e % HEAD_DIM;
        const float* from = part_acc + (u64)(piece.head0 + h) * most * HEAD_DIM + d;
        float top = NO_SCORE, total = 0.0f, acc = 0.0f;
        for (int i = lane; i < piece.live; i += lanes) top = max_nan(top, memory.part_top[h][i]);
        top = max_nan(top, shuffle_xor(top, 4));
        top = max_nan(top, shuffle_xor(top, 2));
        top = max_nan(top, shuffle_xor(top, 1));
        for (int i = lane; i < piece.live; i += lanes) {
            const float weight = exp2_fast(memory.part_top[h][i] - top);
            total = fma_rn(weight, memory.part_sum[h][i], total);
            acc = fma_rn(weight, load_part(from + (u64)i * HEAD_DIM, turn), acc);
        }
        acc = warp_sum<8>(acc);
        total = warp_sum<8>(total);
        if (lane == 0 && base + (int)threadIdx.x / lanes < end)
            share(p.shared + (piece.head0 + h) * HEAD_DIM + d, mul_rn(acc, reciprocal(total)), turn);
    }
}

DEVICE void attend_piece(const Phase& p, const Step& s, const Piece& piece, AttentionMemory& memory, int most,
                         float* part_acc, float* part_ml, bool wait, Turn turn, u64* stamp) {
    const int warp = warp_id(), lane = lane_id(), kv_len = s.position + 1, tiles = piece.end - piece.begin;
    const u64 cache = (u64)piece.kv_head * s.capacity * HEAD_DIM;
    const u16 *k = p.k + cache, *v = p.v + cache;
    Softmax mine;
    mine.open();
    Softmax::Loaded loaded;
    int tile = piece.begin + warp;
    if (warp < tiles) {  // earlier tokens' do not depend on this step
        Softmax::load_keys(loaded, k, tile, kv_len);
        Softmax::load_values(loaded.values[0], v, tile * POSITIONS, kv_len, 0);
    }
    load_token(memory, p.x, s, piece, wait, turn.in);
    sync_first<THREADS>();
    if (stamp) *stamp = global_time();
    for (; tile < piece.end; tile += WARPS)
        mine.take(loaded, k, v, memory, tile, tile + WARPS, piece.end, kv_len);
    const int busy = min(tiles, WARPS), slots = min(busy, SLOTS);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        mine.sum[h] += shuffle_xor(mine.sum[h], 4);
        mine.sum[h] += shuffle_xor(mine.sum[h], 8);
        mine.sum[h] += shuffle_xor(mine.sum[h], 16);
        if (lane < 4) memory.top[warp][2 * lane + h] = mine.top[h];
    }
    sync_first<THREADS>();
    if (warp < busy) {
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int head = lane % 4 * 2 + h;
            float top = mine.top[h];
#pragma unroll 4
            for (int w = 0; w < busy; ++w) top = max_nan(top, memory.top[w][head]);
            by[h] = exp2_fast(mine.top[h] - top);
            if (lane < 4) memory.sum[warp][head] = mine.sum[h] * by[h];
        }
        mine.shrink(by);
        if (warp >= SLOTS) mine.store(memory.slots[warp - SLOTS], false);
    }
    if (busy > SLOTS) sync_first<THREADS>();
    if (warp < slots) mine.store(memory.slots[warp], warp + SLOTS < busy);
    sync_first<THREADS>();
    for (int e = threadIdx.x; e < GROUP * HEAD_DIM; e += THREADS) {
        const int h = e / HEAD_DIM, d = e % HEAD_DIM;
        float acc = 0.0f, total = 0.0f, top = NO_SCORE;
#pragma unroll 4
        for (int i = 0; i < slots; ++i) acc += memory.slots[i][h][d];
#pragma unroll 4
        for (int w = 0; w < busy; ++w) total += memory.sum[w][h];
        if (piece.live == 1) {
            share(p.shared + (piece.head0 + h) * HEAD_DIM + d, mul_rn(acc, reciprocal(total)), turn.out);
            continue;
        }
        const u64 part = (u64)(piece.head0 + h) * most + piece.split;
        share(part_acc + part * HEAD_DIM + d, acc, turn.out);
        if (d == 0) {
            for (int w = 0; w < busy; ++w) top = max_nan(top, memory.top[w][h]);
            share(part_ml + 2 * part, top, turn.out);
            share(part_ml + 2 * part + 1, total, turn.out);
        }
    }
    if (piece.live > 1) join_slice(p, piece, memory, most, part_acc, part_ml, turn.out);
}

// p.x f32 [heads + 2 kv_heads][HEAD_DIM], p.shared f32 [heads][HEAD_DIM]; part_acc f32 [heads][most_splits][HEAD_DIM],
// part_ml f32 [heads][most_splits][2]; own: the block's first piece, the same in every layer. A block with several
// pieces would wait for its own: then nothing is split.
DEVICE void attend(const Phase& p, const Step& s, const Piece& own, u8* memory, float* part_acc, float* part_ml,
                   bool wait, Turn turn, u64* stamp) {
    if (stamp) *stamp = global_time();
    const int groups = s.heads / GROUP, most = most_splits(groups, gridDim.x);
    Piece piece = own;
    for (int item = blockIdx.x; piece.split < piece.live;) {
        attend_piece(p, s, piece, *(AttentionMemory*)memory, most, part_acc, part_ml, wait, turn, stamp);
        item += gridDim.x;
        if (item >= groups * most) return;
        sync_first<THREADS>();
        piece = piece_of(item, groups, gridDim.x, s.position + 1, s.heads / s.kv_heads);
    }
}
