// What is done to each number, or each row, on its own: one pass through memory where separate operations take several.
#include "simd.h"
#include <math.h>

static inline vec gelu_slope(vec x) {
    vec s = logistic_2u(x);
    return s + x * s * (1.0f - s) * (1.5957691216f + 0.2140644489f * x * x);
}

void gelu_forward(int64_t n, const void *x, void *y, int half) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n / LANES; i++) store(y, i * LANES, gelu(load(x, i * LANES, half)), half);
    for (int64_t i = n / LANES * LANES; i < n; i++) put(y, i, gelu(SPREAD(get(x, i, half)))[0], half);
}

void gelu_backward(int64_t n, const void *x, const void *dy, void *dx, int half) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n / LANES; i++)
        store(dx, i * LANES, load(dy, i * LANES, half) * gelu_slope(load(x, i * LANES, half)), half);
    for (int64_t i = n / LANES * LANES; i < n; i++)
        put(dx, i, get(dy, i, half) * gelu_slope(SPREAD(get(x, i, half)))[0], half);
}

// nats: for each row minus the logarithm of its target's probability. With `gradient`, each row of logits becomes the
// gradient of its nats, softmax minus one-hot; else it stays as it is.
void cross_entropy(int rows, int V, void *logits, const int64_t *targets, float *nats, int gradient, int half) {
    int whole = V / LANES * LANES;
#pragma omp parallel for schedule(dynamic, 16)
    for (int i = 0; i < rows; i++) {
        size_t row = (size_t)i * V;
        float top = get(logits, row, half), target = get(logits, row + targets[i], half);
        vec most = SPREAD(top), sums = {0};
        for (int j = 0; j < whole; j += LANES) {
            vec x = load(logits, row + j, half);
            most = select_less(most, x, x, most);
        }
        for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
        for (int j = whole; j < V; j++) top = get(logits, row + j, half) > top ? get(logits, row + j, half) : top;
        for (int j = 0; j < whole; j += LANES) sums += vexp(load(logits, row + j, half) - top);
        for (int j = whole; j < V; j++) sums[0] += vexp(SPREAD(get(logits, row + j, half) - top))[0];
        float log_sum = top + logf(vsum(sums));
        nats[i] = log_sum - target;
        if (!gradient) continue;
        for (int j = 0; j < whole; j += LANES)
            store(logits, row + j, vexp(load(logits, row + j, half) - log_sum), half);
        for (int j = whole; j < V; j++)
            put(logits, row + j, vexp(SPREAD(get(logits, row + j, half) - log_sum))[0], half);
        put(logits, row + targets[i], expf(target - log_sum) - 1, half);
    }
}
