// Decode attention of a step on tensor cores: a block takes one group of query heads and one piece of the KV range, a
// warp 16 positions at a time, whose keys and values arrive through the ring. Scores are K · Qᵀ and the result is
// Vᵀ · Pᵀ, so the 8 columns of an mma are query heads and both K and V enter as they lie in memory.
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
#define SPLIT 64  // positions a piece of a KV range at least has
#endif
#define WHOLE 128  // positions up to which a range is one piece: joining pieces costs more
#define POSITIONS 16          // a warp and turn
#define NO_SCORE -1e30f       // below every score, and finite: differences of it are never NaN
#define ROW_BYTES (2 * HEAD_DIM)
#define CACHE_RECORD (POSITIONS * ROW_BYTES)  // keys, or values, of a warp's turn
#define CHUNKS (HEAD_DIM / 32)
#define VECTORS (HEAD_DIM / 64)  // 16-byte vectors of a position's value that a lane takes
#define ELEMENTS (4 * VECTORS)   // pairs of a result's elements that a lane has
#define PAIRS ((GROUP + 1) / 2)  // of query heads
#define UNITS (8 * ELEMENTS * PAIRS)
#define SLOTS ((WARPS + 1) / 2)  // results in shared memory, each for two warps

#define MOST_SPLITS 72
#define PART_WORDS (GROUP * HEAD_DIM + MOST_SPLITS)
#define QUERY_ROW (HEAD_DIM + 8)  // f16, so that rows do not share banks

struct AttentionMemory {
    __align__(16) u16 query[8][QUERY_ROW];  // in base-2 units; rows from GROUP on are zero
    __align__(16) u16 key[HEAD_DIM], value[HEAD_DIM];  // of this token: the cache's may not be there yet
    float top[WARPS][8], sum[WARPS][8];
    float4 slots[SLOTS][UNITS];  // see `unit_at`
    float part_top[GROUP][MOST_SPLITS], part_sum[GROUP][MOST_SPLITS];
    float parts[PART_WORDS];  // [splits][a block's slice of the elements]
};

// Where a slot has elements 16 g + 2 i and the next (8 g with heads of 64) of heads 2 t and 2 t + 1: as {first element
// of both heads, second element of both}. Lanes that write together, t and two g, meet different banks.
DEVICE int unit_at(int g, int i, int t) {
    const int unit = (g * ELEMENTS + i) * PAIRS + t;
    return ELEMENTS * PAIRS % 8 ? unit : unit ^ (g & 1) * 4;
}

// A block's piece: the query heads from head0 on, and 16-position tiles begin .. end - 1 of split `split` of `live`.
struct Piece {
    int head0, kv_head, split, live, begin, end;
};

DEVICE int most_splits(int groups, int blocks) { return blocks > groups ? min(blocks / groups, MOST_SPLITS) : 1; }

DEVICE Piece piece_of(int item, int groups, int blocks, int kv_len, int ratio) {
    const int wanted = kv_len > WHOLE ? (kv_len + SPLIT - 1) / SPLIT : 1, tiles = (kv_len + POSITIONS - 1) / POSITIONS;
    const int splits = blocks < groups ? 1 : min(wanted, most_splits(groups, blocks)),
              each = (tiles + splits - 1) / splits;
    const int group = item % groups, split = item / groups;
    return {group * GROUP, group * GROUP / ratio,         split, (tiles + each - 1) / each,
            split * each,  min((split + 1) * each, tiles)};
}

// A warp's part of the result. g = lane / 4, t = lane % 4.
struct Softmax {
    uint4 query[CHUNKS];
    float top[2], sum[2];      // of heads 2t and 2t + 1; sums of this lane's positions
    float acc[ELEMENTS][4];    // as `unit_at` has them

