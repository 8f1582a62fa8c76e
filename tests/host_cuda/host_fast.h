// The host side of fast_intrinsics.cuh. A bulk copy happens when its barrier is waited for, not when it is asked for,
// and its target holds NaN until then: a kernel that reads early, or copies over what it still needs, computes NaN.
#pragma once
#include <time.h>

#define DYNAMIC_SHARED(name) alignas(128) static unsigned char name[host::DYNAMIC_BYTES]

namespace host {

const int DYNAMIC_BYTES = 227 * 1024;

struct Copy {
    void* to;
    const void* from;
    int bytes;
};
const int MAX_COPIES = 1024;
static Copy copies[MAX_COPIES];

inline void misuse(const char* what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

struct Words {
    unsigned v[8];
};
static Words posted[MAX_THREADS / 32][2][32];

// Every lane of the warp shows its words to all others.
inline const Words* posted_by_warp(const Words& mine) {
    const int warp = current / 32, turn = fibers[current].shuffles++ & 1;
    posted[warp][turn][current % 32] = mine;
    yield(AT_WARP);
    return posted[warp][turn];
}

}  // namespace host

inline unsigned short float_to_half(float value);
inline float half_to_float(unsigned short bits);

inline int dp4a_unsigned(unsigned a, unsigned b, int c) {
    for (int k = 0; k < 4; ++k) c += (int)(a >> 8 * k & 255) * (int8_t)(b >> 8 * k);
    return c;
}
inline int keep(int v) { return v; }
inline int from_first_lane(int v) { return (int)host::posted_by_warp({{(unsigned)v}})[0].v[0]; }
inline void sync_warp() { host::yield(host::AT_WARP); }
template <int count> inline void sync_first() {
    host::team = count;
    host::yield(host::AT_TEAM);
}
inline float reciprocal(float a) { return 1.0f / a; }
inline float reciprocal_root(float a) { return 1.0f / sqrtf(a); }
inline float load_fresh(const float* p) { return load_aligned<float>(p); }
inline float4 load_fresh4(const float* p) { return load_aligned<float4>(p); }

inline void dependency_wait() {}
inline void dependency_release() {}

// Loops look at words that other threads write: now and then the others get their turn, or the launch is found stuck.
inline void polled() {
    static int polls[host::MAX_THREADS];
    if (++polls[host::current] % 16 == 0) host::yield(host::READY);
}
inline void store_relaxed(unsigned* p, unsigned value) { *p = value; }
inline void store_relaxed8(void* p, uint2 value) {
    if ((uintptr_t)p % 8) host::misuse("misaligned access");
    memcpy(p, &value, 8);
}
inline unsigned load_relaxed(const void* p) {
    polled();
    return load_aligned<unsigned>(p);
}
inline uint4 load_relaxed16(const void* p) {
    polled();
    return load_aligned<uint4>(p);
}
inline unsigned fetch_add(unsigned* counter, unsigned value) {
    const unsigned before = *counter;
    *counter += value;
    return before;
}
inline unsigned long long global_time() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// A barrier: the parity of its running phase (bit 0), arrivals it needs (8 bits), arrivals still missing (8 bits), and
// above them the number of its pending copy plus one.
typedef unsigned long long* Barrier;
inline Barrier barrier_at(unsigned long long* barrier) { return barrier; }
inline Barrier barrier_next(Barrier first, int i) { return first + i; }
inline void barrier_init(unsigned long long* barrier, int arrivals) { *barrier = arrivals << 1 | arrivals << 9; }
inline void barrier_count(unsigned long long* barrier) {
    const unsigned long long needed = *barrier >> 1 & 255, missing = *barrier >> 9 & 255;
    if (missing == 1)
        *barrier = ((*barrier & 1) ^ 1) | needed << 1 | needed << 9;
    else
        *barrier -= 1 << 9;
}
// Whoever waits for it runs before the one that arrived goes on: what it still reads may be gone by then.
inline void barrier_arrive(unsigned long long* barrier) {
    barrier_count(barrier);
    host::yield(host::READY);
}
inline void barrier_publish() {}
#define STREAMING 0
#define KEPT 0
inline void bulk_copy(void* to, const void* from, int bytes, unsigned long long* barrier, unsigned long long) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16) host::misuse("misaligned bulk copy");
    if (bytes == 0) return barrier_arrive(barrier);
    if (*barrier >> 17) host::misuse("a second bulk copy on a barrier whose first is not done");
    int i = 0;
    while (i < host::MAX_COPIES && host::copies[i].to) ++i;
    if (i == host::MAX_COPIES) host::misuse("too many bulk copies in flight");
    memset(to, 0xff, bytes);
    host::copies[i] = {to, from, bytes};
    *barrier |= (unsigned long long)(i + 1) << 17;
}
inline void barrier_wait(unsigned long long* barrier, unsigned parity) {
    while ((*barrier & 1) == parity) {
        if (const unsigned long long pending = *barrier >> 17) {
            host::Copy& copy = host::copies[pending - 1];
            memcpy(copy.to, copy.from, copy.bytes);
            copy.to = nullptr;
            *barrier &= (1 << 17) - 1;
            barrier_count(barrier);
        } else {
            host::yield(host::READY);
        }
    }
}

inline void mma_16x8x16(float* c, const unsigned* a, const unsigned* b) {
    const host::Words* all = host::posted_by_warp({{a[0], a[1], a[2], a[3], b[0], b[1]}});
    const int g = host::current % 32 / 4, t = host::current % 4;
    auto half = [](unsigned word, int i) { return half_to_float((unsigned short)(word >> 16 * i)); };
    for (int i = 0; i < 4; ++i) {
        const int row = g + 8 * (i >> 1), col = 2 * t + (i & 1);
        float sum = c[i];
        for (int k = 0; k < 16; ++k) {
            const unsigned from_a = all[row % 8 * 4 + k % 8 / 2].v[(row >> 3) + 2 * (k >> 3)];
            const unsigned from_b = all[col * 4 + k % 8 / 2].v[4 + (k >> 3)];
            sum += half(from_a, k & 1) * half(from_b, k & 1);
        }
        c[i] = sum;
    }
}
inline unsigned transpose_8x8(unsigned pair) {
    const host::Words* all = host::posted_by_warp({{pair}});
    const int g = host::current % 32 / 4, t = host::current % 4;
    auto at = [&](int row, int col) { return all[row * 4 + col / 2].v[0] >> 16 * (col & 1) & 0xffff; };
    return at(2 * t, g) | at(2 * t + 1, g) << 16;
}
inline unsigned low_halves(unsigned first, unsigned second) { return (first & 0xffff) | second << 16; }
inline unsigned high_halves(unsigned first, unsigned second) { return first >> 16 | (second & 0xffff0000); }
inline unsigned byte_of(unsigned word, int i) { return word >> 8 * i & 255; }
inline int signed_byte_of(unsigned word, int i) { return (int8_t)(word >> 8 * i); }
