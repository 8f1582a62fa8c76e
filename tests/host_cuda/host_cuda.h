// The CUDA the kernels use, on one CPU thread. A block's threads are fibers that run in turn and switch only where
// the GPU would wait: at __syncthreads and at warp shuffles. A barrier that can never be met (a shuffle missing a
// lane, a __syncthreads some thread skipped by waiting elsewhere) ends the launch with an error instead of a hang.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

#define DEVICE inline
#define __device__
#define __global__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }

// --- fibers ---

namespace host {

enum Wait { READY, AT_WARP, AT_TEAM, AT_BLOCK, DONE };

struct Fiber {
    ucontext_t start;
    jmp_buf here;
    bool started;
    Wait wait;
    unsigned shuffles;
};

const int MAX_THREADS = 1024, STACK = 64 * 1024, MOST_TURNS = 100000;
static Fiber fibers[MAX_THREADS];
static char* stacks;
static int current, team;  // team: threads of the barrier that the first warps of a block share
static jmp_buf scheduler;
static void (*body)(void*);
static void* body_data;
static float exchange[MAX_THREADS / 32][2][32];

inline void yield(Wait why) {
    fibers[current].wait = why;
    if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}
// A fiber outlives its thread and serves the next block: making one costs a system call, resuming one does not.
inline void entry() {
    for (;;) {
        body(body_data);
        yield(DONE);
    }
}
inline void resume(int i) {
    Fiber& fiber = fibers[i];
    current = i;
    threadIdx = {(unsigned)i, 0, 0};
    fiber.wait = READY;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.here, 1);
    fiber.started = true;
    setcontext(&fiber.start);
}

// Let a set of threads go on when all of them that still run wait at the same kind of barrier.
inline bool release(int first, int last, Wait why) {
    int waiting = 0, done = 0;
    for (int i = first; i < last; ++i) {
        waiting += fibers[i].wait == why;
        done += fibers[i].wait == DONE;
    }
    // A full-mask shuffle needs every lane; __syncthreads needs every thread that has not returned.
    if (!waiting || waiting + (why == AT_BLOCK ? done : 0) < last - first) return false;
    for (int i = first; i < last; ++i)
        if (fibers[i].wait == why) fibers[i].wait = READY;
    return true;
}

// 0: done; 1: a barrier that cannot be met; 2: a block this build cannot run
inline int run_block(int threads) {
    if (threads > MAX_THREADS || threads % 32) return 2;
    if (!stacks) stacks = (char*)aligned_alloc(64, (size_t)MAX_THREADS * STACK);
    for (int i = 0; i < threads; ++i) {
        if (!fibers[i].started) {
            getcontext(&fibers[i].start);
            fibers[i].start.uc_stack.ss_sp = stacks + (size_t)i * STACK;
            fibers[i].start.uc_stack.ss_size = STACK;
            fibers[i].start.uc_link = nullptr;
            makecontext(&fibers[i].start, entry, 0);
        }
        fibers[i].wait = READY;
        fibers[i].shuffles = 0;
    }
    team = 0;
    // threads that poll always run, so being stuck is also: many turns in which no barrier opened
    for (int turns = 0; turns < MOST_TURNS;) {
        bool ran = false, opened = false, done = true;
        for (int i = 0; i < threads; ++i) {
            if (fibers[i].wait == READY) {
                resume(i);
                ran = true;
            }
            if (i % 32 == 31) opened |= release(i - 31, i + 1, AT_WARP);
            done &= fibers[i].wait == DONE;
        }
        if (done) return 0;
        opened |= release(0, team, AT_TEAM);
        turns = opened ? 0 : turns + 1;
        if (!ran && !opened && !release(0, threads, AT_BLOCK)) break;
    }
    for (int i = 0; i < threads; ++i) fibers[i].started = false;  // stuck inside a kernel: abandon them
    return 1;
}
inline int run_grid(dim3 grid, dim3 block, void (*kernel)(void*), void* data) {
    body = kernel;
    body_data = data;
    gridDim = grid;
    blockDim = block;
    int status = 0;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x && !status; ++x) {
                blockIdx = {x, y, z};
                status = run_block(block.x);
            }
    body_data = nullptr;
    return status;
}

