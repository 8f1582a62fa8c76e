// Weights on their way into a block. Each multiplying warp has a ring of records in shared memory, and one more warp
// writes the orders: which record comes next, where it goes, and when there is room. A warp sends off its next orders as
// it frees records, so copies start from many warps at once; orders never depend on activations, so the rings fill while
// the block waits for other blocks.
#pragma once
#include "tile.cuh"

#ifndef WARPS
#define WARPS 15  // that multiply; one more writes their orders
#endif
#define THREADS (WARPS * WARP)
#define RING_COPIES 8  // most copies in flight a ring
#define ORDERS 16      // most orders written ahead of a ring, a power of two

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

// One copy: from, and its place in the ring with its size (at | size << 16); it may start when `need` bytes of the ring
// have been freed since the launch began, skipped ones included.
struct Order {
    u64 from;
    u32 place, need;
};
struct __align__(16) OrderBook {
    Order orders[ORDERS];
    u32 written, sent, complete;  // complete: none will follow
};

// The side of the warp that multiplies; every lane holds the same values but `sent`, which is lane 0's.
struct Intake {
    u8* base;
    u64* full;  // RING_COPIES barriers
    OrderBook* book;
    int bytes, at;
    u32 taken, freed, sent;

    // Lane 0: send off what there is room for. True when an order waits for room.
    DEVICE bool send() {
        while (sent != load_acquire_shared(&book->written)) {
            const uint4 next = *(const uint4*)&book->orders[sent % ORDERS];
            if ((int)(freed - next.w) < 0) return true;
            bulk_copy(base + (next.z & 0xffff), (const void*)((u64)next.y << 32 | next.x), next.z >> 16,
                      full + sent % RING_COPIES, STREAMING);
            store_shared(&book->sent, ++sent);
        }
        return false;
    }
    // Fill the ring for the first time.
    DEVICE void start(int lane) {
        if (lane == 0)
            while (!send() && !load_acquire_shared(&book->complete)) pause();
        sync_warp();
    }
    DEVICE const u8* wait(int size, int lane) {
        if (lane == 0)
            while (sent == taken) {  // only when the orders are late
                send();
                pause();
            }
        const int skip = skipped(at, size, bytes);
        if (skip) at = 0;
        freed += skip;
        barrier_wait(full + taken % RING_COPIES, taken / RING_COPIES & 1);
        return base + at;
    }
    // The record that `wait` gave is in registers, in every lane.
    DEVICE void free(int size, int lane) {
        at += size;
        freed += size;
        ++taken;
        sync_warp();
        if (lane == 0) send();
    }
};

// Lane w of the ordering warp runs through warp w's records, in the order it multiplies them.
struct Cursor {
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

DEVICE void write_orders(const Stream* streams, int phases, const Segment* segments, const Share* shares, int bytes,
                         OrderBook* books) {
    const int warp = lane_id();
    if (warp >= WARPS) return;
    OrderBook& book = books[warp];
    Cursor cursor = {streams, segments, shares + warp, 0, phases, -1, 0};
    cursor.seek();
    int at = 0;
    u32 asked = 0, written = 0;
    while (cursor.left) {
        if (written - load_acquire_shared(&book.sent) == ORDERS) {
            pause();
            continue;
        }
        const int skip = skipped(at, cursor.record, bytes);
        if (skip) at = 0;
        asked += skip + cursor.record;
        book.orders[written % ORDERS] = {(u64)cursor.from, (u32)at | (u32)cursor.record << 16, asked - bytes};
        at += cursor.record;
        store_release_shared(&book.written, ++written);
        cursor.next();
    }
    store_release_shared(&book.complete, 1);
}
