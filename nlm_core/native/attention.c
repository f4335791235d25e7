// Causal attention and its gradient, one head of one text at a time, in blocks of rows that stay in the caches.
// Nothing of the T x T square is kept: of each row only its largest score and the logarithm of its softmax's denominator,
// from which the gradient computes the probabilities anew (Dao et al. 2022).
#include "simd.h"

#define BLOCK 48  // rows whose probabilities the gradient holds at once; a multiple of every MR

// A head's numbers within those of all heads: T rows of D, `stride` apart, from number `at` on.
typedef struct { const void *x; size_t at, stride; int bf16; } Head;

// The rows of a head lie so far apart that the processor does not foresee the next: ask for one in time.
static inline void fetch_ahead(Head h, size_t t, size_t T) {
    if (t + 12 >= T) return;
    const char *row = (const char *)h.x + (h.at + (t + 12) * h.stride) * (h.bf16 ? 2 : 4);
    __builtin_prefetch(row);
    __builtin_prefetch(row + 64);
}

// Padded sizes; `lds` is from one row of scores to the next. Tp is a multiple of every NR too. A row of scores has NR
// more, since rows that lie a power of two apart would fight for the same places in the cache.
typedef struct { size_t T, D, Tp, Dp, lds; } Sizes;

static Sizes sizes(size_t T, size_t D) {
    size_t Tp = ceil_to(T, BLOCK * 2);
    return (Sizes){T, D, Tp, ceil_to(D, NR), Tp + NR};
}

static float *take(float **from, size_t count) {  // the next numbers of a thread's scratch
    float *taken = *from;
    *from += count;
    return taken;
}

