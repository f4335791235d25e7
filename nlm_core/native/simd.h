// Vectors, and what is done to each of their numbers: exponential, GELU, reading and writing in two precisions.
// GCC's and Clang's vector extensions: the compiler turns them into AVX2, AVX-512 or NEON, whatever the processor has.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else  // the pragmas mean nothing then, and all is done by one thread
#define THREAD 0
#endif

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
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define VEC(p) (*(vec *)(p))
#define SPREAD(x) ((x) - (vec){0})  // one number in all lanes

static inline size_t ceil_to(size_t n, size_t step) { return (n + step - 1) / step * step; }

static inline vec choose(ivec condition, vec yes, vec no) {
    return (vec)((condition & (ivec)yes) | (~condition & (ivec)no));
}
static inline vec vmax(vec a, vec b) { return choose(a < b, b, a); }  // a where one of them is not a number

static inline float vsum(vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

static inline float largest_of(vec x) {
    float top = x[0];
    for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
    return top;
}

// e^x, for x up to 88, to about 1e-7 of its value: 2^n times a polynomial in the rest (Cephes' expf). Below -87 it is
// e^-87. NaN stays.
static inline vec vexp(vec x) {
    x = vmax(x, SPREAD(-87.0f));
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
    ivec tiny = minus_2u > SPREAD(88.0f);
    return choose(tiny, (vec){0}, 1.0f / (1.0f + vexp(choose(tiny, (vec){0}, minus_2u))));
}
static inline vec gelu(vec x) { return x * logistic_2u(x); }

// Numbers in memory are float32 or, with `bf16`, bfloat16: the upper half of a float32. In here all are float32.
static inline vec load(const void *x, size_t i, int bf16) {
    if (!bf16) return VEC((const float *)x + i);
    return (vec)(__builtin_convertvector(*(const hvec *)((const uint16_t *)x + i), ivec) << 16);
}

static inline void store(void *x, size_t i, vec v, int bf16) {
    if (!bf16) {
        VEC((float *)x + i) = v;
        return;
    }
    ivec bits = (ivec)v, not_a_number = v != v;
    ivec rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;  // to the nearest, ties to even
    rounded = (not_a_number & 0x7fc0) | (~not_a_number & rounded);
    *(hvec *)((uint16_t *)x + i) = __builtin_convertvector(rounded, hvec);
}

static inline float get(const void *x, size_t i, int bf16) {
    if (!bf16) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline void put(void *x, size_t i, float value, int bf16) {
    if (!bf16) {
        ((float *)x)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t *)x)[i] = value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
