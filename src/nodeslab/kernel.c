/* One pass over the weights of a layer, forward and backward: w = f (mu + sigma eps), sigma = softplus(rho), and
   the rows' KL(N(mu, sigma^2) || N(0, s^2)). A row is a node's incoming weights. Float32 only; posterior.py has the
   same in torch operations, for every other case.

   The noise of a block of BLOCK numbers comes from its own xoshiro128++ streams (Blackman and Vigna, 2019), seeded by
   splitmix64 from the draw's seed and the block's index, through Box-Muller: it does not depend on the threads. */

#include <math.h>
#include <stdint.h>

#define LANES 16
#define BLOCK 4096

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static inline uint32_t rotate(uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }

static void fill_block(float *restrict out, int64_t count, uint64_t seed, uint64_t block) {
    uint32_t s[4][LANES];
    uint64_t state = seed;
    state = splitmix64(&state) ^ (block * 0xd1342543de82ef95ULL);
    for (int w = 0; w < 4; w++)
        for (int l = 0; l < LANES; l++) s[w][l] = (uint32_t)(splitmix64(&state) >> 32) | (w == 0);
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        float u[2][LANES], pair[2][LANES];
        for (int half = 0; half < 2; half++)
            for (int l = 0; l < LANES; l++) {
                uint32_t bits = rotate(s[0][l] + s[3][l], 7) + s[0][l];
                uint32_t t = s[1][l] << 9;
                s[2][l] ^= s[0][l];
                s[3][l] ^= s[1][l];
                s[1][l] ^= s[2][l];
                s[0][l] ^= s[3][l];
                s[2][l] ^= t;
                s[3][l] = rotate(s[3][l], 11);
                /* two positive 31-bit parts: a signed conversion is one instruction, an unsigned one is not */
                u[half][l] = ((float)(int32_t)(bits >> 1) + 0.5f) * 4.656612873e-10f;
            }
#pragma omp simd
        for (int l = 0; l < LANES; l++) { /* the sine as a shifted cosine: compilers fuse a pair into a scalar call */
            float radius = sqrtf(-2.0f * logf(u[0][l]));
            float angle = 6.283185307f * u[1][l];
            pair[0][l] = radius * cosf(angle - 3.141592654f);
            pair[1][l] = radius * cosf(angle - 4.712388980f);
        }
        if (i + 2 * LANES <= count) {
            for (int l = 0; l < LANES; l++) out[i + l] = pair[0][l];
            for (int l = 0; l < LANES; l++) out[i + LANES + l] = pair[1][l];
        } else {
            for (int64_t k = i; k < count; k++) out[k] = pair[(k - i) / LANES][(k - i) % LANES];
        }
    }
}

void nodeslab_normal(float *out, int64_t count, uint64_t seed, int threads) {
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t left = count - b * BLOCK;
        fill_block(out + b * BLOCK, left < BLOCK ? left : BLOCK, seed, (uint64_t)b);
    }
}

/* log(1 + e) for 0 <= e <= 1, as 2 atanh(e / (2 + e)): no cancellation for small e. */
static inline float log1p_unit(float e) {
    float t = e / (2.0f + e), q = t * t;
    float series = 1.0f / 15.0f;
    series = series * q + 1.0f / 13.0f;
    series = series * q + 1.0f / 11.0f;
    series = series * q + 1.0f / 9.0f;
    series = series * q + 1.0f / 7.0f;
    series = series * q + 1.0f / 5.0f;
    series = series * q + 1.0f / 3.0f;
    return 2.0f * t * (1.0f + series * q);
}

void nodeslab_draw(int64_t rows, int64_t cols, const float *restrict mean, const float *restrict rho,
                   const float *restrict noise, const float *factor, float sigma, float *restrict spread,
                   float *restrict weight, float *restrict divergence, int threads) {
    float scale = 0.5f / (sigma * sigma), constant = logf(sigma) - 0.5f;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < rows; j++) {
        const float *m = mean + j * cols, *r = rho + j * cols, *n = noise + j * cols;
        float *s = spread + j * cols, *w = weight + j * cols;
        float f = factor ? factor[j] : 1.0f, squares = 0.0f, logs = 0.0f;
#pragma omp simd reduction(+ : squares, logs)
        for (int64_t i = 0; i < cols; i++) {
            float x = r[i];
            float sd = fmaxf(x, 0.0f) + log1p_unit(expf(-fabsf(x)));
            s[i] = sd;
            w[i] = f * (m[i] + sd * n[i]);
            squares += sd * sd + m[i] * m[i];
            logs += logf(sd);
        }
        divergence[j] = squares * scale - logs + (float)cols * constant;
    }
}

/* pull: dL/dK times the row's weight in K, one for each row (stride 1) or one for all (stride 0). */
void nodeslab_back(int64_t rows, int64_t cols, const float *restrict grad, const float *restrict mean,
                   const float *restrict rho, const float *restrict noise, const float *restrict spread,
                   const float *factor, const float *pull, int64_t stride, float sigma, float *restrict d_mean,
                   float *restrict d_rho, float *d_factor, int threads) {
    float inverse = 1.0f / (sigma * sigma);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < rows; j++) {
        const float *g = grad + j * cols, *m = mean + j * cols, *r = rho + j * cols;
        const float *n = noise + j * cols, *s = spread + j * cols;
        float *dm = d_mean + j * cols, *dr = d_rho + j * cols;
        float f = factor ? factor[j] : 1.0f, p = pull[j * stride], along = 0.0f;
#pragma omp simd reduction(+ : along)
        for (int64_t i = 0; i < cols; i++) {
            float e = expf(-fabsf(r[i]));
            float slope = (r[i] >= 0.0f ? 1.0f : e) / (1.0f + e); /* sigmoid(rho) = d softplus / d rho */
            float through = g[i] * f;
            dm[i] = through + p * inverse * m[i];
            dr[i] = (through * n[i] + p * (inverse * s[i] - 1.0f / s[i])) * slope;
            along += g[i] * (m[i] + s[i] * n[i]);
        }
        if (d_factor) d_factor[j] = along;
    }
}