    DEVICE void open() {
        top[0] = top[1] = NO_SCORE;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    }
    DEVICE void load_query(const AttentionMemory& memory, int g, int t) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) query[c] = *(const uint4*)&memory.query[g][32 * c + 8 * t];
    }
    DEVICE void shrink(const float* by) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) {
            acc[i][0] *= by[0], acc[i][1] *= by[1];
            acc[i][2] *= by[0], acc[i][3] *= by[1];
        }
    }
    // Neighbouring rows lie in the same banks, so every other lane loads the two vectors of a pair in the other order.
    DEVICE static void load_pair(uint4& first, uint4& second, const u8* row, int at, int apart, bool swap) {
        const uint4 a = *(const uint4*)(row + 16 * (at + (swap ? apart : 0)));
        const uint4 b = *(const uint4*)(row + 16 * (at + (swap ? 0 : apart)));
        first = {swap ? b.x : a.x, swap ? b.y : a.y, swap ? b.z : a.z, swap ? b.w : a.w};
        second = {swap ? a.x : b.x, swap ? a.y : b.y, swap ? a.z : b.z, swap ? a.w : b.w};
    }
    // Keys of positions g and g + 8 of a tile in `rows`. `left`: the tile's positions before this token's, whose key is
    // in `memory`.
    DEVICE void load_keys(uint4 (*keys)[2], const u8* rows, const AttentionMemory& memory, int left, int g, int t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u8* row = g + 8 * r == left ? (const u8*)memory.key : rows + (g + 8 * r) * ROW_BYTES;
#pragma unroll
            for (int c = 0; c < CHUNKS; c += 2) load_pair(keys[c][r], keys[c + 1][r], row, 4 * c + t, 4, g & 1);
        }
    }
    // Scores: s[h] of position g, s[2 + h] of position g + 8.
    DEVICE void multiply_keys(float* s, const uint4 (*keys)[2]) {
        float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const uint4 q = query[c], low = keys[c][0], high = keys[c][1];
            const u32 a[4] = {low.x, high.x, low.y, high.y}, b[4] = {low.z, high.z, low.w, high.w};
            const u32 first_pair[2] = {q.x, q.y}, second_pair[2] = {q.z, q.w};
            mma_16x8x16(even, a, first_pair);
            mma_16x8x16(odd, b, second_pair);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] = even[i] + odd[i];
    }
    // Scores become weights, in pairs as the second product takes them.
    DEVICE void weigh(u32* weights, float* s, int left, int g) {
        const bool live[2] = {g <= left, g + 8 <= left};
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
        weights[0] = transpose_8x8(pack2(s[0], s[1]));
        weights[1] = transpose_8x8(pack2(s[2], s[3]));
    }
    // Values of positions 2t, 2t + 1, 2t + 8 and 2t + 9. What lies behind this token's is no number: weights of zero
    // would not help.
    DEVICE void load_values(uint4 (*values)[4], const u8* rows, const AttentionMemory& memory, int left, int g,
                            int t) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int position = 2 * t + (r & 1) + 8 * (r >> 1);
            const u8* row = position >= left ? (const u8*)memory.value : rows + position * ROW_BYTES;
            if (VECTORS == 2)
                load_pair(values[0][r], values[VECTORS - 1][r], row, 2 * g, 1, t & 1);
            else
                values[0][r] = *(const uint4*)(row + 16 * g);
        }
    }
    DEVICE void add_values(const uint4 (*values)[4], const u32* weights) {
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
            const u32* rows[4] = {(const u32*)&values[j][0], (const u32*)&values[j][1], (const u32*)&values[j][2],
                                  (const u32*)&values[j][3]};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 a[4] = {low_halves(rows[0][i], rows[1][i]), high_halves(rows[0][i], rows[1][i]),
                                  low_halves(rows[2][i], rows[3][i]), high_halves(rows[2][i], rows[3][i])};
                mma_16x8x16(acc[4 * j + i], a, weights);
            }
        }
    }
    // What another warp stored joins this one's.
    DEVICE void join(const float4* slot, const float* other_top, const float* other_sum, int g, int t) {
        float by[2], other[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float best = max_nan(top[h], other_top[2 * t + h]);
            by[h] = exp2_fast(top[h] - best);
            other[h] = exp2_fast(other_top[2 * t + h] - best);
            sum[h] = fma_rn(sum[h], by[h], mul_rn(other[h], other_sum[2 * t + h]));
            top[h] = best;
        }
        shrink(by);
        if (t >= PAIRS) return;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) {
            const float4 v = slot[unit_at(g, i, t)];
            acc[i][0] += other[0] * v.x, acc[i][1] += other[1] * v.y;
            acc[i][2] += other[0] * v.z, acc[i][3] += other[1] * v.w;
        }
    }
    DEVICE void store(float4* slot, float* to_top, float* to_sum, int g, int t) {
        if (g == 0)
#pragma unroll
            for (int h = 0; h < 2; ++h) to_top[2 * t + h] = top[h], to_sum[2 * t + h] = sum[h];
        if (t >= PAIRS) return;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) slot[unit_at(g, i, t)] = {acc[i][0], acc[i][1], acc[i][2], acc[i][3]};
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
// shared words as well, so it waits for them alone: every word is asked for before the first is looked at.
DEVICE void join_slice(const Phase& p, const Piece& piece, AttentionMemory& memory, int most, const float* part_acc,
                       const float* part_ml, u32 turn) {
    const int elements = GROUP * HEAD_DIM, each = (PART_WORDS + THREADS - 1) / THREADS;
    const int first = elements * piece.split / piece.live, count = elements * (piece.split + 1) / piece.live - first;
    const int h0 = first / HEAD_DIM, heads = (first + count - 1) / HEAD_DIM - h0 + 1;
    const float* from[each];
    u32 words[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int i = min((int)threadIdx.x + k * THREADS, count * piece.live - 1), e = first + i % count;
        const u64 row = (u64)(piece.head0 + e / HEAD_DIM) * most + i / count;
        from[k] = part_acc + row * HEAD_DIM + e % HEAD_DIM;
        words[k] = load_relaxed(from[k]);
    }
    // maxima and sums, by the last threads: they have the fewest words above
    for (int i = THREADS - 1 - threadIdx.x; i < 2 * heads * piece.live; i += THREADS) {
        const int h = h0 + (i >> 1) / piece.live, split = (i >> 1) % piece.live;
        const float* at = part_ml + 2 * ((u64)(piece.head0 + h) * most + split) + (i & 1);
        u32 word;
        do word = load_relaxed(at);
        while ((word & 1) != turn);
        (i & 1 ? memory.part_sum : memory.part_top)[h][split] = int_as_float(word);
    }
#pragma unroll
    for (int k = 0; k < each; ++k) {
        while ((words[k] & 1) != turn) words[k] = load_relaxed(from[k]);
        const int i = (int)threadIdx.x + k * THREADS;
        if (i < count * piece.live) memory.parts[i] = int_as_float(words[k]);
    }
    sync_first<THREADS>();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int h = (first + i) / HEAD_DIM;
        float top = NO_SCORE, total = 0.0f, acc = 0.0f;
        for (int split = 0; split < piece.live; ++split) top = max_nan(top, memory.part_top[h][split]);
#pragma unroll 4
        for (int split = 0; split < piece.live; ++split) {
            const float weight = exp2_fast(memory.part_top[h][split] - top);
            total = fma_rn(weight, memory.part_sum[h][split], total);
            acc = fma_rn(weight, memory.parts[split * count + i], acc);
        }
        share(p.shared + piece.head0 * HEAD_DIM + first + i, mul_rn(acc, reciprocal(total)), turn);
    }
}

