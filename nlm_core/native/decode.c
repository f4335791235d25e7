// Writing text: one call reads the next token of every text, all layers deep, and gives the logits of the token after.
// A text's numbers depend on that text alone: each sum runs in one order, however many texts, tokens at a time or threads
// there are.
#include "simd.h"

// One text takes as long as reading all weights, so they are kept as float16 where that loses nothing.
#if defined(__AVX512F__)
#include <immintrin.h>
#define HAS_F16 1
typedef __m256i f16s;
#define FROM_F16(p) (vec) _mm512_cvtph_ps(_mm256_loadu_si256((const f16s *)(p)))
#define TO_F16(x) _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT)
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define HAS_F16 1
typedef __m128i f16s;
#define FROM_F16(p) (vec) _mm256_cvtph_ps(_mm_loadu_si128((const f16s *)(p)))
#define TO_F16(x) _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT)
#else
#define HAS_F16 0
typedef vec f16s;
#define FROM_F16(p) VEC(p)
#define TO_F16(x) (x)
#endif
const int decode_f16 = HAS_F16, decode_columns = 2 * NR;  // matrices and rows are padded to whole pairs of slivers

// w (N x K) and its bias (or none) in slivers of NR outputs, padded by 0: NR biases, then NR weights for each k. With
// `f16` as float16; `inexact` is then set if that changes a number.
int decode_pack(int N, int K, const float *w, const float *bias, char *out, int f16, int *inexact, int threads) {
    size_t size = (size_t)(K + 1) * NR;
    int changed = 0, end = ceil_to(N, 2 * NR);
    float *scratch = malloc(sizeof(float) * size * threads);
    if (!scratch) return 1;
#pragma omp parallel for schedule(static) reduction(| : changed) num_threads(threads)
    for (int n = 0; n < end; n += NR) {
        float *sliver = scratch + THREAD * size;
        memset(sliver, 0, sizeof(float) * size);
        for (int j = 0; bias && j < NR && n + j < N; j++) sliver[j] = bias[n + j];
        for (int k0 = 0; k0 < K; k0 += 64)  // so that what is written stays in the nearest cache until it is whole
            for (int j = 0; j < NR && n + j < N; j++)
                for (int k = k0; k < K && k < k0 + 64; k++) sliver[(k + 1) * NR + j] = w[(size_t)(n + j) * K + k];
        char *to = out + n / NR * size * (f16 ? 2 : 4);
        if (!f16) memcpy(to, sliver, sizeof(float) * size);
        ivec differs = {0};
        for (size_t i = 0; f16 && i < size; i += LANES, to += 2 * LANES) {
            *(f16s *)to = TO_F16(VEC(sliver + i));
            differs |= FROM_F16(to) != VEC(sliver + i);
        }
        for (int l = 0; l < LANES; l++) changed |= differs[l];
    }
    free(scratch);
    *inexact |= changed;
    return 0;
}

// sums (rows x `wide` slivers) += a b; the slivers of b lie `next` bytes apart.
INLINE void add_products(int rows, int wide, int f16, int depth, const float *a, ptrdiff_t lda, const char *b,
                         size_t next, vec *sums) {
    for (int k = 0; k < depth; k++, b += NR * (f16 ? 2 : 4)) {
        vec w[4];
#pragma GCC unroll 4
        for (int s = 0; s < 2 * wide; s++) {
            const char *from = b + s / 2 * next + s % 2 * LANES * (f16 ? 2 : 4);
            w[s] = f16 ? FROM_F16(from) : VEC(from);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec x = SPREAD(a[i * lda + k]);
#pragma GCC unroll 4
            for (int s = 0; s < 2 * wide; s++) sums[i * 2 * wide + s] += x * w[s];
        }
    }
}

typedef enum { STORE, ADD, GELU } Then;

