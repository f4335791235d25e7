// Causal attention and its gradient, one head of one text at a time, in blocks of rows that stay in the caches.
// Nothing of the T x T square is kept: of each row only the logarithm of its softmax's denominator, from which the
// gradient computes the probabilities anew (Dao et al. 2022).
#include "simd.h"
#include <math.h>
#include <stdlib.h>

#define BLOCK 48  // rows whose probabilities the gradient holds at once; a multiple of every MR

// A head's numbers within those of all heads: T rows of D, `stride` apart, from number `at` on.
typedef struct { const void *x; size_t at; int stride, half; } Head;

static inline float head_get(Head h, int t, int d) { return get(h.x, h.at + (size_t)t * h.stride + d, h.half); }

// B operands for `tile`: a head's columns in slivers; rows and columns are padded by 0.
static void pack_rows(int T, int Tp, int D, int Dp, Head h, float scale, float *out) {
    for (int d0 = 0; d0 < Dp; d0 += NR)
        for (int t = 0; t < Tp; t++)
            for (int d = 0; d < NR; d++) *out++ = t < T && d0 + d < D ? scale * head_get(h, t, d0 + d) : 0;
}

// The same of the transpose: D rows of Tp columns.
static void pack_transposed(int T, int Tp, int D, Head h, float *out) {
    for (int t = 0; t < Tp; t++)
        for (int d = 0; d < D; d++) out[(t / NR * D + d) * NR + t % NR] = t < T ? head_get(h, t, d) : 0;
}

static void copy_rows(int T, int Tp, int D, Head h, float scale, float *out) {
    for (int t = 0; t < Tp; t++)
        for (int d = 0; d < D; d++) out[t * D + d] = t < T ? scale * head_get(h, t, d) : 0;
}

// Scores of MR rows against the first n columns (a multiple of NR).
static void scores(int D, const float *q, const float *kt, int n, float *s, int lds) {
    for (int j = 0; j < n; j += NR) tile(D, q, D, 1, kt + j * D, s + j, lds, 0);
}

typedef struct { int T, Tp, D, Dp, lds; } Sizes;  // Tp, Dp: padded; lds: from one row of scores to the next

static Sizes sizes(int T, int D) {
    int Tp = ceil_to(T, BLOCK * 2);  // a multiple of every NR too; a row of scores has NR more, since rows that lie a
    Sizes z = {T, Tp, D, ceil_to(D, NR), Tp + NR};  // power of two apart would fight for the same places in the cache
    return z;
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
            copy_rows(T, z.Tp, D, (Head){qkv, from, 3 * C, half}, 1 / sqrtf(D), q);
            pack_transposed(T, z.Tp, D, (Head){qkv, from + C, 3 * C, half}, kt);
            pack_rows(T, z.Tp, D, z.Dp, (Head){qkv, from + 2 * C, 3 * C, half}, 1, v);
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
                    for (int j = 0; j < n; j += LANES) VEC(row + j) = vexp(VEC(row + j) - top);
                    for (int j = i + r + 1; j < n; j++) row[j] = 0;
                    for (int j = 0; j < n; j += LANES) sum += VEC(row + j);
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
        float *q = malloc(sizeof(float) * (4 * rows + 5 * slivers + 2 * BLOCK * z.lds + MR * z.Dp));
        float *dy = q + rows, *kt = dy + rows, *vt = kt + rows;                            // A and B of the scores
        float *k = vt + rows, *qb = k + slivers, *dyb = qb + slivers;                      // B of the gradients
        float *dk = dyb + slivers, *dv = dk + slivers;                                     // Tp x Dp
        float *p = dv + slivers, *ds = p + BLOCK * z.lds, *dq = ds + BLOCK * z.lds;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < B * H; task++) {
            size_t at = (size_t)(task / H) * T * C + task % H * D, at3 = 3 * at - 2 * (task % H * D);
            Head hq = {qkv, at3, 3 * C, half}, hk = {qkv, at3 + C, 3 * C, half}, hv = {qkv, at3 + 2 * C, 3 * C, half};
            Head hy = {out, at, C, half}, hg = {dout, at, C, half};
            copy_rows(T, z.Tp, D, hq, scale, q);
            copy_rows(T, z.Tp, D, hg, 1, dy);
            pack_transposed(T, z.Tp, D, hk, kt);
            pack_transposed(T, z.Tp, D, hv, vt);
            pack_rows(T, z.Tp, D, z.Dp, hk, scale, k);
            pack_rows(T, z.Tp, D, z.Dp, hq, scale, qb);
            pack_rows(T, z.Tp, D, z.Dp, hg, 1, dyb);
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
                            float log_sum = lse[(size_t)task * T + i + r], delta = 0;
                            for (int d = 0; d < D; d++) delta += head_get(hy, i + r, d) * head_get(hg, i + r, d);
                            for (int j = 0; j < n; j += LANES) {
                                vec prob = vexp(VEC(prow + j) - log_sum);
                                VEC(prow + j) = prob;
                                VEC(drow + j) = prob * (VEC(drow + j) - delta);
                            }
                        }
                        memset(prow + seen, 0, sizeof(float) * (width - seen));
                        memset(drow + seen, 0, sizeof(float) * (width - seen));
                    }
                    if (i >= T) continue;
                    for (int d = 0; d < z.Dp; d += NR) tile(last, dtile, z.lds, 1, k + d * z.Tp, dq + d, z.Dp, 0);
                    for (int r = 0; r < last - i; r++)
                        for (int d = 0; d < D; d++)
                            put(dqkv, at3 + (size_t)(i + r) * 3 * C + d, dq[r * z.Dp + d], half);
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
