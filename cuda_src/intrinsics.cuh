// Everything that is not plain C++: the only file that differs between a GPU and the host build of the tests.
// NVRTC ships no headers, so half precision goes through PTX and 16-bit integers.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__CUDACC__)

#define DEVICE __device__ __forceinline__
#define FULL_MASK 0xffffffffu

// Four signed byte products, added to c.
DEVICE int dp4a(u32 a, u32 b, int c) { return __dp4a((int)a, (int)b, c); }
// Four of the eight bytes of (low, high), picked by the low three bits of each nibble of `which`.
DEVICE u32 byte_perm(u32 low, u32 high, u32 which) { return __byte_perm(low, high, which); }

DEVICE float shuffle_xor(float v, int lanes) { return __shfl_xor_sync(FULL_MASK, v, lanes); }
DEVICE int shuffle_xor(int v, int lanes) { return __shfl_xor_sync(FULL_MASK, v, lanes); }
DEVICE float shuffle(float v, int lane) { return __shfl_sync(FULL_MASK, v, lane); }
DEVICE int shuffle(int v, int lane) { return __shfl_sync(FULL_MASK, v, lane); }

// Read-only path: the caller promises that no one writes this memory while the kernel runs.
DEVICE uint4 load16(const void* p) { return __ldg((const uint4*)p); }
DEVICE uint2 load8(const void* p) { return __ldg((const uint2*)p); }
DEVICE u32 load4(const void* p) { return __ldg((const u32*)p); }
DEVICE u16 load2(const void* p) { return __ldg((const u16*)p); }
DEVICE float4 load_float4(const float* p) { return __ldg((const float4*)p); }

DEVICE float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Named roundings leave the compiler no choice of contraction: two kernels that share them agree bit for bit.
DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_rn(float a) { return __fsqrt_rn(a); }
DEVICE int round_even(float a) { return __float2int_rn(a); }

// NaN if either is NaN, unlike fmaxf: a broken activation must not vanish in a maximum.
DEVICE float max_nan(float a, float b) {
    float value;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
    return value;
}
DEVICE float exp2_fast(float a) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(a));
    return value;
}
DEVICE float int_as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_as_int(float value) { return __float_as_uint(value); }

#else
#include "host_cuda.h"
#endif
