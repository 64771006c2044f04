/* A model's draw and its gradients, each in one pass: z ~ Ber(gamma), f = z times the scale, w = f (mu + sigma eps),
   sigma = softplus(rho), and K = KL(gates) + sum gamma KL(N(mu, sigma^2) || N(0, s^2)). A row is a node's incoming
   weights. Float32 only; posterior.py has the same in torch operations, for every other case, and the formulas.

   The noise eps is never stored: a row's numbers come from its own xoshiro128++ streams (Blackman and Vigna, 2019),
   seeded by splitmix64 from the draw's seed, the tensor's number and the row's, through Box-Muller. Backward makes them
   again. They do not depend on the threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define PAIR (2 * LANES) /* numbers from one turn of Box-Muller */
#define CHUNK 1024       /* numbers held at a time: they stay in the first cache */

typedef struct { uint32_t s[4][LANES]; } stream;

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static inline uint32_t rotate(uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }

static void start(stream *r, uint64_t seed, uint64_t tensor, uint64_t row) {
    uint64_t state = seed;
    state = splitmix64(&state) ^ (tensor * 0xaef17502108ef2d9ULL);
    state = splitmix64(&state) ^ (row * 0xd1342543de82ef95ULL);
    for (int w = 0; w < 4; w++)
        for (int l = 0; l < LANES; l += 2) {
            uint64_t z = splitmix64(&state);
            r->s[w][l] = (uint32_t)z | (w == 0); /* never all zero */
            r->s[w][l + 1] = (uint32_t)(z >> 32) | (w == 0);
        }
}

/* LANES whole numbers from 0 to 2^31 - 1: signed, because a signed conversion is one instruction. */
static inline void next(stream *r, int32_t *restrict out) {
    for (int l = 0; l < LANES; l++) {
        uint32_t bits = rotate(r->s[0][l] + r->s[3][l], 7) + r->s[0][l];
        uint32_t t = r->s[1][l] << 9;
        r->s[2][l] ^= r->s[0][l];
        r->s[3][l] ^= r->s[1][l];
        r->s[1][l] ^= r->s[2][l];
        r->s[0][l] ^= r->s[3][l];
        r->s[2][l] ^= t;
        r->s[3][l] = rotate(r->s[3][l], 11);
        out[l] = (int32_t)(bits >> 1);
    }
}

/* As a number of (0, 1]. */
static inline float unit(int32_t bits) { return ((float)bits + 0.5f) * 4.656612873e-10f; }

/* sin(2 pi t) for |t| <= 1/4, by its Taylor series: 6e-8 off at the ends. */
static inline float sine(float t) {
    float q = t * t, series = -15.0946426f;
    series = series * q + 42.0586940f;
    series = series * q - 76.7058597f;
    series = series * q + 81.6052493f;
    series = series * q - 41.3417022f;
    return t * (6.28318531f + q * series);
}

/* N(0, 1) in turns of PAIR, at least `count` of them. */
static inline void normal(stream *r, float *restrict out, int64_t count) {
    for (int64_t i = 0; i < count; i += PAIR) {
        int32_t u[2][LANES];
        next(r, u[0]);
        next(r, u[1]);
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float radius = sqrtf(-2.0f * logf(unit(u[0][l]))), t = unit(u[1][l]) - 0.5f, near = fabsf(t);
            out[i + l] = radius * sine(0.25f - near); /* cos(2 pi t) */
            out[i + LANES + l] = radius * sine(near > 0.25f ? copysignf(0.5f, t) - t : t);
        }
    }
}

/* log(1 + e) for 0 <= e <= 1, as e times a polynomial (3e-8 off): no cancellation for small e. */
static inline float log1p_unit(float e) {
    float series = 0.00523191144f;
    series = series * e - 0.0295021008f;
    series = series * e + 0.0782208401f;
    series = series * e - 0.13662812f;
    series = series * e + 0.191058027f;
    series = series * e - 0.248429301f;
    series = series * e + 0.333190903f;
    series = series * e - 0.499994928f;
    return e * (0.99999997f + e * series);
}