// A head pair's two neighbouring elements, over what the warps stored.
DEVICE void join_slots(float4& acc, float* top, float* total, const AttentionMemory& memory, int slots, int unit,
                       int t) {
    top[0] = top[1] = NO_SCORE;
    for (int w = 0; w < slots; ++w)
#pragma unroll
        for (int h = 0; h < 2; ++h) top[h] = max_nan(top[h], memory.top[w][2 * t + h]);
    acc = {0.0f, 0.0f, 0.0f, 0.0f};
    total[0] = total[1] = 0.0f;
#pragma unroll 4
    for (int w = 0; w < slots; ++w) {
        const float by[2] = {exp2_fast(memory.top[w][2 * t] - top[0]), exp2_fast(memory.top[w][2 * t + 1] - top[1])};
        const float4 v = memory.slots[w][unit];
        acc.x = fma_rn(by[0], v.x, acc.x), acc.y = fma_rn(by[1], v.y, acc.y);
        acc.z = fma_rn(by[0], v.z, acc.z), acc.w = fma_rn(by[1], v.w, acc.w);
#pragma unroll
        for (int h = 0; h < 2; ++h) total[h] = fma_rn(by[h], memory.sum[w][2 * t + h], total[h]);
    }
}

DEVICE void attend_piece(const Phase& p, const Step& s, const Piece& piece, AttentionMemory& memory, int most,
                         float* part_acc, float* part_ml, bool wait, Turn turn, u64* stamp, Intake& intake) {
    const int warp = intake.warp, lane = lane_id(), g = lane / 4, t = lane % 4, tiles = piece.end - piece.begin;
    Softmax mine;
    mine.open();
    load_token(memory, p.x, s, piece, wait, turn.in);
    sync_first<THREADS>();
    if (stamp) *stamp = global_time();
    mine.load_query(memory, g, t);
#pragma unroll 1
    for (int first = 0; first < tiles; first += WARPS) {
        const bool live = first + warp < tiles;
        const int left = s.position - (piece.begin + first + warp) * POSITIONS;
        u32 weights[2];
        if (live) {
            uint4 keys[CHUNKS][2];
            mine.load_keys(keys, intake.wait(CACHE_RECORD, lane), memory, left, g, t);
            intake.done(lane);
            float scores[4];
            mine.multiply_keys(scores, keys);
            mine.weigh(weights, scores, left, g);
            uint4 values[VECTORS][4];
            mine.load_values(values, intake.wait(CACHE_RECORD, lane), memory, left, g, t);
            intake.done(lane);
            mine.add_values(values, weights);
        } else {  // whoever does not look at a round must not be a ring ahead of those who do
            intake.wait(CACHE_RECORD, lane);
            intake.done(lane);
            intake.wait(CACHE_RECORD, lane);
            intake.done(lane);
        }
    }
    const int busy = min(tiles, WARPS), slots = min(busy, SLOTS);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        mine.sum[h] += shuffle_xor(mine.sum[h], 4);
        mine.sum[h] += shuffle_xor(mine.sum[h], 8);
        mine.sum[h] += shuffle_xor(mine.sum[h], 16);
    }
    if (busy > SLOTS) {
        if (warp >= SLOTS && warp < busy)
            mine.store(memory.slots[warp - SLOTS], memory.top[warp], memory.sum[warp], g, t);
        sync_first<THREADS>();
        if (warp + SLOTS < busy)
            mine.join(memory.slots[warp], memory.top[warp + SLOTS], memory.sum[warp + SLOTS], g, t);
    }
    if (warp < slots) mine.store(memory.slots[warp], memory.top[warp], memory.sum[warp], g, t);
    sync_first<THREADS>();
    for (int i = threadIdx.x; i < UNITS; i += THREADS) {
        const int pair = i / (8 * ELEMENTS), e = i % (8 * ELEMENTS);  // neighbouring threads, neighbouring elements
        float4 acc;
        float top[2], total[2];
        join_slots(acc, top, total, memory, slots, unit_at(e / ELEMENTS, e % ELEMENTS, pair), pair);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int head = piece.head0 + 2 * pair + h;
            float2 v = h ? float2{acc.y, acc.w} : float2{acc.x, acc.z};
            if (2 * pair + h >= GROUP) break;
            if (piece.live == 1) {
                const float inverse = reciprocal(total[h]);
                v = {mul_rn(v.x, inverse), mul_rn(v.y, inverse)};
                share2(p.shared + head * HEAD_DIM + 2 * e, v, turn.out);
                continue;
            }
            const u64 part = (u64)head * most + piece.split;
            share2(part_acc + part * HEAD_DIM + 2 * e, v, turn.out);
            if (e == 0) share2(part_ml + 2 * part, {top[h], total[h]}, turn.out);
        }
    }
    if (piece.live > 1) join_slice(p, piece, memory, most, part_acc, part_ml, turn.out);
}

