// Causal attention and its gradient, one head of one text at a time, in blocks of rows that stay in the caches.
// Nothing of the T x T square is kept: of each row only the logarithm of its softmax's denominator, from which the
// gradient computes the probabilities anew (Dao et al. 2022).
#include "simd.h"
#include <math.h>
#include <stdlib.h>

#define BLOCK 48  // rows whose probabilities the gradient holds at once; a multiple of every MR

// A head's numbers within those of all heads: T rows of D, `stride` apart, from number `at` on.
typedef struct { const void *x; size_t at; int stride, half; } Head;

// The rows of a head lie so far apart that the processor does not foresee the next: ask for one in time.
static inline void fetch_ahead(Head h, int t, int T) {
    if (t + 12 >= T) return;
    const char *row = (const char *)h.x + (h.at + (size_t)(t + 12) * h.stride) * (h.half ? 2 : 4);
    __builtin_prefetch(row);
    __builtin_prefetch(row + 64);
}

typedef struct { int T, Tp, D, Dp, lds; } Sizes;  // Tp, Dp: padded; lds: from one row of scores to the next

static Sizes sizes(int T, int D) {
    int Tp = ceil_to(T, BLOCK * 2);  // a multiple of every NR too; a row of scores has NR more, since rows that lie a
    Sizes z = {T, Tp, D, ceil_to(D, NR), Tp + NR};  // power of two apart would fight for the same places in the cache
    return z;
}

// Copy a head to where `tile` wants it, in up to three forms, padded by 0: as A, rows of D (Tp x D); as B, its columns
// in slivers (Tp x Dp); as B, its transpose in slivers (D x Tp).
static void arrange(Sizes z, Head h, float scale, float *rows, float *slivers, float *transposed) {
    for (int t = 0; t < z.Tp; t++) {
        float row[z.Dp];
        size_t at = h.at + (size_t)t * h.stride;
        fetch_ahead(h, t, z.T);
        for (int d = 0; d < z.Dp; d++) row[d] = 0;
        if (t < z.T) {
            int d = 0;
            for (; d + LANES <= z.D; d += LANES) VEC(row + d) = load(h.x, at + d, h.half) * scale;
            for (; d < z.D; d++) row[d] = get(h.x, at + d, h.half) * scale;
        }
        for (int d = 0; rows && d < z.D; d++) rows[t * z.D + d] = row[d];
        for (int d = 0; slivers && d < z.Dp; d += LANES)
            VEC(slivers + d / NR * NR * z.Tp + t * NR + d % NR) = VEC(row + d);
        for (int d = 0; transposed && d < z.D; d++) transposed[(t / NR * z.D + d) * NR + t % NR] = row[d];
    }
}

// Scores of MR rows against the first n columns (a multiple of NR).
static void scores(int D, const float *q, const float *kt, int n, float *s, int lds) {
    for (int j = 0; j < n; j += NR) tile(D, q, D, 1, kt + j * D, s + j, lds, 0);
}

void attention_forward(int B, int T, int H, int D, const void *qkv, void *out, float *lse, int half) {
    int C = H * D;
    Sizes z = sizes(T, D);
#pragma omp parallel
    {
        float *q = malloc(sizeof(float) * ((size_t)z.Tp * (2 * D + z.Dp) + MR * (z.lds + z.Dp)));
        float *kt = q + z.Tp * D, *v = kt + z.Tp * D, *s = v + z.Tp * z.Dp, *o = s + MR * z.lds;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < B * H; task++) {
            size_t to = (size_t)(task / H) * T * C + task % H * D, from = 3 * to - 2 * (task % H * D);
            arrange(z, (Head){qkv, from, 3 * C, half}, 1 / sqrtf(D), q, NULL, NULL);
            arrange(z, (Head){qkv, from + C, 3 * C, half}, 1, NULL, NULL, kt);
            arrange(z, (Head){qkv, from + 2 * C, 3 * C, half}, 1, NULL, v, NULL);
            for (int i = 0; i < T; i += MR) {
                int last = i + MR < T ? i + MR : T, n = ceil_to(last, NR);
                scores(D, q + i * D, kt, n, s, z.lds);
                float sums[MR];
                for (int r = 0; r < last - i; r++) {
                    float *row = s + r * z.lds;
                    for (int j = i + r + 1; j < n; j++) row[j] = -INFINITY;
                    vec most = VEC(row), sum = {0};
                    for (int j = LANES; j < n; j += LANES) most = select_less(most, VEC(row + j), VEC(row + j), most);
                    float top = most[0];
                    for (int l = 1; l < LANES; l++) top = most[l] > top ? most[l] : top;
                    for (int j = 0; j < n; j += LANES) sum += VEC(row + j) = vexp(VEC(row + j) - top);
                    for (int j = i + r + 1; j < n; j++) row[j] = 0;
                    sums[r] = vsum(sum);
                    lse[(size_t)task * T + i + r] = top + logf(sums[r]);
                }
                for (int d = 0; d < z.Dp; d += NR) tile(last, s, z.lds, 1, v + d * z.Tp, o + d, z.Dp, 0);
                for (int r = 0; r < last - i; r++)
                    for (int d = 0; d < D; d++)
                        put(out, to + (size_t)(i + r) * C + d, o[r * z.Dp + d] / sums[r], half);
            }
        }
        free(q);
    }
}