/* log of the product of `count` positive numbers, their mantissas and exponents apart: no logarithm for each. */
static inline double log_product(const float *restrict x, int64_t count) {
    float mantissa[LANES];
    int32_t exponent[LANES], powers = 0;
    double total = 0.0;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) mantissa[l] = 1.0f, exponent[l] = 0;
    for (; i + LANES <= count; i += LANES) /* CHUNK / LANES = 64 mantissas below 2 stay below 2^64 */
        for (int l = 0; l < LANES; l++) {
            int32_t bits;
            float one;
            memcpy(&bits, &x[i + l], 4);
            exponent[l] += (bits >> 23) - 127;
            bits = (bits & 0x007fffff) | 0x3f800000;
            memcpy(&one, &bits, 4);
            mantissa[l] *= one;
        }
    for (int l = 0; l < LANES; l++) powers += exponent[l], total += logf(mantissa[l]);
    for (; i < count; i++) total += logf(x[i]);
    return total + powers * 0.69314718055994531;
}

static inline float sigmoid(float x) {
    float e = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

static inline float softplus(float x) { return fmaxf(x, 0.0f) + log1p_unit(expf(-fabsf(x))); }

/* One weight or bias: rows x cols numbers, row after row. number: for its noise. divergence: the rows' KL; along: the
   rows' sum of grad (mu + sigma eps), which is dL/df. kernel.py has the same structs. */
typedef struct {
    int64_t rows, cols, number;
    const float *mean, *rho, *grad;
    float *weight, *divergence, *along, *d_mean, *d_rho;
} tensor;

/* One layer. logit: of its gates, or NULL; scale: of its nodes, or NULL. gates: six rows of a number for each node,
   z, gamma, dz/dlogit as the relaxation has it, dKL(gate)/dlogit, gamma (1 - gamma), and f. */
typedef struct {
    int64_t nodes, tensors, reinmax;
    float sigma, log_odds, temperature, unused;
    uint64_t seed;
    double total; /* out: KL(gates) + sum gamma KL(slab) */
    const float *logit, *scale;
    float *gates, *d_logit, *d_scale;
    tensor part[2];
} layer;

/* Draws a layer's gates; returns KL(Ber(gamma) || Ber(lambda)), written as in kl.bernoulli. */
static double draw_gates(layer *y, uint64_t seed) {
    int64_t n = y->nodes;
    float *z = y->gates, *gamma = z + n, *slope = gamma + n, *bend = slope + n, *spread = bend + n;
    float b = y->log_odds, inverse = 1.0f / y->temperature;
    double total = 0.0, prior = softplus(b);
    stream r;
    start(&r, seed, (1ULL << 32) + (uint64_t)y->part[0].number, 0);
    for (int64_t at = 0; at < n; at += LANES) {
        int32_t u[LANES];
        float sum = 0.0f;
        int64_t left = n - at < LANES ? n - at : LANES;
        next(&r, u);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < left; i++) {
            float a = y->logit[at + i], eta = a + logf(unit(u[i])) - logf(unit(0x7fffffff - u[i]));
            float g = sigmoid(a), h = sigmoid(-a), open = eta > 0.0f ? 1.0f : 0.0f;
            z[at + i] = open;
            gamma[at + i] = g;
            slope[at + i] = y->reinmax ? 0.5f * (open > 0.0f ? h : g)
                                       : sigmoid(eta * inverse) * sigmoid(-eta * inverse) * inverse;
            bend[at + i] = g * h * (a - b);
            spread[at + i] = g * h;
            sum += g * (fminf(a, 0.0f) - b) - h * fmaxf(a, 0.0f) - log1p_unit(expf(-fabsf(a)));
        }
        total += sum;
    }
    return total + n * prior;
}

static inline void draw_some(int64_t count, const float *restrict m, const float *restrict x, const float *restrict eps,
                             float f, float *restrict w, double *squares, double *logs) {
    float spread[CHUNK], sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        float sd = softplus(x[i]);
        spread[i] = sd;
        w[i] = f * (m[i] + sd * eps[i]);
        sum += sd * sd + m[i] * m[i];
    }
    *squares += sum;
    *logs += log_product(spread, count);
}

