// Weights on their way into a block: one thread streams the block's records through a ring in shared memory, a round of
// one record a warp at a time. Weights never depend on activations, so the ring fills while the block waits for others.
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
#define DEEP 5
#endif
// What a phase streams: records of at most two segments.
struct Stream {
    const u8* weights[2];
    int segment[2];  // index of a segment, or -1
    int shallow;     // rounds of each segment that are fetched around a dependency
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

// A group's records that would cross the end of the ring start at its beginning; both sides skip the same bytes.
struct Places {
    int bytes, at;
    DEVICE int skip(int size) const { return at + size > bytes ? bytes - at : 0; }
    DEVICE int take(int size) {
        const int from = at + size > bytes ? 0 : at;
        at = from + size;
        return from;
    }
};

struct Ring {
    u8* base;
    u64 (*full)[GROUPS];  // [ROUNDS], one arrival and the bytes of a copy
    u64* empty;           // [ROUNDS], one arrival a warp

    // One thread, before anyone waits.
    DEVICE void open() const {
        for (int i = 0; i < ROUNDS; ++i) {
            for (int g = 0; g < GROUPS; ++g) barrier_init(&full[i][g], 1);
            barrier_init(empty + i, WARPS);
        }
        barrier_publish();
    }
};

// Records of group g in a round that has `left` records from its first on.
DEVICE int in_group(int left, int g) { return max(0, min(left - g * GROUP_WARPS, GROUP_WARPS)); }

// The multiplying side; every lane of a warp holds the same values.
struct Intake {
    Ring ring;
    Places places;
    u32 round;

    // Where this warp's record of a round with `left` records to come goes.
    DEVICE int place(int left, int record) {
        const int warp = warp_id();
        int mine = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int from = places.take(in_group(left, g) * record);
            if (g == warp / GROUP_WARPS) mine = from;
        }
        return mine + warp % GROUP_WARPS * record;
    }
    DEVICE const u8* wait(int left, int record) {
        const int at = place(left, record);
        barrier_wait(&ring.full[round % ROUNDS][warp_id() / GROUP_WARPS], round / ROUNDS & 1);
        return ring.base + at;
    }
    // What `wait` gave is in registers, in every lane.
    DEVICE void done(int lane) {
        sync_warp();
        if (lane == 0) barrier_arrive(ring.empty + round % ROUNDS);
        ++round;
    }
};

// The fetching side, one thread: all records of the block, phase after phase.
struct Fetch {
    Ring ring;
    Places places;
    u32 round, oldest, copies;
    u32 asked, freed;         // bytes, skipped ones included
    u32 ends[ROUNDS];         // `asked` after each round in the ring

    DEVICE void wait_for_room(int size) {
        while (asked + size - freed > (u32)places.bytes || round - oldest == ROUNDS) {
            barrier_wait(ring.empty + oldest % ROUNDS, oldest / ROUNDS & 1);
            freed = ends[oldest % ROUNDS];
            ++oldest;
        }
    }
    DEVICE void wait_for_landing(u32 most) {
        if (copies < most) return;
        const u32 old = copies - most, in = old / GROUPS;
        barrier_wait(&ring.full[in % ROUNDS][old % GROUPS], in / ROUNDS & 1);
    }
    DEVICE void segment(const u8* from, int records, int record, int shallow) {
        for (int first = 0; first < records; first += WARPS) {
#pragma unroll 1
            for (int g = 0; g < GROUPS; ++g) {
                const int size = in_group(records - first, g) * record, skip = places.skip(size);
                wait_for_room(skip + size);
                asked += skip + size;
                const int at = places.take(size);
                wait_for_landing(first < shallow * WARPS ? SHALLOW : DEEP);
                bulk_copy(ring.base + at, from, size, &ring.full[round % ROUNDS][g], STREAMING);
                from += size;
                ++copies;
            }
            ends[round % ROUNDS] = asked;
            ++round;
        }
    }
};