void attention_backward(int B, int T, int H, int D, const void *qkv, const void *out, const void *dout,
                        const float *lse, void *dqkv, int half) {
    int C = H * D;
    float scale = 1 / sqrtf(D);
    Sizes z = sizes(T, D);
#pragma omp parallel
    {
        size_t rows = (size_t)z.Tp * D, slivers = (size_t)z.Tp * z.Dp;
        float *q = malloc(sizeof(float) * (4 * rows + 5 * slivers + 2 * BLOCK * z.lds + MR * z.Dp + z.Tp));
        float *dy = q + rows, *kt = dy + rows, *vt = kt + rows;                            // A and B of the scores
        float *k = vt + rows, *qb = k + slivers, *dyb = qb + slivers;                      // B of the gradients
        float *dk = dyb + slivers, *dv = dk + slivers;                                     // Tp x Dp
        float *p = dv + slivers, *ds = p + BLOCK * z.lds, *dq = ds + BLOCK * z.lds, *delta = dq + MR * z.Dp;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < B * H; task++) {
            size_t at = (size_t)(task / H) * T * C + task % H * D, at3 = 3 * at - 2 * (task % H * D);
            Head hq = {qkv, at3, 3 * C, half}, hk = {qkv, at3 + C, 3 * C, half}, hv = {qkv, at3 + 2 * C, 3 * C, half};
            Head hy = {out, at, C, half}, hg = {dout, at, C, half};
            arrange(z, hq, scale, q, qb, NULL);
            arrange(z, hk, 1, NULL, k, kt);
            arrange(z, hv, 1, NULL, NULL, vt);
            arrange(z, hg, 1, dy, dyb, NULL);
            for (int t = 0; t < T; t++) {
                fetch_ahead(hy, t, T);
                delta[t] = 0;
                for (int d = 0; d < D; d++) delta[t] += get(out, at + (size_t)t * C + d, half) * dy[t * D + d];
            }
            memset(dk, 0, sizeof(float) * 2 * slivers);
            for (int i0 = 0; i0 < T; i0 += BLOCK) {
                int width = ceil_to(i0 + BLOCK, NR);
                if (width > z.Tp) width = z.Tp;
                for (int i = i0; i < i0 + BLOCK; i += MR) {
                    int last = i + MR < T ? i + MR : T, n = i < T ? ceil_to(last, NR) : 0;
                    float *ptile = p + (i - i0) * z.lds, *dtile = ds + (i - i0) * z.lds;
                    scores(D, q + i * D, kt, n, ptile, z.lds);
                    scores(D, dy + i * D, vt, n, dtile, z.lds);
                    for (int r = 0; r < MR; r++) {
                        float *prow = ptile + r * z.lds, *drow = dtile + r * z.lds;
                        int seen = i + r < T ? i + r + 1 : 0;
                        if (seen) {
                            float log_sum = lse[(size_t)task * T + i + r];
                            for (int j = 0; j < n; j += LANES) {
                                vec prob = vexp(VEC(prow + j) - log_sum);
                                VEC(prow + j) = prob;
                                VEC(drow + j) = prob * (VEC(drow + j) - delta[i + r]);
                            }
                        }
                        memset(prow + seen, 0, sizeof(float) * (width - seen));
                        memset(drow + seen, 0, sizeof(float) * (width - seen));
                    }
                    if (i >= T) continue;
                    for (int d = 0; d < z.Dp; d += NR) tile(last, dtile, z.lds, 1, k + d * z.Tp, dq + d, z.Dp, 0);
                    for (int r = 0; r < last - i; r++)
                        for (int d = 0; d < D; d++)
                            put(dqkv, at3 + (size_t)(i + r) * 3 * C + d, scale * dq[r * z.Dp + d], half);
                }
                // A key j is seen from row j on: above it there are zeros, which need no work.
                for (int j = 0; j < i0 + BLOCK; j += MR) {
                    int from = j > i0 ? j - i0 : 0;
                    for (int d = 0; d < z.Dp; d += NR) {
                        size_t b = (size_t)d * z.Tp + (size_t)(i0 + from) * NR;
                        float *pj = p + from * z.lds + j, *dj = ds + from * z.lds + j;
                        tile(BLOCK - from, pj, 1, z.lds, dyb + b, dv + j * z.Dp + d, z.Dp, 1);
                        tile(BLOCK - from, dj, 1, z.lds, qb + b, dk + j * z.Dp + d, z.Dp, 1);
                    }
                }
            }
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) {
                    put(dqkv, at3 + (size_t)t * 3 * C + C + d, dk[t * z.Dp + d], half);
                    put(dqkv, at3 + (size_t)t * 3 * C + 2 * C + d, dv[t * z.Dp + d], half);
                }
        }
        free(q);
    }
}