static void draw_row(const tensor *t, int64_t j, float f, float sigma, uint64_t seed) {
    float eps[CHUNK];
    double squares = 0.0, logs = 0.0;
    stream r;
    start(&r, seed, (uint64_t)t->number, (uint64_t)j);
    for (int64_t at = 0; at < t->cols; at += CHUNK) {
        int64_t left = t->cols - at < CHUNK ? t->cols - at : CHUNK, first = j * t->cols + at;
        normal(&r, eps, left);
        draw_some(left, t->mean + first, t->rho + first, eps, f, t->weight + first, &squares, &logs);
    }
    t->divergence[j] = (float)(squares * 0.5 / ((double)sigma * sigma) - logs + t->cols * (log(sigma) - 0.5));
}

static inline float back_some(int64_t count, const float *restrict g, const float *restrict m, const float *restrict x,
                              const float *restrict eps, float f, float p, float inverse, float *restrict dm,
                              float *restrict dr) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        float e = expf(-fabsf(x[i]));
        float sd = fmaxf(x[i], 0.0f) + log1p_unit(e);
        float both = 1.0f / (sd * (1.0f + e));                    /* one division for 1 / sd and 1 / (1 + e) */
        float slope = (x[i] >= 0.0f ? 1.0f : e) * sd * both;      /* sigmoid(rho) = d softplus / d rho */
        float through = g[i] * f;
        dm[i] = through + p * inverse * m[i];
        dr[i] = (through * eps[i] + p * (inverse * sd - (1.0f + e) * both)) * slope;
        sum += g[i] * (m[i] + sd * eps[i]);
    }
    return sum;
}

/* p: dL/dK times the row's weight in K. */
static void back_row(const tensor *t, int64_t j, float f, float p, float sigma, uint64_t seed) {
    float eps[CHUNK], sum = 0.0f;
    stream r;
    start(&r, seed, (uint64_t)t->number, (uint64_t)j);
    for (int64_t at = 0; at < t->cols; at += CHUNK) {
        int64_t left = t->cols - at < CHUNK ? t->cols - at : CHUNK, first = j * t->cols + at;
        normal(&r, eps, left);
        sum += back_some(left, t->grad + first, t->mean + first, t->rho + first, eps, f, p, 1.0f / (sigma * sigma),
                         t->d_mean + first, t->d_rho + first);
    }
    t->along[j] = sum;
}

/* A bias, and any tensor with one number for each node: one stream for all of them. */
static void draw_column(const tensor *t, const float *f, float sigma, uint64_t seed) {
    float eps[CHUNK], scale = 0.5f / (sigma * sigma), constant = logf(sigma) - 0.5f;
    stream r;
    start(&r, seed, (uint64_t)t->number, 0);
    for (int64_t at = 0; at < t->rows; at += CHUNK) {
        int64_t left = t->rows - at < CHUNK ? t->rows - at : CHUNK;
        normal(&r, eps, left);
#pragma omp simd
        for (int64_t i = 0; i < left; i++) {
            float m = t->mean[at + i], sd = softplus(t->rho[at + i]);
            t->weight[at + i] = f[at + i] * (m + sd * eps[i]);
            t->divergence[at + i] = (sd * sd + m * m) * scale - logf(sd) + constant;
        }
    }
}

static void back_column(const tensor *t, const float *f, const float *gamma, float d_kl, float sigma, uint64_t seed) {
    float eps[CHUNK], inverse = 1.0f / (sigma * sigma);
    stream r;
    start(&r, seed, (uint64_t)t->number, 0);
    for (int64_t at = 0; at < t->rows; at += CHUNK) {
        int64_t left = t->rows - at < CHUNK ? t->rows - at : CHUNK;
        normal(&r, eps, left);
        for (int64_t i = 0; i < left; i++)
            t->along[at + i] = back_some(1, t->grad + at + i, t->mean + at + i, t->rho + at + i, eps + i, f[at + i],
                                         d_kl * gamma[at + i], inverse, t->d_mean + at + i, t->d_rho + at + i);
    }
}

