/* AdaRound and AdaQuant: trains rows of weights whose loss is a quadratic form.
 *
 * A row w of a group has the loss  w G w' - 2 w c + (w m + b - t)^2, so rows are independent: a call trains some rows for
 * some steps, and several calls may run in parallel. Arrays are float32. A row has `padded` elements, a multiple of 32, of
 * which the first `width` are weights; the padding stays zero. The loss omits the terms that do not depend on w.
 *
 * NumpyRows in Python has the same operations in the same order, except for matrix products, which BLAS computes there.
 * Change both together.
 */
#include "kernels.h"

/* Products are computed in tiles: TILE rows times two vectors of columns fill the registers. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16, TILE = 8 };
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8, TILE = 4 };
#elif defined(__aarch64__)
#include <arm_neon.h>
enum { LANES = 4, TILE = 8 };
#else
enum { LANES = 4, TILE = 4 };
#endif
enum {
    PANEL = 2 * LANES,
    VECTORS = SUM_LANES / LANES, /* vectors that hold the partial sums */
    BLOCK = 16,                  /* rows trained together, so that the Gram matrix is read once for all of them */
    MANY = 48,                   /* the same for wide rows, whose Gram matrix does not fit in the second-level cache */
    WIDE = 768,
    REFRESH = 64 /* steps after which products are computed from scratch, so that rounding errors do not accumulate */
};

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4))); /* a vec at any address */

/* a * b + c, rounded once, on every level. */
static inline vec fused_multiply_add(float a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_n_f32((float32x4_t)c, (float32x4_t)b, a);
#else
    /* The product of two floats is exact in double precision. The sum is rounded to odd there, which keeps the second
     * rounding, to float, correct: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums" (2008). */
    for (int lane = 0; lane < LANES; lane++) {
        double product = (double)a * b[lane], addend = c[lane], sum = product + addend;
        double part = sum - product;
        double lost = (product - (sum - part)) + (addend - part);
        int64_t bits;
        memcpy(&bits, &sum, sizeof bits);
        int64_t away = (lost > 0.0) == (sum > 0.0) ? 1 : -1;
        bits += ((lost < 0.0) | (lost > 0.0)) && !(bits & 1) ? away : 0; /* lost is NaN if the sum is not finite */
        memcpy(&sum, &bits, sizeof sum);
        c[lane] = (float)sum;
    }
    return c;
#endif
}

/* One step of Adam: learning rate and factor of the second moment, both with bias correction, and the exponent and weight
 * of AdaRound's regularization, whose weight is zero while it is off. */
typedef struct {
    float rate, spread, beta, weight;
} step_t;

typedef struct {
    size_t rows, width, padded;                            /* rows of one group */
    size_t rank, rank_padded;                              /* if G = F F' with few columns in F, else 0 */
    const float *gram;                                     /* packed, [groups]; F' if there is a rank */
    const float *factor;                                   /* F, packed, [groups] */
    const float *cross, *scale, *lowest, *highest;         /* [groups * rows, padded] */
    const float *mean;                                     /* [groups, padded] */
    float *value, *first, *second;                         /* trained, and Adam's moments, [groups * rows, padded] */
    const float *floor;                                    /* AdaRound: weights rounded down, same shape */
    const float *target;                                   /* t, [groups * rows] */
    const double *bias_scale, *bias_lowest, *bias_highest; /* AdaQuant, same shape; scale 0: not rounded */
    float *bias, *bias_first, *bias_second;                /* same shape */
    int32_t bias_moves, rounds;                            /* rounds: AdaRound, else AdaQuant */
} layer_t;

/* Working memory for a block of rows. */
typedef struct {
    float *weight, *product, *sigmoid; /* [rows of a block, padded] */
    float *waste;                      /* one row: products of unused rows of a tile, and changes of a row */
    float *inner;                      /* weight F, [rows of a block, rank_padded] */
    float *change;                     /* of the columns in `changed` */
    int32_t *changed;                  /* columns whose weight changed */
} scratch_t;

static const float FIRST = 0.9f, SECOND = 0.999f, EPSILON = 1e-8f; /* Adam */
static const float LOW = -0.1f, SPAN = 1.2f;                       /* AdaRound: h = clip(SPAN sigmoid(v) + LOW, 0, 1) */
static const float TINY = 1.1754944e-38f, BELOW_ONE = 0.99999994f; /* the outermost floats inside (0, 1) */

/* 2^x with a relative error of about 1e-7; x is clipped to the exponents of normal floats. Not libm's exp2f, whose
 * results differ between platforms. */
