// Weights and earlier tokens' keys and values on their way into a block: one thread streams the block's records through
// a ring in shared memory, a round of one record a warp at a time. None of them depends on this step's activations, so
// the ring fills while the block waits for others.
#pragma once
#include "tile.cuh"

#define ROUNDS 8          // most rounds in the ring
#ifndef GROUPS
#define GROUPS 3          // copies a round, each for WARPS / GROUPS warps
#endif
#define GROUP_WARPS (WARPS / GROUPS)
// Copies under way. While the block only multiplies, many keep the memory busy; around a dependency few, because what
// it waits for travels the same way: a segment's first rounds are asked for before its phase begins.
#ifndef SHALLOW
#define SHALLOW 2
#endif
#ifndef DEEP
#define DEEP 7
#endif
#define CACHE -2  // in place of a segment: k and v of a layer
// What a phase streams: records of at most two segments, or of the KV cache.
struct Stream {
    const u8* weights[2];  // or the layer's k and v
    int segment[2];        // index of a segment, CACHE, or -1
    int shallow;           // rounds of each segment, or of the cache, that are fetched around a dependency
    int unused;
};

// A matrix of a phase: 8-row tiles, records a tile, bytes a record, and which format.
struct Segment {
    int tiles, steps, record, format;
};

// A block's part of a segment: `tiles` tiles from `tile` on, `records` in all.
struct Share {
    int tile, tiles, records;
};
DEVICE Share share_of(const Segment& segment, int block, int blocks) {
    const int tile = (int)((u64)block * segment.tiles / blocks), end = (int)((u64)(block + 1) * segment.tiles / blocks);
    return {tile, end - tile, (end - tile) * segment.steps};
}

#define BARRIERS (ROUNDS * (GROUPS + 1))
#define PLACES_BYTES 128  // ROUNDS × GROUPS words, rounded up so that the ring stays aligned

struct Ring {
    u8* base;
    int* places;  // [ROUNDS][GROUPS]: where a group's records of a round begin; written before their copy is asked for
    Barrier first;

    // Of a copy: one arrival, and its bytes. Of a round's memory: one arrival a warp.
    DEVICE Barrier full(u32 round, int group) const {
        return barrier_next(first, round % ROUNDS * GROUPS + group);
    }
    DEVICE Barrier empty(u32 round) const { return barrier_next(first, ROUNDS * GROUPS + round % ROUNDS); }
    DEVICE static u32 parity(u32 round) { return round / ROUNDS & 1; }

    // One thread, before anyone waits.
    DEVICE void open() const {
        for (int i = 0; i < ROUNDS; ++i) {
            for (int g = 0; g < GROUPS; ++g) barrier_init(full(i, g), 1);
            barrier_init(empty(i), WARPS);
        }
        barrier_publish();
    }
};

// The multiplying side; every lane of a warp holds the same values.
struct Intake {
    Ring ring;
    u32 round;
    int warp;

    // This warp's record of the round. The lane that will arrive reads the place for all: racecheck knows of its reads
    // alone that they are done.
    DEVICE const u8* wait(int record, int lane) const {
        const int group = warp / GROUP_WARPS;
        barrier_wait(ring.full(round, group), Ring::parity(round));
        const int at = from_first_lane(lane == 0 ? ring.places[round % ROUNDS * GROUPS + group] : 0);
        return ring.base + at + warp % GROUP_WARPS * record;
    }
    // What `wait` gave is in registers, in every lane; or the round has no record for this warp.
    DEVICE void done(int lane) {
        sync_warp();
        if (lane == 0) barrier_arrive(ring.empty(round));
        ++round;
    }
};

// The fetching side, one thread: all records of the block, phase after phase.
struct Fetch {
    Ring ring;
    int bytes, at;
    u32 round, oldest, copies;
    u32 asked, freed;         // bytes, skipped ones included
    u32 ends[ROUNDS];         // `asked` after each round in the ring

    DEVICE void wait_for_room(int size) {
        while (asked + size - freed > (u32)bytes || round - oldest == ROUNDS) {
            barrier_wait(ring.empty(oldest), Ring::parity(oldest));
            freed = ends[oldest % ROUNDS];
            ++oldest;
        }
    }
    DEVICE void wait_for_landing(u32 most) {
        if (copies < most) return;
        const u32 old = copies - most, in = old / GROUPS;
        barrier_wait(ring.full(in, old % GROUPS), Ring::parity(in));
    }
    // A round: `total` bytes from `from` on, of which a group takes those of its warps' records.
    DEVICE void send(const u8* from, int total, int record, u32 most, u64 policy) {
#pragma unroll 1
        for (int g = 0; g < GROUPS; ++g) {
            const int before = g * GROUP_WARPS * record, size = max(0, min(total - before, GROUP_WARPS * record));
            // records that would cross the end of the ring start at its beginning
            const bool wrap = at + size > bytes;
            const int skip = wrap ? bytes - at : 0;
            wait_for_room(skip + size);
            asked += skip + size;
            if (wrap) at = 0;
            ring.places[round % ROUNDS * GROUPS + g] = at;
            wait_for_landing(most);
            bulk_copy(ring.base + at, from + before, size, ring.full(round, g), policy);
            at += size;
            ++copies;
        }
        ends[round % ROUNDS] = asked;
        ++round;
    }
    DEVICE void segment(const u8* from, int records, int record, int shallow) {
        for (int first = 0; first < records; first += WARPS, from += WARPS * record)
            send(from, min(records - first, WARPS) * record, record, first < shallow * WARPS ? SHALLOW : DEEP,
                 STREAMING);
    }
    // Rows of the cache, a round of keys and one of values alternately: `records` records, `total` bytes of each.
    DEVICE void cache(const u8* k, const u8* v, int records, int record, int total, int shallow) {
        for (int i = 0; i < 2 * ((records + WARPS - 1) / WARPS); ++i) {
            const int before = (i >> 1) * WARPS * record;
            send((i & 1 ? v : k) + before, min(total - before, WARPS * record), record, i < shallow ? SHALLOW : DEEP,
                 KEPT);
        }
    }
};
