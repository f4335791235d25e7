// GELU and its gradient in one pass through memory.
#include "simd.h"

static inline vec slope(vec x) {
    vec s = logistic_2u(x);
    return s + x * s * (1.0f - s) * (1.5957691216f + 0.2140644489f * x * x);
}

int gelu_forward(int64_t n, const void *x, void *y, int bf16, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n / LANES; i++) store(y, i * LANES, gelu(load(x, i * LANES, bf16)), bf16);
    for (int64_t i = n / LANES * LANES; i < n; i++) put(y, i, gelu(SPREAD(get(x, i, bf16)))[0], bf16);
    return 0;
}

int gelu_backward(int64_t n, const void *x, const void *dy, void *dx, int bf16, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n / LANES; i++)
        store(dx, i * LANES, load(dy, i * LANES, bf16) * slope(load(x, i * LANES, bf16)), bf16);
    for (int64_t i = n / LANES * LANES; i < n; i++)
        put(dx, i, get(dy, i, bf16) * slope(SPREAD(get(x, i, bf16)))[0], bf16);
    return 0;
}
