// A decode step, or any run of its phases, in one launch: one block a multiprocessor, every block a share of each
// matrix. Blocks of several phases wait for each other, so all must be resident: there are no more than
// multiprocessors, and each takes one whole.
#include "fast_attention.cuh"
#include "fast_rows.cuh"

#ifndef FORMATS
#define FORMATS 15  // which tile formats a model has, one bit each
#endif

// One segment: this warp's records, multiplied as they arrive. Partial sums go to partials[record][TILE_ROWS], records
// numbered step by step (step × tiles + tile); a warp takes neighbours, so its activations change seldom.
template <class Tile>
DEVICE void multiply(const Share& share, const u8* image, float* partials, Intake& intake, int lane) {
    const int unit = lane & 3, warp = intake.warp;
    const int each = share.records / WARPS, more = share.records % WARPS;
    int record = warp * each + min(warp, more);
    const int last = record + each + (warp < more);
    int step = record < last ? record / share.tiles : 0;
    float* to = partials + record * TILE_ROWS + (lane >> 2);
#pragma unroll 1
    while (record < last) {
        Activations x;
        x.template load<Tile::OFFSET>(image + step * IMAGE_BYTES, unit);
        const int end = min(++step * share.tiles, last);
#pragma unroll 1
        for (; record < end; ++record) {
            Tile weights;
            weights.load(intake.wait(Tile::RECORD, lane), lane);
            intake.done(lane);
            float sum = weights.dot(x, lane);
            sum = add_rn(sum, shuffle_xor(sum, 1));
            sum = add_rn(sum, shuffle_xor(sum, 2));
            if (unit == 0) *to = sum;
            to += TILE_ROWS;
        }
    }
    if (more && warp >= more) intake.done(lane);  // the last round has no record for this warp
}

DEVICE void multiply_any(int format, const Share& share, const u8* image, float* partials, Intake& intake,
                         int lane) {
    if ((FORMATS & 1) && format == 0) multiply<TileQ4K>(share, image, partials, intake, lane);
    if ((FORMATS & 2) && format == 1) multiply<TileQ6K>(share, image, partials, intake, lane);
    if ((FORMATS & 4) && format == 2) multiply<TileQ50>(share, image, partials, intake, lane);
    if ((FORMATS & 8) && format == 3) multiply<TileQ80>(share, image, partials, intake, lane);
}

// All that a launch streams, by one thread.
DEVICE void fetch_all(Ring ring, int ring_bytes, const Stream* streams, int phases, const Segment* segments,
                      const Share* shares, const int* state, int heads, int kv_heads, int capacity) {
    Fetch fetch = {ring, ring_bytes};
    int position = -1;
    Piece own;
    for (int i = 0; i < phases; ++i) {
        if (streams[i].segment[0] == CACHE) {
            if (position < 0) {  // weights are there from the beginning; the cache is what earlier launches made it
                dependency_wait();
                position = (int)load_relaxed(state);
                own = piece_of(blockIdx.x, heads / GROUP, gridDim.x, position + 1, heads / kv_heads);
            }
            fetch_cache(fetch, streams[i], own, heads, kv_heads, capacity, position);
            continue;
        }
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
            const int which = streams[i].segment[part];
            if (which < 0) break;
            const Segment& segment = segments[which];
            const u64 before = (u64)shares[which].tile * segment.steps * segment.record;
            fetch.segment(streams[i].weights[part] + before, shares[which].records, segment.record, streams[i].shallow);
        }
    }
}

DEVICE void hold(Phase& to, const Phase* from) {
    if (threadIdx.x < sizeof(Phase) / 16) ((uint4*)&to)[threadIdx.x] = load16((const uint4*)from + threadIdx.x);
}

