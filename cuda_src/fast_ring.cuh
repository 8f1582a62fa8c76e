// Weights on their way into a block: one warp feeds a ring of records in shared memory for each of the others. Weights
// never depend on activations, so the rings fill while the block waits for other blocks.
#pragma once
#include "tile.cuh"

#ifndef WARPS
#define WARPS 15  // that multiply; one more feeds them
#endif
#define THREADS (WARPS * WARP)
#define RING_COPIES 8  // most copies in flight a ring

// What a phase streams: records of at most two segments.
struct Stream {
    const u8* weights[2];
    int segment[2];  // index of a segment, or -1
};

// A matrix of a phase: 8-row tiles, records a tile, bytes a record, and which format.
struct Segment {
    int tiles, steps, record, format;
};

// A warp's part of a segment: records first .. last - 1 of its block's `tiles` tiles from `tile` on, numbered step by
// step (record = step × tiles + tile).
struct Share {
    int tile, tiles, first, last;
};

DEVICE Share share_of(const Segment& segment, int block, int blocks, int warp) {
    const int tile = (int)((u64)block * segment.tiles / blocks), end = (int)((u64)(block + 1) * segment.tiles / blocks);
    const int records = (end - tile) * segment.steps;
    return {tile, end - tile, records * warp / WARPS, records * (warp + 1) / WARPS};
}

// A record that would cross the end of a ring starts at its beginning; both sides skip the same bytes.
DEVICE int skipped(int at, int size, int bytes) { return at + size > bytes ? bytes - at : 0; }

// The side of the warp that multiplies; every lane holds the same values.
struct Intake {
    u8* base;
    u64* full;   // RING_COPIES barriers
    u32* freed;  // bytes given back so far, skipped ones included
    int bytes, at;
    u32 taken, done;

    DEVICE const u8* wait(int size) {
        const int skip = skipped(at, size, bytes);
        if (skip) at = 0;
        done += skip;
        barrier_wait(full + taken % RING_COPIES, taken / RING_COPIES & 1);
        return base + at;
    }
    // The record that `wait` gave is in registers, in every lane.
    DEVICE void free(int size, int lane) {
        at += size;
        done += size;
        ++taken;
        sync_warp();
        if (lane == 0) store_shared(freed, done);
    }
};

// The feeding side: lane w of the feeding warp runs through warp w's records, in the order it multiplies them.
struct Feed {
    const Stream* streams;
    const Segment* segments;
    const Share* shares;  // of this warp: [segment][WARPS]
    int phase, last, part, left, tile, tiles, record, stride;
    const u8 *from, *column;

    // To the next segment with records for this warp.
    DEVICE void seek() {
        while (left == 0) {
            if (++part == 2) {
                part = 0;
                ++phase;
            }
            if (phase >= last) return;
            const int which = streams[phase].segment[part];
            if (which < 0) continue;
            const Share share = shares[which * WARPS];
            left = share.last - share.first;
            if (left == 0) continue;
            const Segment& segment = segments[which];
            const int step = share.first / share.tiles;
            tile = share.first - step * share.tiles;
            tiles = share.tiles;
            record = segment.record;
            stride = segment.steps * segment.record;
            column = streams[phase].weights[part] + (u64)share.tile * stride + step * record;
            from = column + (u64)tile * stride;
        }
    }
    DEVICE void next() {
        from += stride;
        if (++tile == tiles) {
            tile = 0;
            column += record;
            from = column;
        }
        if (--left == 0) seek();
    }
};

DEVICE void feed_rings(const Stream* streams, int phases, const Segment* segments, const Share* shares, u8* rings,
                       int bytes, u64 (*full)[RING_COPIES], const u32* freed) {
    const int warp = lane_id();
    if (warp >= WARPS) return;
    Feed feed = {streams, segments, shares + warp, 0, phases, -1, 0};
    feed.seek();
    u8* base = rings + warp * bytes;
    int at = 0;
    u32 asked = 0, issued = 0;
    while (feed.left) {
        const int skip = skipped(at, feed.record, bytes);
        if (asked + skip + feed.record - load_shared(freed + warp) > (u32)bytes) {
            pause();
            continue;
        }
        if (skip) at = 0;
        bulk_copy(base + at, feed.from, feed.record, full[warp] + issued % RING_COPIES, STREAMING);
        at += feed.record;
        asked += skip + feed.record;
        ++issued;
        feed.next();
    }
}