// Calls a kernel with arguments given as cuLaunchKernel takes them: an array of pointers to the values.
template <class... A> struct Call {
    void (*kernel)(A...);
    void** args;
    template <size_t... I> void apply(std::index_sequence<I...>) { kernel(*(A*)args[I]...); }
    static void go(void* self) { ((Call*)self)->apply(std::index_sequence_for<A...>{}); }
};
template <class... A> int launch(void (*kernel)(A...), const unsigned* grid, const unsigned* block, void** args) {
    Call<A...> call{kernel, args};
    return run_grid({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, Call<A...>::go, &call);
}
template <class T> constexpr char letter() {
    if constexpr (std::is_pointer_v<T>) return 'p';
    if constexpr (std::is_same_v<T, int>) return 'i';
    if constexpr (std::is_same_v<T, float>) return 'f';
    return '?';
}
template <class... A> const char* signature(void (*)(A...)) {
    static const char letters[] = {letter<A>()..., 0};
    return letters;
}

template <class T> T exchanged(T value, int lane) {
    static_assert(sizeof(T) == 4);
    const int warp = current / 32, turn = fibers[current].shuffles++ & 1;
    memcpy(&exchange[warp][turn][current % 32], &value, 4);
    yield(AT_WARP);
    memcpy(&value, &exchange[warp][turn][lane], 4);
    return value;
}

}  // namespace host

// Makes the two symbols the loader looks for.
#define HOST_KERNEL(name)                                                                              \
    extern "C" int host_launch_##name(const unsigned* grid, const unsigned* block, void** args) {      \
        return host::launch(name, grid, block, args);                                                  \
    }                                                                                                  \
    extern "C" const char* host_signature_##name() { return host::signature(name); }

inline void __syncthreads() { host::yield(host::AT_BLOCK); }

// --- intrinsics, bit for bit what the GPU computes unless said otherwise ---

inline int dp4a(unsigned a, unsigned b, int c) {
    for (int k = 0; k < 4; ++k) c += (int8_t)(a >> 8 * k) * (int8_t)(b >> 8 * k);
    return c;
}
inline unsigned byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t both = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (int k = 0; k < 4; ++k) out |= (unsigned)(both >> 8 * (which >> 4 * k & 7) & 0xff) << 8 * k;
    return out;
}
inline float shuffle_xor(float v, int lanes) { return host::exchanged(v, (host::current % 32) ^ lanes); }
inline int shuffle_xor(int v, int lanes) { return host::exchanged(v, (host::current % 32) ^ lanes); }
inline float shuffle(float v, int lane) { return host::exchanged(v, lane); }
inline int shuffle(int v, int lane) { return host::exchanged(v, lane); }

// A misaligned wide load faults on the GPU; here it ends the process with a sentence.
template <class T> T load_aligned(const void* p) {
    if ((uintptr_t)p % sizeof(T)) {
        fprintf(stderr, "misaligned %zu-byte load\n", sizeof(T));
        abort();
    }
    return *(const T*)p;
}
inline uint4 load16(const void* p) { return load_aligned<uint4>(p); }
inline uint2 load8(const void* p) { return load_aligned<uint2>(p); }
inline unsigned load4(const void* p) { return load_aligned<unsigned>(p); }
inline unsigned short load2(const void* p) { return load_aligned<unsigned short>(p); }
inline float4 load_float4(const float* p) { return load_aligned<float4>(p); }

inline float int_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned float_as_int(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float half_to_float(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
}
inline unsigned short float_to_half(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    const unsigned sign = bits >> 16 & 0x8000;
    const float size = fabsf(value);
    if (isnan(value)) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.103515625e-05f) return sign | (unsigned)nearbyintf(ldexpf(size, 24));  // subnormal, or the first normal
    const unsigned rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
    return sign | ((rounded >> 13) - (112 << 10));
}

inline float fma_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
inline float sub_rn(float a, float b) { return a - b; }
inline float div_rn(float a, float b) { return a / b; }
inline float sqrt_rn(float a) { return sqrtf(a); }
inline int round_even(float a) { return isnan(a) ? 0 : (int)nearbyintf(a); }
inline float max_nan(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }
inline float exp2_fast(float a) { return exp2f(a); }  // the GPU's is good to 2 ulp