// What of the cache a block attends to, on its way through the ring: the same pieces in the same order as `attend`.
DEVICE void fetch_cache(Fetch& fetch, const Stream& stream, const Piece& own, int heads, int kv_heads, int capacity,
                        int position) {
    const int groups = heads / GROUP, most = most_splits(groups, gridDim.x);
    Piece piece = own;
    for (int item = blockIdx.x; piece.split < piece.live;) {
        const u64 from = ((u64)piece.kv_head * capacity + piece.begin * POSITIONS) * ROW_BYTES;
        const int tiles = piece.end - piece.begin;
        // this token's own rows are being written
        const int bytes = min(tiles * CACHE_RECORD, (position - piece.begin * POSITIONS) * ROW_BYTES);
        fetch.cache(stream.weights[0] + from, stream.weights[1] + from, tiles, CACHE_RECORD, bytes, stream.shallow);
        item += gridDim.x;
        if (item >= groups * most) return;
        piece = piece_of(item, groups, gridDim.x, position + 1, heads / kv_heads);
    }
}

// p.x f32 [heads + 2 kv_heads][HEAD_DIM], p.shared f32 [heads][HEAD_DIM]; part_acc f32 [heads][most_splits][HEAD_DIM],
// part_ml f32 [heads][most_splits][2]; own: the block's first piece, the same in every layer. A block with several
// pieces would wait for its own: then nothing is split.
DEVICE void attend(const Phase& p, const Step& s, const Piece& own, u8* memory, float* part_acc, float* part_ml,
                   bool wait, Turn turn, u64* stamp, Intake& intake) {
    if (stamp) *stamp = global_time();
    const int groups = s.heads / GROUP, most = most_splits(groups, gridDim.x);
    Piece piece = own;
    for (int item = blockIdx.x; piece.split < piece.live;) {
        attend_piece(p, s, piece, *(AttentionMemory*)memory, most, part_acc, part_ml, wait, turn, stamp,
                     intake);
        item += gridDim.x;
        if (item >= groups * most) return;
        sync_first<THREADS>();
        piece = piece_of(item, groups, gridDim.x, s.position + 1, s.heads / s.kv_heads);
    }
}