// A few rows of `product` for a pair of slivers. One or two rows take both slivers together: with more sums that don't
// depend on each other, none has to wait for the addition before.
INLINE void block(int rows, int f16, int K, const float *a, ptrdiff_t lda, const char *w, float *y, ptrdiff_t ldy,
                  Then then) {
    int wide = rows <= 2 ? 2 : 1;
    size_t row = NR * (f16 ? 2 : 4), next = row * (K + 1);
    for (int first = 0; first < 2; first += wide, w += next, y += NR) {
        vec sums[2 * MR > 8 ? 2 * MR : 8];
#pragma GCC unroll 32
        for (int i = 0; i < rows * 2 * wide; i++) {
            const char *bias = w + i % (2 * wide) / 2 * next + i % 2 * LANES * (f16 ? 2 : 4);
            sums[i] = f16 ? FROM_F16(bias) : VEC(bias);
        }
        add_products(rows, wide, f16, K, a, lda, w + row, next, sums);
#pragma GCC unroll 32
        for (int i = 0; i < rows * 2 * wide; i++) {
            float *to = y + i / (2 * wide) * ldy + i % (2 * wide) * LANES;
            if (then == ADD) sums[i] += VEC(to);
            if (then == GELU) sums[i] = gelu(sums[i]);
            VEC(to) = sums[i];
        }
    }
}

// y (n x N) = or += a (n x K) times a packed matrix, plus its bias, or GELU of it all; shared out among the threads.
static void product(int n, int K, int N, const float *a, ptrdiff_t lda, const char *w, int f16, float *y,
                    ptrdiff_t ldy, Then then) {
#pragma omp for schedule(static)
    for (int j = 0; j < N; j += 2 * NR)
        for (int i = 0; i < n; i += MR) {
            const float *from = a + i * lda;
            const char *matrix = w + (size_t)j * (K + 1) * (f16 ? 2 : 4);
            float *to = y + i * ldy + j;
            switch (n - i < MR ? n - i : MR) {
#define CASE(rows)                                                                                                     \
    case rows:                                                                                                         \
        if (HAS_F16 && f16) block(rows, 1, K, from, lda, matrix, to, ldy, then);                                       \
        else block(rows, 0, K, from, lda, matrix, to, ldy, then);                                                      \
        break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MR > 6
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
            }
        }
}

typedef struct { const float *gain, *bias; } Norm;
typedef struct { Norm attn_norm; const char *qkv, *out; Norm mlp_norm; const char *up, *down; } Layer;
typedef struct { const float *tok_emb, *pos_emb; Norm final_norm; const char *unembed; Layer layers[]; } Weights;

static void normalise(int C, const float *x, Norm norm, float *y) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) sum += x[c];
    float mean = sum / C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) squares += (x[c] - mean) * (x[c] - mean);
    float scale = 1 / sqrtf(squares / C + 1e-5f);
    for (int c = 0; c < C; c++) y[c] = (x[c] - mean) * scale * norm.gain[c] + norm.bias[c];
}

// One head of one text at its newest position. Its keys lie as the scores want them, transposed in slivers of NR
// positions; its values as their sum does, in slivers of NR numbers.
static void attend(int place, size_t S, int C, size_t D, float *q, float *keys, float *values, float *scores, float *y) {
    int n = ceil_to(place + 1, 2 * NR), Dp = ceil_to(D, NR), wide = Dp / NR % 2 ? 1 : 2;
    for (size_t d = 0; d < D; d++) {
        keys[(place / NR * D + d) * NR + place % NR] = q[C + d];
        values[(d / NR * S + place) * NR + d % NR] = q[2 * C + d];
        q[d] /= sqrtf(D);
    }
    for (int j = 0; j < n; j += 2 * NR) {
        vec sums[4] = {0};
        add_products(1, 2, 0, D, q, 0, (char *)(keys + j * D), sizeof(float) * NR * D, sums);
        for (int i = 0; i < 4; i++) VEC(scores + j + i * LANES) = sums[i];
    }
    for (int j = place + 1; j < n; j++) scores[j] = -INFINITY;
    vec most = VEC(scores), total = {0};
    for (int j = 0; j < n; j += LANES) most = vmax(most, VEC(scores + j));
    float top = largest_of(most);
    for (int j = 0; j < n; j += LANES) {
        VEC(scores + j) = vexp(VEC(scores + j) - top);
        total += VEC(scores + j);  // of what isn't there e^-87, which is nothing beside the top's 1
    }
    float sum = vsum(total), *out = scores + n;
    for (int d = 0; d < Dp; d += wide * NR) {
        vec sums[4] = {0};
        const char *from = (char *)(values + d * S);
        if (wide == 2) add_products(1, 2, 0, place + 1, scores, 0, from, sizeof(float) * NR * S, sums);
        else add_products(1, 1, 0, place + 1, scores, 0, from, 0, sums);
        for (int i = 0; i < 2 * wide; i++) VEC(out + d + i * LANES) = sums[i];
    }
    for (size_t d = 0; d < D; d++) y[d] = out[d] / sum;
}

