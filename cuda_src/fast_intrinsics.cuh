// What the fast build needs beyond plain CUDA: bulk copies, dependencies between launches and blocks, tensor cores.
// Like intrinsics.cuh, the host build of the tests replaces this file.
#pragma once
#include "common.cuh"

#if defined(__CUDACC__)

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]

// Good to an ulp or two.
DEVICE float reciprocal(float a) {
    float value;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(a));
    return value;
}
DEVICE float reciprocal_root(float a) {
    float value;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(a));
    return value;
}
// Unsigned bytes of a times signed bytes of b, added to c.
DEVICE int dp4a_unsigned(u32 a, u32 b, int c) {
    int sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
DEVICE void sync_warp() { __syncwarp(); }
// The same value, in a register of its own, for a whole warp: a shuffle from the lane itself, which the compiler does
// not see through. It would read special registers again in every loop instead.
DEVICE int keep(int v) { return __shfl_sync(FULL_MASK, v, lane_id()); }
DEVICE int from_first_lane(int v) { return __shfl_sync(FULL_MASK, v, 0); }
// All threads of the first `count`, a multiple of 32; the rest of the block goes its own way.
template <int count> DEVICE void sync_first() { asm volatile("bar.sync 1, %0;" ::"n"(count) : "memory"); }
// Memory that other blocks write while this kernel runs: read from L2, never from a stale L1 line.
DEVICE float load_fresh(const float* p) { return __ldcg(p); }
DEVICE float4 load_fresh4(const float* p) { return __ldcg((const float4*)p); }

// --- programmatic dependent launch ---

// From here on every earlier launch of the stream is done and its writes are visible.
DEVICE void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next launch may start its blocks as soon as there is room.
DEVICE void dependency_release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// --- between the blocks of one launch ---

// One word that other blocks look at; it carries all they need, so it orders nothing else.
DEVICE void store_relaxed(u32* p, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}
DEVICE void store_relaxed8(void* p, uint2 value) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(value.x), "r"(value.y) : "memory");
}
DEVICE u32 load_relaxed(const void* p) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}
DEVICE uint4 load_relaxed16(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
// Adds, and orders everything the block did before its own __syncthreads ahead of what follows.
DEVICE u32 fetch_add(u32* counter, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
    return before;
}
DEVICE u64 global_time() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// --- bulk copies into shared memory, completing on a barrier ---

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Barriers by their address, worked out once.
typedef u32 Barrier;
DEVICE Barrier barrier_at(u64* barrier) { return (Barrier)keep((int)shared_address(barrier)); }
DEVICE Barrier barrier_next(Barrier first, int i) { return first + 8 * i; }
DEVICE void barrier_init(Barrier barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_arrive(Barrier barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Makes the barriers that this thread initialized visible to the copy engine.
DEVICE void barrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Weights are read once a step: they leave L2 first, so that activations and KV stay. The cache policy that
// createpolicy.fractional.L2::evict_first makes for all accesses.
#define STREAMING 0x12f0000000000000ull
#define KEPT 0x1000000000000000ull  // of normal priority, as createpolicy.fractional.L2::evict_normal makes it
// One thread; `bytes` and both addresses are multiples of 16. The copy is one arrival; without bytes only that.
DEVICE void bulk_copy(void* to, const void* from, int bytes, Barrier barrier, u64 policy) {
    if (bytes == 0) return barrier_arrive(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}
DEVICE void barrier_wait(Barrier barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// --- tensor cores ---

// c += a · b: a f16 [16][16], b f16 [16][8], c f32 [16][8]. With g = lane / 4 and t = lane % 4, in pairs of neighbours:
// a is rows g, g + 8, g, g + 8 at columns 2t, 2t, 2t + 8, 2t + 8; b is rows 2t, 2t + 8 of column g; c is row g, then
// g + 8, at columns 2t, 2t + 1 (PTX ISA, mma.m16n8k16).
DEVICE void mma_16x8x16(float* c, const u32* a, const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// An 8 × 8 matrix of f16, row lane / 4 and columns 2 (lane % 4), + 1 in each lane: transposed.
DEVICE u32 transpose_8x8(u32 pair) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}
// The low halves of both words, or the high ones.
DEVICE u32 low_halves(u32 first, u32 second) { return __byte_perm(first, second, 0x5410); }
DEVICE u32 high_halves(u32 first, u32 second) { return __byte_perm(first, second, 0x7632); }
DEVICE u32 byte_of(u32 word, int i) { return __byte_perm(word, 0, 0x4440 + i); }
DEVICE int signed_byte_of(u32 word, int i) {
    int value;  // a selector's high bit repeats the sign of its byte
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(value) : "r"(word), "r"(i | (8 + i) * 0x1110));
    return value;
}

#else
#include "host_fast.h"
#endif
