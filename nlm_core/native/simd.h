// Vectors, their exponential, and the small matrix product that everything else is made of.
// GCC's and Clang's vector extensions: the compiler turns them into AVX2, AVX-512 or NEON, whatever the processor has.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

#if defined(__AVX512F__)
#define LANES 16
#define MR 12
#elif defined(__AVX2__)
#define LANES 8
#define MR 6
#else
#define LANES 4
#define MR 6
#endif
#define NR (2 * LANES)  // a tile of MR rows and NR columns lives in registers

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define VEC(p) (*(vec *)(p))
#define SPREAD(x) ((x) - (vec){0})  // one number in all lanes

static inline vec select_less(vec a, vec b, vec yes, vec no) {  // a < b ? yes : no
    ivec less = a < b;
    return (vec)((less & (ivec)yes) | (~less & (ivec)no));
}

// e^x, for x up to 88, to about 1e-7 of its value: 2^n times a polynomial in the rest (Cephes' expf). Below -87 it is
// e^-87. NaN stays.
static inline vec vexp(vec x) {
    x = select_less(x, SPREAD(-87.0f), SPREAD(-87.0f), x);
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds: the mantissa has no room for a fraction
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = SPREAD(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return p * (vec)power;
}

// GPT-2's GELU, x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x times the logistic of 2 u.
static inline vec logistic_2u(vec x) {
    vec minus_2u = x * (-1.5957691216f - 0.0713548163f * x * x);
    return 1.0f / (1.0f + vexp(select_less(SPREAD(88.0f), minus_2u, SPREAD(88.0f), minus_2u)));
}
static inline vec gelu(vec x) { return x * logistic_2u(x); }

static inline float vsum(vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

// Numbers in memory are float32 or, with `half`, bfloat16: the upper half of a float32. In here all are float32.
static inline vec load(const void *x, size_t i, int half) {
    if (!half) return VEC((const float *)x + i);
    return (vec)(__builtin_convertvector(*(const hvec *)((const uint16_t *)x + i), ivec) << 16);
}

static inline void store(void *x, size_t i, vec v, int half) {
    if (!half) {
        VEC((float *)x + i) = v;
        return;
    }
    ivec bits = (ivec)v, not_a_number = v != v;
    ivec rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;  // to the nearest, ties to even
    rounded = (not_a_number & 0x7fc0) | (~not_a_number & rounded);
    *(hvec *)((uint16_t *)x + i) = __builtin_convertvector(rounded, hvec);
}

static inline float get(const void *x, size_t i, int half) {
    if (!half) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline void put(void *x, size_t i, float value, int half) {
    if (!half) {
        ((float *)x)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t *)x)[i] = value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// c (MR x NR, rows ldc apart) = or += a b over `depth`, where a(i, k) = a[i * ai + k * ak] and b is a packed sliver:
// NR numbers for each k. Inlined, so that where ai or ak is known the addresses are cheap.
static inline __attribute__((always_inline)) void tile(int depth, const float *a, ptrdiff_t ai, ptrdiff_t ak,
                                                       const float *b, float *c, ptrdiff_t ldc, int add) {
    vec left[MR], right[MR];
    for (int i = 0; i < MR; i++) left[i] = right[i] = (vec){0};
    for (int k = 0; k < depth; k++, b += NR) {
        vec b0 = VEC(b), b1 = VEC(b + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            vec x = SPREAD(a[i * ai + k * ak]);
            left[i] += x * b0;
            right[i] += x * b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        float *row = c + i * ldc;
        if (add) {
            left[i] += VEC(row);
            right[i] += VEC(row + LANES);
        }
        VEC(row) = left[i];
        VEC(row + LANES) = right[i];
    }
}

static inline int ceil_to(int n, int step) { return (n + step - 1) / step * step; }