static inline float power_of_two(float x)
{
    x = clip(x, -126.0f, 126.0f);
    /* Adding 1.5 * 2^23 rounds x to an integer, which is then in the lowest bits of the sum. */
    float shifted = x + 12582912.0f;
    float part = x - (shifted - 12582912.0f);
    float sum = 1.5403530e-4f; /* Taylor coefficients ln(2)^n / n! */
    sum = sum * part + 1.3333558e-3f;
    sum = sum * part + 9.6181291e-3f;
    sum = sum * part + 5.5504109e-2f;
    sum = sum * part + 2.4022651e-1f;
    sum = sum * part + 6.9314718e-1f;
    sum = sum * part + 1.0f;
    return sum * float_from_bits((bits_from_float(shifted) - 0x4b400000 + 127) << 23);
}

/* log2 of a positive normal number, with an error of about 1e-6. */
static inline float log_two(float x)
{
    /* Splits x into 2^exponent times a number in [sqrt(1/2), sqrt(2)), then uses the series of atanh. */
    int32_t bits = bits_from_float(x) - 0x3f3504f3;
    int32_t exponent = bits >> 23;
    float z = float_from_bits((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    float ratio = z / (2.0f + z), square = ratio * ratio;
    float sum = 0.41219859f; /* 2 / (n ln(2)) for n = 7, 5, 3, 1 */
    sum = sum * square + 0.57707802f;
    sum = sum * square + 0.96179669f;
    sum = sum * square + 2.88539008f;
    return (float)exponent + ratio * sum;
}

/* 1 inside the bounds, else 0. A factor, because compilers vectorize it more easily than a branch. */
static inline float within(float x, float low, float high)
{
    return (x >= low ? 1.0f : 0.0f) * (x <= high ? 1.0f : 0.0f);
}

/* Stores the columns of a matrix [lines, columns] in panels, so that a product reads memory sequentially. */
EXPORT void KERNEL(pack_columns)(const float *matrix, size_t lines, size_t columns, size_t padded, float *packed)
{
    for (size_t panel = 0; panel < padded; panel += PANEL)
        for (size_t k = 0; k < lines; k++)
            for (size_t j = panel; j < panel + PANEL; j++) *packed++ = j < columns ? matrix[k * columns + j] : 0.0f;
}

static void multiply_tile(const float *const *weights, const float *panel, size_t width, float *const *products)
{
    vec sums[TILE][2];
    memset(sums, 0, sizeof sums);
    for (size_t k = 0; k < width; k++, panel += PANEL) {
        vec left = *(const loose *)panel, right = *(const loose *)(panel + LANES);
#pragma GCC unroll 8
        for (int t = 0; t < TILE; t++) {
            float weight = weights[t][k];
            sums[t][0] = fused_multiply_add(weight, left, sums[t][0]);
            sums[t][1] = fused_multiply_add(weight, right, sums[t][1]);
        }
    }
    for (int t = 0; t < TILE; t++) {
        *(loose *)products[t] = sums[t][0];
        *(loose *)(products[t] + LANES) = sums[t][1];
    }
}

static void multiply_row(const float *weight, const float *panel, size_t width, float *product)
{
    vec left = {0}, right = {0};
    for (size_t k = 0; k < width; k++, panel += PANEL) {
        left = fused_multiply_add(weight[k], *(const loose *)panel, left);
        right = fused_multiply_add(weight[k], *(const loose *)(panel + LANES), right);
    }
    *(loose *)product = left;
    *(loose *)(product + LANES) = right;
}

/* A matrix with packed columns. */
typedef struct {
    const float *packed;
    size_t lines, padded;
} packed_t;

/* product = left right for some rows of a block; rows of left are `stride` elements from each other. */
static void multiply(const float *left, size_t stride, packed_t right, float *product, float *waste, const int *rows,
                     int count)
{
    for (size_t column = 0; column < right.padded; column += PANEL) {
        const float *panel = right.packed + column * right.lines;
        for (int start = 0; start < count; start += TILE) {
            /* A tile that is less than half full costs more than its rows one by one. */
            if (count - start < (TILE + 1) / 2) {
                for (int t = start; t < count; t++)
                    multiply_row(left + rows[t] * stride, panel, right.lines, product + rows[t] * right.padded + column);
                continue;
            }
            const float *lefts[TILE];
            float *products[TILE];
            for (int t = 0; t < TILE; t++) {
                int real = start + t < count;
                size_t row = (size_t)rows[real ? start + t : start];
                lefts[t] = left + row * stride;
                products[t] = (real ? product + row * right.padded : waste) + column;
            }
            multiply_tile(lefts, panel, right.lines, products);
        }
    }
}

/* product = weight G for some rows of a block, computed as (weight F) F' if G has a low rank. */
static void multiply_gram(const layer_t *layer, size_t group, const scratch_t *scratch, const int *rows, int count)
{
    if (layer->rank == 0) {
        packed_t gram = {layer->gram + group * layer->width * layer->padded, layer->width, layer->padded};
        multiply(scratch->weight, layer->padded, gram, scratch->product, scratch->waste, rows, count);
        return;
    }
    packed_t factor = {layer->factor + group * layer->width * layer->rank_padded, layer->width, layer->rank_padded};
    packed_t turned = {layer->gram + group * layer->rank * layer->padded, layer->rank, layer->padded};
    multiply(scratch->weight, layer->padded, factor, scratch->inner, scratch->waste, rows, count);
    multiply(scratch->inner, layer->rank_padded, turned, scratch->product, scratch->waste, rows, count);
}

/* product += change G for a row in which few weights changed. */
static void update(const layer_t *layer, size_t group, const scratch_t *scratch, int count, float *product)
{
    size_t padded = layer->padded, width = layer->width;
    const float *gram = layer->gram + group * width * padded;
    for (size_t column = 0; column < padded; column += PANEL) {
        const float *panel = gram + column * width;
        vec left = *(loose *)(product + column), right = *(loose *)(product + column + LANES);
        for (int n = 0; n < count; n++) {
            const float *line = panel + (size_t)scratch->changed[n] * PANEL;
            left = fused_multiply_add(scratch->change[n], *(const loose *)line, left);
            right = fused_multiply_add(scratch->change[n], *(const loose *)(line + LANES), right);
        }
        *(loose *)(product + column) = left;
        *(loose *)(product + column + LANES) = right;
    }
}

static double total(const vec *sums)
{
    double result = 0.0;
    for (int v = 0; v < VECTORS; v++)
        for (int lane = 0; lane < LANES; lane++) result += sums[v][lane];
    return result;
}

/* The sum over a row of left * (right - 2 less). */
static double row_loss(const float *left, const float *right, const float *less, size_t padded)
{
    vec sums[VECTORS];
    memset(sums, 0, sizeof sums);
    for (size_t j = 0; j < padded; j += SUM_LANES)
        for (int v = 0; v < VECTORS; v++) {
            size_t i = j + (size_t)v * LANES;
            sums[v] += *(const loose *)(left + i) * (*(const loose *)(right + i) - 2.0f * *(const loose *)(less + i));
        }
    return total(sums);
}

static double dot(const float *left, const float *right, size_t padded)
{
    vec sums[VECTORS];
    memset(sums, 0, sizeof sums);
    for (size_t j = 0; j < padded; j += SUM_LANES)
        for (int v = 0; v < VECTORS; v++) {
            size_t i = j + (size_t)v * LANES;
            sums[v] += *(const loose *)(left + i) * *(const loose *)(right + i);
        }
    return total(sums);
}

/* Adam, in place; `slope` is the derivative of the loss. */
#define ADAM(value, first, second, slope, step)                                                                        \
    do {                                                                                                               \
        first = FIRST * first + (1.0f - FIRST) * (slope);                                                              \
        second = SECOND * second + (1.0f - SECOND) * (slope) * (slope);                                                \
        value -= (step).rate * first / (sqrtf(second * (step).spread) + EPSILON);                                      \
    } while (0)

static inline float soft_up(float sigmoid)
{
    return clip(SPAN * sigmoid + LOW, 0.0f, 1.0f);
}

static inline float sigmoid_of(float value)
{
    return 1.0f / (1.0f + power_of_two(-1.44269504f * value)); /* log2(e) */
}

/* AdaRound's soft weights: between rounded down and rounded up. */
static void soften(const layer_t *layer, size_t place, float *restrict sigmoid, float *restrict weight)
{
    const float *restrict value = layer->value + place, *restrict floors = layer->floor + place;
    const float *restrict low = layer->lowest + place, *restrict high = layer->highest + place;
    const float *restrict scale = layer->scale + place;
    INDEPENDENT
    for (size_t j = 0, padded = layer->padded; j < padded; j++) {
        sigmoid[j] = sigmoid_of(value[j]);
        weight[j] = clip(floors[j] + soft_up(sigmoid[j]), low[j], high[j]) * scale[j];
    }
}

/* The derivative of AdaRound's regularization with respect to the rounding. */
static inline float push(float up, const step_t *step)
{
    float centered = 2.0f * up - 1.0f, size = fabsf(centered);
    size = size < 1e-30f ? 1e-30f : size; /* log_two needs a positive normal number */
    float away = power_of_two((step->beta - 1.0f) * log_two(size));
    return step->weight * step->beta * 2.0f * copysignf(away, centered);
}

/* One step of AdaRound for a row, with or without the regularization; `change` is set to how each weight changed. */
static inline __attribute__((always_inline)) void round_row(const layer_t *layer, const step_t *step, size_t place,
                                                            const float *restrict product, float *restrict sigmoid,
                                                            float *restrict weight, float *restrict change, int pushes)
{
    const step_t now = *step;
    float *restrict value = layer->value + place;
    float *restrict first = layer->first + place, *restrict second = layer->second + place;
    const float *restrict floors = layer->floor + place, *restrict cross = layer->cross + place;
    const float *restrict low = layer->lowest + place, *restrict high = layer->highest + place;
    const float *restrict scale = layer->scale + place;
    INDEPENDENT
    for (size_t j = 0, padded = layer->padded; j < padded; j++) {
        float up = soft_up(sigmoid[j]), level = floors[j] + up;
        float slope = 2.0f * (product[j] - cross[j]) * scale[j];
        slope *= within(level, low[j], high[j]);
        slope -= pushes ? push(up, &now) : 0.0f;
        slope *= sigmoid[j] * (1.0f - sigmoid[j]) * SPAN * within(SPAN * sigmoid[j] + LOW, TINY, BELOW_ONE);
        ADAM(value[j], first[j], second[j], slope, now);
        sigmoid[j] = sigmoid_of(value[j]);
        float next = clip(floors[j] + soft_up(sigmoid[j]), low[j], high[j]) * scale[j];
        change[j] = next - weight[j];
        weight[j] = next;
    }
}

/* Weights on their grid. */
static void harden(const layer_t *layer, size_t place, float *restrict weight)
{
    const float *restrict value = layer->value + place, *restrict scale = layer->scale + place;
    const float *restrict low = layer->lowest + place, *restrict high = layer->highest + place;
    INDEPENDENT
    for (size_t j = 0, padded = layer->padded; j < padded; j++)
        weight[j] = clip(rintf(value[j] / scale[j]), low[j], high[j]) * scale[j];
}

/* One step of AdaQuant for a row; `shift` is the error of its mean output. */
static void quant_row(const layer_t *layer, const step_t *step, size_t place, const float *restrict mean, float shift,
                      const float *restrict product, float *restrict weight, float *restrict change)
{
    const step_t now = *step;
    float *restrict value = layer->value + place;
    float *restrict first = layer->first + place, *restrict second = layer->second + place;
    const float *restrict cross = layer->cross + place, *restrict scale = layer->scale + place;
    const float *restrict low = layer->lowest + place, *restrict high = layer->highest + place;
    INDEPENDENT
    for (size_t j = 0, padded = layer->padded; j < padded; j++) {
        float level = rintf(value[j] / scale[j]);
        float slope = 2.0f * (product[j] - cross[j] + shift * mean[j]);
        slope *= within(level, low[j], high[j]);
        ADAM(value[j], first[j], second[j], slope, now);
        float next = clip(rintf(value[j] / scale[j]), low[j], high[j]) * scale[j];
        change[j] = next - weight[j];
        weight[j] = next;
    }
}

static float rounded_bias(const layer_t *layer, size_t row)
{
    double scale = layer->bias_scale[row];
    if (scale == 0.0) return layer->bias[row];
    double level = rint(layer->bias[row] / scale);
    level = level < layer->bias_lowest[row] ? layer->bias_lowest[row] : level;
    level = level > layer->bias_highest[row] ? layer->bias_highest[row] : level;
    return (float)level * (float)scale;
}

/* Whether every weight of a row is fully rounded up or down. */
static int is_rounded(const float *sigmoid, size_t padded)
{
    int open = 0;
    for (size_t j = 0; j < padded; j++) {
        float up = soft_up(sigmoid[j]);
        open |= up > 0.0f ? up < 1.0f : 0;
    }
    return !open;
}

/* Lists the columns that changed. Returns their number, or -1 above 40 % of the row, where a new product is faster than
 * an update. */
static int list_changes(const layer_t *layer, const float *change, const scratch_t *scratch)
{
    int count = 0, most = (int)(layer->width * 2 / 5);
    for (size_t j = 0; j < layer->width; j += SUM_LANES) {
        int any = 0;
        size_t end = j + SUM_LANES < layer->width ? j + SUM_LANES : layer->width;
        for (size_t i = j; i < j + SUM_LANES; i++) any |= change[i] != 0.0f;
        for (size_t i = j; any && i < end; i++) {
            scratch->changed[count] = (int32_t)i;
            scratch->change[count] = change[i];
            count += change[i] != 0.0f;
        }
        if (count > most) return -1;
    }
    return count;
}

/* Makes one step for a row and returns its loss before the step. */
static double step_row(const layer_t *layer, const step_t *step, size_t row, const scratch_t *scratch, int at)
{
    size_t place = row * layer->padded, local = (size_t)at * layer->padded;
    const float *mean = layer->mean + row / layer->rows * layer->padded;
    float *weight = scratch->weight + local, *product = scratch->product + local;
    double loss = row_loss(weight, product, layer->cross + place, layer->padded);
    if (layer->rounds) {
        float *sigmoid = scratch->sigmoid + local, *change = scratch->waste;
        if (step->weight != 0.0f) {
            round_row(layer, step, place, product, sigmoid, weight, change, 1);
        } else {
            round_row(layer, step, place, product, sigmoid, weight, change, 0);
        }
        return loss;
    }
    double shift = dot(weight, mean, layer->padded) + rounded_bias(layer, row) - layer->target[row];
    quant_row(layer, step, place, mean, (float)shift, product, weight, scratch->waste);
    if (layer->bias_moves) {
        ADAM(layer->bias[row], layer->bias_first[row], layer->bias_second[row], 2.0f * (float)shift, *step);
    }
    return loss + shift * shift;
}

/* Trains rows of one group. A row of AdaRound whose weights are all fully rounded never changes again, because its
 * slopes are zero and momentum only moves its values further in the same direction. It is skipped from then on. */
static void train_block(const layer_t *layer, const step_t *steps, size_t count, size_t begin, int rows,
                        const scratch_t *scratch, double *losses)
{
    size_t group = begin / layer->rows;
    int dense[MANY], waiting = 0, settled[MANY] = {0}; /* dense: rows whose product is computed from scratch */
    double last[MANY];
    for (int at = 0; at < rows; at++) {
        size_t place = (begin + at) * layer->padded, local = at * layer->padded;
        dense[waiting++] = at;
        if (layer->rounds) {
            soften(layer, place, scratch->sigmoid + local, scratch->weight + local);
        } else {
            harden(layer, place, scratch->weight + local);
        }
    }
    for (size_t i = 0; i < count; i++) {
        multiply_gram(layer, group, scratch, dense, waiting);
        waiting = 0;
        for (int at = 0; at < rows; at++) {
            size_t local = at * layer->padded;
            if (!settled[at]) {
                last[at] = step_row(layer, steps + i, begin + at, scratch, at);
                int changes = list_changes(layer, scratch->waste, scratch);
                settled[at] = changes == 0 && layer->rounds && is_rounded(scratch->sigmoid + local, layer->padded);
                if (settled[at]) {
                    /* Its product stays as it is. */
                } else if (changes < 0 || (changes > 0 && layer->rank > 0) || (i + 1) % REFRESH == 0) {
                    dense[waiting++] = at;
                } else if (changes > 0) {
                    update(layer, group, scratch, changes, scratch->product + local);
                }
            }
            losses[(begin + at) * count + i] = last[at];
        }
    }
}

static size_t block_rows(const layer_t *layer)
{
    return layer->width > WIDE ? MANY : BLOCK;
}

/* How many floats of working memory each call of train_rows needs. */
EXPORT size_t KERNEL(train_rows_scratch)(const layer_t *layer)
{
    return layer->padded * (3 * block_rows(layer) + 3) + layer->rank_padded * block_rows(layer);
}

/* Trains rows begin to end for `count` steps. losses: [groups * rows, count], the loss of each row before each step. */
EXPORT void KERNEL(train_rows)(const layer_t *layer, const step_t *steps, size_t count, size_t begin, size_t end,
                               float *memory, double *losses)
{
    size_t block = block_rows(layer);
    scratch_t scratch;
    scratch.weight = memory;
    scratch.product = scratch.weight + block * layer->padded;
    scratch.sigmoid = scratch.product + block * layer->padded;
    scratch.waste = scratch.sigmoid + block * layer->padded;
    scratch.change = scratch.waste + layer->padded;
    scratch.inner = scratch.change + layer->padded;
    scratch.changed = (int32_t *)(scratch.inner + layer->rank_padded * block);
    for (size_t row = begin; row < end;) {
        size_t group_end = (row / layer->rows + 1) * layer->rows;
        size_t stop = group_end < end ? group_end : end;
        int rows = (int)(stop - row < block ? stop - row : block);
        train_block(layer, steps, count, row, rows, &scratch, losses);
        row += rows;
    }
}
