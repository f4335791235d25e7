// The loss of each row of logits, and its gradient, while the row is in the cache.
#include "simd.h"

// nats: for each row minus the logarithm of its target's probability. With `gradient`, each row of logits becomes the
// gradient of its nats, softmax minus one-hot; else it stays as it is. The largest logit is taken off first, so large
// ones lose nothing.
int cross_entropy(int rows, int V, void *logits, const int64_t *targets, float *nats, int gradient, int bf16,
                  int threads) {
    int whole = V / LANES * LANES;
#pragma omp parallel for schedule(dynamic, 16) num_threads(threads)
    for (int i = 0; i < rows; i++) {
        size_t row = (size_t)i * V;
        float top = get(logits, row, bf16), target = get(logits, row + targets[i], bf16);
        vec most = SPREAD(top), sums = {0};
        for (int j = 0; j < whole; j += LANES) most = vmax(most, load(logits, row + j, bf16));
        top = largest_of(most);
        for (int j = whole; j < V; j++) top = get(logits, row + j, bf16) > top ? get(logits, row + j, bf16) : top;
        for (int j = 0; j < whole; j += LANES) sums += vexp(load(logits, row + j, bf16) - top);
        for (int j = whole; j < V; j++) sums[0] += vexp(SPREAD(get(logits, row + j, bf16) - top))[0];
        float log_sum = logf(vsum(sums));
        nats[i] = (top - target) + log_sum;
        if (!gradient) continue;
        for (int j = 0; j < whole; j += LANES)
            store(logits, row + j, vexp((load(logits, row + j, bf16) - top) - log_sum), bf16);
        for (int j = whole; j < V; j++)
            put(logits, row + j, vexp(SPREAD((get(logits, row + j, bf16) - top) - log_sum))[0], bf16);
        put(logits, row + targets[i], expf(-nats[i]) - 1, bf16);
    }
    return 0;
}