// phases, streams [last]; segments [segment_count]; state i32: position; rope f32 [capacity][HEAD_DIM/2][2];
// part_acc, part_ml: see `attend`; counters[0]: blocks that left, 0 before and after; counters[1]: the turn of a step's
// first layer, which each launch with `turns` changes; part_value, part_index [gridDim.x]: each block's best logit;
// stamps u64 [phases][gridDim.x][2] or null: when a block had its input of a phase and when it was done with the phase,
// in ns. Dynamic shared memory: fast_tables.py SharedLayout.
extern "C" __global__ void __launch_bounds__(THREADS + WARP, 1)
    fast_step(const Phase* phases, const Stream* streams, const Segment* segments, const int* state, const float* rope,
              float* part_acc, float* part_ml, u32* counters, float* part_value, int* part_index, u64* stamps,
              int first, int last, int segment_count, int qk_segment, int ring_bytes, int scratch_bytes,
              int image_steps, int most_pairs, int heads, int kv_heads, int capacity, int interleaved, int turns,
              float eps, float scale) {
    DYNAMIC_SHARED(memory);
    __shared__ u64 barriers[BARRIERS];
    __shared__ __align__(16) Phase held[2];  // this phase and the next: too many registers otherwise
    __shared__ __align__(16) float squares[WARPS];
    __shared__ Piece piece;
    __shared__ float values[WARPS];
    __shared__ int indices[WARPS];
    const int lane = keep(lane_id()), warp = keep(warp_id()), count = last - first;
    u8* at = memory + PLACES_BYTES + ring_bytes;
    const Scratch scratch = {at, (float*)(at + image_steps * IMAGE_BYTES), squares};
    Stream* my_streams = (Stream*)(at + scratch_bytes);
    Segment* my_segments = (Segment*)(my_streams + count);
    float2* angles = (float2*)(my_segments + segment_count);
    Share* shares = (Share*)(angles + most_pairs);
    const Ring ring = {memory + PLACES_BYTES, (int*)memory, barrier_at(barriers)};

    for (int i = threadIdx.x; i < count; i += THREADS + WARP) my_streams[i] = streams[first + i];
    for (int i = threadIdx.x; i < segment_count; i += THREADS + WARP) my_segments[i] = segments[i];
    for (int i = threadIdx.x; i < segment_count; i += THREADS + WARP)
        shares[i] = share_of(segments[i], blockIdx.x, gridDim.x);
    if (threadIdx.x == THREADS) ring.open();
    __syncthreads();
    if (warp == WARPS) {
        if (lane == 0)
            fetch_all(ring, ring_bytes, my_streams, count, my_segments, shares, state, heads, kv_heads, capacity);
        return;
    }
    Intake intake = {ring, 0, warp};
    if (lane == 0) values[warp] = LOWEST, indices[warp] = 0;
    dependency_release();
    dependency_wait();

    Step step = {heads, kv_heads, capacity, interleaved, (int)load_relaxed(state), eps, scale, angles};
    const Share rotated = shares[qk_segment];
    for (int i = threadIdx.x; i < rotated.tiles * (TILE_ROWS / 2); i += THREADS) {
        const int pair = (rotated.tile * (TILE_ROWS / 2) + i) % (HEAD_DIM / 2);
        angles[i] = ((const float2*)rope)[(u64)step.position * (HEAD_DIM / 2) + pair];
    }
    // divisions take long: once a step, not once a layer
    if (threadIdx.x == 0)
        piece = piece_of(blockIdx.x, heads / GROUP, gridDim.x, step.position + 1, heads / kv_heads);
    hold(held[0], phases + first);
    sync_first<THREADS>();
    const u32 base = load_relaxed(counters + 1);
    for (int i = 0; i < count; ++i) {
        const Phase& p = held[i & 1];
        if (i + 1 < count) hold(held[(i + 1) & 1], phases + first + i + 1);
        const bool wait = i && (p.flags & AFTER_ALL);
        const Turn turn = {base ^ ((p.flags & IN_ODD) != 0), base ^ ((p.flags & OUT_ODD) != 0)};
        u64* stamp = stamps && threadIdx.x == 0 ? stamps + ((u64)(first + i) * gridDim.x + blockIdx.x) * 2 : nullptr;
        if (p.operation == ATTEND) {
            attend(p, step, piece, scratch.image, part_acc, part_ml, wait, turn, stamp, intake);
        } else {
            const Stream& stream = my_streams[i];
            float aside[2];
#pragma unroll
            for (int part = 0; part < 2; ++part)
                if (stream.segment[part] >= 0)
                    aside[part] = early(p, step, shares[stream.segment[part]], part);
            if (p.flags & NORM_INPUT)
                quantize_input<NORMED>(scratch, p.x, p.gamma, p.cols, wait, turn.in);
            else if (p.flags & PLAIN_INPUT)
                quantize_input<PLAIN>(scratch, p.x, p.gamma, p.cols, wait, turn.in);
            else if (p.flags & BRIEF_INPUT)
                quantize_input<BRIEF>(scratch, p.x, p.gamma, p.cols, wait, turn.in);
            sync_first<THREADS>();
            if (stamp) stamp[0] = global_time();
            int records = 0;
#pragma unroll 1
            for (int part = 0; part < 2; ++part) {
                const int which = stream.segment[part];
                if (which < 0) break;
                const Share share = shares[which];
                float* partials = scratch.partials + records * TILE_ROWS;
                multiply_any(my_segments[which].format, share, scratch.image, partials, intake, lane);
                records += share.tiles * my_segments[which].steps;
            }
            sync_first<THREADS>();
            const float inverse = p.flags & NORMED_ROWS ? inverse_rms(scratch, p.cols, step.eps) : 1.0f;
            Best best = {LOWEST, 0};
            records = 0;
#pragma unroll 1
            for (int part = 0; part < 2; ++part) {
                const int which = stream.segment[part];
                if (which < 0) break;
                const Share share = shares[which];
                const int steps = my_segments[which].steps;
                finish_rows(p, step, share, steps, scratch.partials + records * TILE_ROWS, part, inverse,
                            part ? aside[1] : aside[0], best, turn.out);
                records += share.tiles * steps;
            }
            if (p.operation == LOGITS) best.keep(values, indices);
            if (p.flags & LAST_LOGITS) {
                sync_first<THREADS>();
                if (threadIdx.x == 0) {
                    for (int w = 0; w < WARPS; ++w) best.take(values[w], indices[w]);
                    part_value[blockIdx.x] = best.value;
                    part_index[blockIdx.x] = best.index;
                }
            }
        }
        sync_first<THREADS>();
        if (stamp) stamp[1] = global_time();
    }
    if (turns && threadIdx.x == 0 && fetch_add(counters, 1) == gridDim.x - 1) {
        counters[0] = 0;
        counters[1] = base ^ 1;
    }
}
