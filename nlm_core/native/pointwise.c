// What is done to each number, or each row, on its own: one pass through memory where separate operations take several.
#include "simd.h"
#include <math.h>

// GPT-2's GELU, x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x times the logistic of 2 u.
static inline vec logistic_2u(vec x) { return 1.0f / (1.0f + vexp(x * (-1.5957691216f - 0.0713548163f * x * x))); }
static inline vec gelu(vec x) { return x * logistic_2u(x); }
static inline vec gelu_slope(vec x) {
    vec s = logistic_2u(x);
    return s + x * s * (1.0f - s) * (1.5957691216f + 0.2140644489f * x * x);
}

void gelu_forward(int64_t n, const float *x, float *y) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n / LANES; i++) VEC(y + i * LANES) = gelu(VEC(x + i * LANES));
    for (int64_t i = n / LANES * LANES; i < n; i++) y[i] = gelu(SPREAD(x[i]))[0];
}

void gelu_backward(int64_t n, const float *x, const float *dy, float *dx) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n / LANES; i++) VEC(dx + i * LANES) = VEC(dy + i * LANES) * gelu_slope(VEC(x + i * LANES));
    for (int64_t i = n / LANES * LANES; i < n; i++) dx[i] = dy[i] * gelu_slope(SPREAD(x[i]))[0];
}

// nats: for each row minus the logarithm of its target's probability. With `gradient`, each row of logits becomes the
// gradient of its nats, softmax minus one-hot; else it stays as it is.
void cross_entropy(int rows, int V, float *logits, const int64_t *targets, float *nats, int gradient) {
    int whole = V / LANES * LANES;
#pragma omp parallel for schedule(dynamic, 16)
    for (int i = 0; i < rows; i++) {
        float *row = logits + (size_t)i * V, top = row[0], target = row[targets[i]];
        vec most = SPREAD(top), sums = {0};
        for (int j = 0; j < whole; j += LANES) most = select_less(most, VEC(row + j), VEC(row + j), most);
        for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
        for (int j = whole; j < V; j++) top = row[j] > top ? row[j] : top;
        for (int j = 0; j < whole; j += LANES) sums += vexp(VEC(row + j) - top);
        for (int j = whole; j < V; j++) sums[0] += vexp(SPREAD(row[j] - top))[0];
        float log_sum = top + logf(vsum(sums));
        nats[i] = log_sum - target;
        if (!gradient) continue;
        for (int j = 0; j < whole; j += LANES) VEC(row + j) = vexp(VEC(row + j) - log_sum);
        for (int j = whole; j < V; j++) row[j] = vexp(SPREAD(row[j] - log_sum))[0];
        row[targets[i]] -= 1;
    }
}