/* Draws every layer; returns K. A layer's numbers are those of its own seed. */
double nodeslab_draw(layer *layers, int64_t count, int threads) {
    double total = 0.0;
    for (int64_t k = 0; k < count; k++) {
        layer *y = layers + k;
        float *z = y->gates, *gamma = z + y->nodes, *f = z + 5 * y->nodes;
        y->total = y->logit ? draw_gates(y, y->seed) : 0.0;
        if (!y->logit)
            for (int64_t j = 0; j < y->nodes; j++) z[j] = gamma[j] = 1.0f;
        for (int64_t j = 0; j < y->nodes; j++) f[j] = y->scale ? z[j] * y->scale[j] : z[j];
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < layers[k].tensors; i++) {
            const tensor *t = layers[k].part + i;
            const float *f = layers[k].gates + 5 * layers[k].nodes;
            if (t->cols == 1) {
#pragma omp single nowait
                draw_column(t, f, layers[k].sigma, layers[k].seed);
            } else {
#pragma omp for schedule(static) nowait
                for (int64_t j = 0; j < t->rows; j++) draw_row(t, j, f[j], layers[k].sigma, layers[k].seed);
            }
        }
    for (int64_t k = 0; k < count; k++) {
        for (int64_t i = 0; i < layers[k].tensors; i++)
            for (int64_t j = 0; j < layers[k].nodes; j++)
                layers[k].total += (double)layers[k].gates[layers[k].nodes + j] * layers[k].part[i].divergence[j];
        total += layers[k].total;
    }
    return total;
}

/* The gradients of L from dL/dw (grad) and d_kl = dL/dK, for what `nodeslab_draw` drew with the same seeds. */
void nodeslab_back(layer *layers, int64_t count, float d_kl, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < layers[k].tensors; i++) {
            const tensor *t = layers[k].part + i;
            const float *gamma = layers[k].gates + layers[k].nodes, *f = layers[k].gates + 5 * layers[k].nodes;
            if (t->cols == 1) {
#pragma omp single nowait
                back_column(t, f, gamma, d_kl, layers[k].sigma, layers[k].seed);
            } else {
#pragma omp for schedule(static) nowait
                for (int64_t j = 0; j < t->rows; j++)
                    back_row(t, j, f[j], d_kl * gamma[j], layers[k].sigma, layers[k].seed);
            }
        }
    for (int64_t k = 0; k < count; k++) {
        layer *y = layers + k;
        float *z = y->gates, *slope = z + 2 * y->nodes, *bend = slope + y->nodes, *spread = bend + y->nodes;
        for (int64_t j = 0; j < y->nodes; j++) {
            float along = 0.0f, divergence = 0.0f;
            for (int64_t i = 0; i < y->tensors; i++) {
                along += y->part[i].along[j];
                divergence += y->part[i].divergence[j];
            }
            if (y->d_logit)
                y->d_logit[j] = along * slope[j] * (y->scale ? y->scale[j] : 1.0f) +
                                d_kl * (bend[j] + spread[j] * divergence);
            if (y->d_scale) y->d_scale[j] = along * z[j];
        }
    }
}

/* The noise of a tensor: eps of the draw with this seed. */
void nodeslab_normal(float *out, int64_t rows, int64_t cols, int64_t number, uint64_t seed) {
    int64_t lines = cols == 1 ? 1 : rows, length = cols == 1 ? rows : cols;
    for (int64_t j = 0; j < lines; j++) {
        float eps[CHUNK];
        stream r;
        start(&r, seed, (uint64_t)number, (uint64_t)j);
        for (int64_t at = 0; at < length; at += CHUNK) {
            int64_t left = length - at < CHUNK ? length - at : CHUNK;
            normal(&r, eps, left);
            memcpy(out + j * length + at, eps, left * sizeof(float));
        }
    }
}