// Read `count` more tokens of each of `texts` texts; logits (texts x V, rows padded): what may follow the last of them.
// L layers; the cache has room for B texts of S tokens (a multiple of 2 NR); text i is row rows[i], lengths[i] long.
int decode(int L, int C, int H, int V, int S, int B, int f16, const Weights *weights, float *cache, int texts,
           int count, const int64_t *rows, const int64_t *lengths, const int64_t *tokens, float *logits, int threads) {
    int n = texts * count, D = C / H;
    size_t Dp = ceil_to(D, NR), Cp = ceil_to(C, 2 * NR), Wp = ceil_to(4 * C, 2 * NR);
    size_t head_size = S * (D + Dp);  // keys, then values
    float *x = aligned_alloc(64, sizeof(float) * n * (2 * Cp + Wp));  // n rows of the residual stream, then of
    float *h = x + n * Cp, *wide = h + n * Cp;                        // what a branch reads from it, then wider ones
    float *scratch = malloc(sizeof(float) * (S + Dp) * threads);
    if (!x || !scratch) {
        free(x);
        free(scratch);
        return 1;
    }
#pragma omp parallel num_threads(threads)
    {
        float *scores = scratch + THREAD * (S + Dp);
#pragma omp for schedule(static)
        for (int i = 0; i < n; i++) {
            const float *tok = weights->tok_emb + tokens[i] * C;
            const float *pos = weights->pos_emb + (lengths[i / count] + i % count) * C;
            for (int c = 0; c < C; c++) x[i * Cp + c] = tok[c] + pos[c];
        }
        for (int layer = 0; layer < L; layer++) {
            Layer w = weights->layers[layer];
#pragma omp for schedule(static)
            for (int i = 0; i < n; i++) normalise(C, x + i * Cp, w.attn_norm, h + i * Cp);
            product(n, C, 3 * C, h, Cp, w.qkv, f16, wide, Wp, STORE);
#pragma omp for schedule(dynamic, 1)
            for (int task = 0; task < texts * H; task++) {
                int text = task / H, head = task % H;
                float *keys = cache + (((size_t)layer * B + rows[text]) * H + head) * head_size;
                for (int i = 0; i < count; i++) {
                    size_t row = text * count + i;
                    attend(lengths[text] + i, S, C, D, wide + row * Wp + head * D, keys, keys + (size_t)S * D, scores,
                           h + row * Cp + head * D);
                }
            }
            product(n, C, C, h, Cp, w.out, f16, x, Cp, ADD);
#pragma omp for schedule(static)
            for (int i = 0; i < n; i++) normalise(C, x + i * Cp, w.mlp_norm, h + i * Cp);
            product(n, C, 4 * C, h, Cp, w.up, f16, wide, Wp, GELU);
            product(n, 4 * C, C, wide, Wp, w.down, f16, x, Cp, ADD);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < texts; i++)
            normalise(C, x + ((i + 1) * count - 1) * Cp, weights->final_norm, h + i * Cp);
        product(texts, C, V, h, Cp, weights->unembed, f16, logits, ceil_to(V, 2 * NR), STORE);
    }
    free(x);
    free(scratch);
    return 0;
}
