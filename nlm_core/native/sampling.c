// Which tokens can be chosen at all. Noise for each of thousands, two logarithms apiece, would take longer than reading a
// token; almost all of them can be ruled out without it.
#include "simd.h"

// Block `block` of NumPy's Philox generator with a key and a position (Salmon et al. 2011): four numbers of 64 bits.
static inline void philox(uint64_t key, uint64_t position, uint64_t block, uint64_t *out) {
    uint64_t a = block + 1, b = 0, c = 0, d = position, k0 = key, k1 = 0;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B97F4A7C15, k1 += 0xBB67AE8584CAA73B) {
        unsigned __int128 p = a * (unsigned __int128)0xD2E7470EE14C6C93, q = c * (unsigned __int128)0xCA5A826395121157;
        a = (uint64_t)(q >> 64) ^ b ^ k0, b = (uint64_t)q;
        c = (uint64_t)(p >> 64) ^ d ^ k1, d = (uint64_t)p;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

typedef struct { int64_t token; double score; uint64_t bits; } Contender;

// For each row the tokens whose score plus noise may be the largest, in order, with the noise's bits. `most` is the count
// of the longest row; shorter ones are padded with scores of minus infinity.
//
// The noise is g = -log(-log u). The best is no worse than the token whose score is highest, here 0: with its noise,
// `best`. Another of score s <= 0 wins only if s + g >= best, so -log u <= e^(s - best); since -log u >= 1 - u, not if
// 1 - u > e^(s - best). That needs no logarithm, and a margin of 1e-3 is far above all rounding, here and in the noise.
int contenders(int B, int V, const double *scores, const int64_t *seeds, const int64_t *positions, Contender *found,
               int *counts, int *most, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int i = 0; i < B; i++) {
        const double *score = scores + (size_t)i * V;
        Contender *row = found + (size_t)i * V;
        uint64_t bits[LANES];
        int top = 0, n = 0;
        while (top < V - 1 && score[top] != 0) top++;
        philox(seeds[i], positions[i], top / 4, bits);
        double best = score[top] - log(-log(((bits[top % 4] >> 12) + 0.5) * 0x1p-52));
        for (int j = 0; j < V; j += LANES) {
            double rest[LANES] = {0};
            const double *from = j + LANES <= V ? score + j : memcpy(rest, score + j, sizeof(double) * (V - j));
            vec limit, above;
            for (int l = 0; l < LANES; l++) limit[l] = from[l] - best;
            for (int l = 0; l < LANES; l += 4) philox(seeds[i], positions[i], (j + l) / 4, bits + l);
            for (int l = 0; l < LANES; l++) above[l] = (int32_t)(~bits[l] >> 33) * 0x1p-31f;  // 1 - u, rounded down
            ivec out = above > 1.001f * vexp(limit);  // not so for what is not a number: that is kept
            int any = 0;
            for (int l = 0; l < LANES; l++) any |= ~out[l];
            for (int l = 0; any && l < LANES && j + l < V; l++)
                if (!out[l]) row[n++] = (Contender){j + l, from[l], bits[l]};
        }
        counts[i] = n;
    }
    *most = 0;
    for (int i = 0; i < B; i++) *most = counts[i] > *most ? counts[i] : *most;
    for (int i = 0; i < B; i++)
        for (int n = counts[i]; n < *most; n++) found[(size_t)i * V + n] = (Contender){0, -INFINITY, 0};
    return 0;
}