// c (MR x NR, rows ldc apart) = or += a b over `depth`, where a(i, k) = a[i * ai + k * ak] and b is a packed sliver:
// NR numbers for each k. Inlined, so that where ai or ak is known the addresses are cheap.
INLINE void tile(int depth, const float *a, ptrdiff_t ai, ptrdiff_t ak, const float *b, float *c, ptrdiff_t ldc,
                 int add) {
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

// Copy a head to where `tile` wants it, in up to three forms, padded by 0: as its left factor, rows of D (Tp x D); as
// its right factor, columns in slivers of NR (Tp x Dp); as its right factor transposed, in slivers (D x Tp).
static void arrange(Sizes z, Head h, float scale, float *rows, float *slivers, float *transposed) {
    for (size_t t = 0; t < z.Tp; t++) {
        float row[z.Dp];
        size_t at = h.at + t * h.stride;
        fetch_ahead(h, t, z.T);
        for (size_t d = 0; d < z.Dp; d++) row[d] = 0;
        if (t < z.T) {
            size_t d = 0;
            for (; d + LANES <= z.D; d += LANES) VEC(row + d) = load(h.x, at + d, h.bf16) * scale;
            for (; d < z.D; d++) row[d] = get(h.x, at + d, h.bf16) * scale;
        }
        for (size_t d = 0; rows && d < z.D; d++) rows[t * z.D + d] = row[d];
        for (size_t d = 0; slivers && d < z.Dp; d += LANES)
            VEC(slivers + d / NR * NR * z.Tp + t * NR + d % NR) = VEC(row + d);
        for (size_t d = 0; transposed && d < z.D; d++) transposed[(t / NR * z.D + d) * NR + t % NR] = row[d];
    }
}

// Scores of MR rows against the first n columns (a multiple of NR).
static void scores(size_t D, const float *q, const float *kt, size_t n, float *s, size_t lds) {
    for (size_t j = 0; j < n; j += NR) tile(D, q, D, 1, kt + j * D, s + j, lds, 0);
}

// The results of all heads side by side (B x T x H D) from queries, keys and values side by side (B x T x 3 H D).
// top, log_sum (B x H x T): of each row, for the gradient.
int attention_forward(int B, int T, int H, int D, const void *qkv, void *out, float *top, float *log_sum, int bf16,
                      int threads) {
    size_t C = (size_t)H * D;
    Sizes z = sizes(T, D);
    size_t size = z.Tp * (2 * D + z.Dp) + MR * (z.lds + z.Dp);
    float *scratch = malloc(sizeof(float) * size * threads);
    if (!scratch) return 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int task = 0; task < B * H; task++) {
        float *next = scratch + THREAD * size;
        float *q = take(&next, z.Tp * D), *kt = take(&next, z.Tp * D), *v = take(&next, z.Tp * z.Dp);
        float *s = take(&next, MR * z.lds), *o = take(&next, MR * z.Dp);
        size_t text = task / H, first = (size_t)(task % H) * D;  // the head's first column
        size_t to = text * T * C + first, from = text * T * 3 * C + first;
        arrange(z, (Head){qkv, from, 3 * C, bf16}, 1 / sqrtf(D), q, NULL, NULL);
        arrange(z, (Head){qkv, from + C, 3 * C, bf16}, 1, NULL, NULL, kt);
        arrange(z, (Head){qkv, from + 2 * C, 3 * C, bf16}, 1, NULL, v, NULL);
        for (int i = 0; i < T; i += MR) {
            int last = i + MR < T ? i + MR : T, n = ceil_to(last, NR);
            scores(D, q + (size_t)i * D, kt, n, s, z.lds);
            float sums[MR];
            for (int r = 0; r < last - i; r++) {
                float *row = s + r * z.lds;
                for (int j = i + r + 1; j < n; j++) row[j] = -INFINITY;
                vec most = VEC(row), sum = {0};
                for (int j = LANES; j < n; j += LANES) most = vmax(most, VEC(row + j));
                float largest = largest_of(most);
                for (int j = 0; j < n; j += LANES) sum += VEC(row + j) = vexp(VEC(row + j) - largest);
                for (int j = i + r + 1; j < n; j++) row[j] = 0;
                sums[r] = vsum(sum);
                top[(size_t)task * T + i + r] = largest;
                log_sum[(size_t)task * T + i + r] = logf(sums[r]);
            }
            for (size_t d = 0; d < z.Dp; d += NR) tile(last, s, z.lds, 1, v + d * z.Tp, o + d, z.Dp, 0);
            for (int r = 0; r < last - i; r++)
                for (int d = 0; d < D; d++)
                    put(out, to + (size_t)(i + r) * C + d, o[r * z.Dp + d] / sums[r], bf16);
        }
    }
    free(scratch);
    return 0;
}

// dqkv from dout and what the forward pass had and made.
int attention_backward(int B, int T, int H, int D, const void *qkv, const void *out, const void *dout,
                       const float *top, const float *log_sum, void *dqkv, int bf16, int threads) {
    size_t C = (size_t)H * D;
    float scale = 1 / sqrtf(D);
    Sizes z = sizes(T, D);
    size_t rows = z.Tp * D, slivers = z.Tp * z.Dp, square = BLOCK * z.lds;
    size_t size = 4 * rows + 5 * slivers + 2 * square + MR * z.Dp + z.Tp;
    float *scratch = malloc(sizeof(float) * size * threads);
    if (!scratch) return 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int task = 0; task < B * H; task++) {
        float *next = scratch + THREAD * size;
        float *q = take(&next, rows), *dy = take(&next, rows);        // left factors of the scores and their gradient,
        float *kt = take(&next, rows), *vt = take(&next, rows);       // and the right ones
        float *k = take(&next, slivers), *qb = take(&next, slivers), *dyb = take(&next, slivers);  // of dq, dk and dv
        float *dk = take(&next, slivers), *dv = take(&next, slivers);                              // Tp x Dp
        float *p = take(&next, square), *ds = take(&next, square), *dq = take(&next, MR * z.Dp);
        float *delta = take(&next, z.Tp);
        size_t text = task / H, first = (size_t)(task % H) * D;
        size_t at = text * T * C + first, at3 = text * T * 3 * C + first;
        Head hq = {qkv, at3, 3 * C, bf16}, hk = {qkv, at3 + C, 3 * C, bf16}, hv = {qkv, at3 + 2 * C, 3 * C, bf16};
        Head hy = {out, at, C, bf16}, hg = {dout, at, C, bf16};
        arrange(z, hq, scale, q, qb, NULL);
        arrange(z, hk, 1, NULL, k, kt);
        arrange(z, hv, 1, NULL, NULL, vt);
        arrange(z, hg, 1, dy, dyb, NULL);
        for (size_t t = 0; t < z.T; t++) {
            fetch_ahead(hy, t, T);
            delta[t] = 0;
            for (int d = 0; d < D; d++) delta[t] += get(out, at + t * C + d, bf16) * dy[t * D + d];
        }
        memset(dk, 0, sizeof(float) * slivers);
        memset(dv, 0, sizeof(float) * slivers);
        for (int i0 = 0; i0 < T; i0 += BLOCK) {
            size_t width = ceil_to(i0 + BLOCK, NR);
            if (width > z.Tp) width = z.Tp;
            for (int i = i0; i < i0 + BLOCK; i += MR) {
                int last = i + MR < T ? i + MR : T, n = i < T ? ceil_to(last, NR) : 0;
                float *ptile = p + (i - i0) * z.lds, *dtile = ds + (i - i0) * z.lds;
                scores(D, q + (size_t)i * D, kt, n, ptile, z.lds);
                scores(D, dy + (size_t)i * D, vt, n, dtile, z.lds);
                for (int r = 0; r < MR; r++) {
                    float *prow = ptile + r * z.lds, *drow = dtile + r * z.lds;
                    int seen = i + r < T ? i + r + 1 : 0;
                    if (seen) {
                        float largest = top[(size_t)task * T + i + r], log_of = log_sum[(size_t)task * T + i + r];
                        for (int j = 0; j < n; j += LANES) {
                            vec prob = vexp((VEC(prow + j) - largest) - log_of);
                            VEC(prow + j) = prob;
                            VEC(drow + j) = prob * (VEC(drow + j) - delta[i + r]);
                        }
                    }
                    memset(prow + seen, 0, sizeof(float) * (width - seen));
                    memset(drow + seen, 0, sizeof(float) * (width - seen));
                }
                if (i >= T) continue;
                for (size_t d = 0; d < z.Dp; d += NR) tile(last, dtile, z.lds, 1, k + d * z.Tp, dq + d, z.Dp, 0);
                for (int r = 0; r < last - i; r++)
                    for (int d = 0; d < D; d++)
                        put(dqkv, at3 + (size_t)(i + r) * 3 * C + d, scale * dq[r * z.Dp + d], bf16);
            }
            // A key j is seen from row j on: above it there are zeros, which need no work.
            for (int j = 0; j < i0 + BLOCK; j += MR) {
                int from = j > i0 ? j - i0 : 0;
                for (size_t d = 0; d < z.Dp; d += NR) {
                    size_t b = d * z.Tp + (size_t)(i0 + from) * NR;
                    float *pj = p + from * z.lds + j, *dj = ds + from * z.lds + j;
                    tile(BLOCK - from, pj, 1, z.lds, dyb + b, dv + j * z.Dp + d, z.Dp, 1);
                    tile(BLOCK - from, dj, 1, z.lds, qb + b, dk + j * z.Dp + d, z.Dp, 1);
                }
            }
        }
        for (size_t t = 0; t < z.T; t++)
            for (int d = 0; d < D; d++) {
                put(dqkv, at3 + t * 3 * C + C + d, dk[t * z.Dp + d], bf16);
                put(dqkv, at3 + t * 3 * C + 2 * C + d, dv[t * z.Dp + d], bf16);
            }
    }
    free(scratch);
    return 0;
}
