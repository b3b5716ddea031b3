/* Weights in groups with a scale each: scales with nearly the least squared error, and the integers packed into bytes.
 *
 * LANES groups are processed side by side, one value of each at a time. So sums have the order of the values whatever
 * the instruction-set level and the memory order of the weight.
 */
#include "kernels.h"

enum { LANES = 32, CANDIDATES = 3 };

static const float SMALLEST_NORMAL = 1.1754943508222875e-38f;

/* A matrix of values, seen as `count` lines that are cut into groups of `size` values; the last one may be shorter. */
typedef struct {
    const float *values;
    ptrdiff_t line, value; /* strides in elements: to the next line, and to the next value of a line */
    size_t count, length, size;
    float *scratch; /* [size, LANES] */
} lines_t;

typedef struct {
    lines_t lines;
    const double *parts; /* [CANDIDATES]: parts of the whole range that are compared */
    double lowest, highest, centre, steps;
    double largest_end;
    int32_t symmetric, either_sign;
    float *scale, *zero; /* [groups, lines], lines in whole blocks of LANES */
    uint8_t *empty;      /* the same shape: whether all values of the group are zero */
} search_t;

typedef struct {
    lines_t lines;
    const float *scale, *zero; /* [groups, lines], lines in whole blocks of LANES; padded with ones and zeros */
    float lowest, highest, shift;
    int32_t bits;
    uint8_t *integers; /* [size, LANES] */
    uint8_t *packed;   /* [count, groups, bytes of a group]; the end of a shorter group is left alone */
} pack_t;

/* Copies values of LANES neighbouring lines into the scratch memory; lanes beyond the last line become zero.
 * Copies have a constant length, because there is no C library whose memcpy could be called. */
static void gather(const lines_t *lines, size_t group, size_t start, size_t width, size_t length)
{
    const float *first = lines->values + (ptrdiff_t)start * lines->line + (ptrdiff_t)(group * lines->size) * lines->value;
    float *scratch = lines->scratch;
    if (width == LANES && lines->line == 1)
        for (size_t i = 0; i < length; i++)
            memcpy(scratch + i * LANES, first + (ptrdiff_t)i * lines->value, LANES * sizeof *scratch);
    else
        for (size_t k = 0; k < LANES; k++)
            for (size_t i = 0; i < length; i++)
                scratch[i * LANES + k] = k < width ? first[(ptrdiff_t)k * lines->line + (ptrdiff_t)i * lines->value] : 0.0f;
}

static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* Scale and zero point of a range, in float64 as in affine.py. */
static inline void candidate(const search_t *task, double low, double high, float *scale, float *zero)
{
    double found, point = task->centre;
    if (task->symmetric) {
        /* Both ends of the integers are used: -8 as well as 7. */
        found = larger(larger(-low, 0.0) / (task->centre - task->lowest), larger(high, 0.0) / (task->highest - task->centre));
        found = found < SMALLEST_NORMAL ? 1.0 : found;
    } else {
        low = larger(smaller(low, 0.0), -task->largest_end), high = smaller(larger(high, 0.0), task->largest_end);
        found = (high - low) / task->steps;
        int degenerate = found < SMALLEST_NORMAL;
        found = degenerate ? 1.0 : found;
        point = smaller(larger(rint(task->lowest - low / found), task->lowest), task->highest);
        point = degenerate ? 0.0 : point;
    }
    *scale = (float)found, *zero = (float)point;
}

/* The integers of a candidate against the values: <q, q> and <x, q>. */
static inline void correlate(const float *values, size_t length, const float *inverse, const float *low, const float *high,
                             float *square, float *product)
{
    memset(square, 0, LANES * sizeof *square), memset(product, 0, LANES * sizeof *product);
    for (size_t i = 0; i < length; i++)
        for (size_t k = 0; k < LANES; k++) {
            float x = values[i * LANES + k], q = clip(rintf(x * inverse[k]), low[k], high[k]);
            square[k] += q * q;
            product[k] += x * q;
        }
}

static void search_lanes(const search_t *task, size_t length, float *best_scale, float *best_zero, uint8_t *empty)
{
    const float *values = task->lines.scratch;
    float least[LANES], most[LANES], turned[LANES], best[LANES];
    float scale[LANES], zero[LANES], inverse[LANES], low[LANES], high[LANES], square[LANES], product[LANES];
    memcpy(least, values, sizeof least), memcpy(most, values, sizeof most);
    for (size_t i = 1; i < length; i++)
        for (size_t k = 0; k < LANES; k++) {
            float x = values[i * LANES + k];
            least[k] = x < least[k] ? x : least[k];
            most[k] = x > most[k] ? x : most[k];
        }
    for (size_t k = 0; k < LANES; k++) {
        empty[k] = least[k] == 0.0f && most[k] == 0.0f;
        /* Groups are turned so that their longer side is the negative one, which has one integer more. */
        turned[k] = task->either_sign && most[k] > -least[k] ? -1.0f : 1.0f;
        float kept = least[k];
        least[k] = turned[k] < 0 ? -most[k] : least[k];
        most[k] = turned[k] < 0 ? -kept : most[k];
    }
    for (size_t c = 0; c < CANDIDATES; c++) {
        for (size_t k = 0; k < LANES; k++) {
            candidate(task, least[k] * task->parts[c], most[k] * task->parts[c], scale + k, zero + k);
            scale[k] *= turned[k];
            inverse[k] = 1.0f / scale[k];
            low[k] = (float)task->lowest - zero[k], high[k] = (float)task->highest - zero[k];
        }
        correlate(values, length, inverse, low, high, square, product);
        for (size_t k = 0; k < LANES; k++) {
            /* |x - s q|^2 = |x|^2 - 2 s <x, q> + s^2 <q, q>: least at the fitted s, and lower by <x, q> s than |x|^2. */
            float fitted = product[k] / (square[k] > 1.0f ? square[k] : 1.0f);
            /* Products near the ends of float32 are infinite or lose their digits: there the candidate stays. */
            int fits = square[k] > 0 && fitted * turned[k] >= SMALLEST_NORMAL && fabsf(fitted) <= 3.4028234663852886e38f;
            float gain = fits ? product[k] * fitted : -INFINITY;
            int better = c == 0 || gain > best[k];
            best[k] = better ? gain : best[k];
            best_scale[k] = better ? (fits ? fitted : scale[k]) : best_scale[k];
            best_zero[k] = better ? zero[k] : best_zero[k];
        }
    }
}

static inline size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t groups_of(const lines_t *lines)
{
    return (lines->length + lines->size - 1) / lines->size;
}

/* Lines of the arrays with one entry for each group: whole blocks of LANES. */
static inline size_t padded(const lines_t *lines)
{
    return (lines->count + LANES - 1) / LANES * LANES;
}

/* Finds scale and zero point of all groups. */
EXPORT void KERNEL(search_groups)(const search_t *task)
{
    const lines_t *lines = &task->lines;
    for (size_t group = 0; group < groups_of(lines); group++)
        for (size_t start = 0; start < lines->count; start += LANES) {
            size_t length = least_of(lines->size, lines->length - group * lines->size), at = group * padded(lines) + start;
            gather(lines, group, start, least_of(LANES, lines->count - start), length);
            search_lanes(task, length, task->scale + at, task->zero + at, task->empty + at);
        }
}

/* Writes the integers of LANES groups, one byte each. */
static void quantize_lanes(const pack_t *task, size_t length, const float *scale, const float *zero, uint8_t *restrict out)
{
    const float *values = task->lines.scratch;
    float low[LANES], high[LANES], offset[LANES];
    for (size_t k = 0; k < LANES; k++) {
        low[k] = task->lowest - zero[k], high[k] = task->highest - zero[k];
        offset[k] = zero[k] + task->shift;
    }
    for (size_t i = 0; i < length; i++)
        for (size_t k = 0; k < LANES; k++) {
            float level = clip(rintf(values[i * LANES + k] / scale[k]), low[k], high[k]);
            out[i * LANES + k] = (uint8_t)(int32_t)(level + offset[k]);
        }
}

/* Joins pairs of 4-bit integers in place, the first in the lower half of a byte. */
static void join_pairs(uint8_t *integers, size_t length)
{
    for (size_t i = 0; i < length; i += 2)
        for (size_t k = 0; k < LANES; k++) {
            uint8_t upper = i + 1 < length ? integers[(i + 1) * LANES + k] : 0;
            integers[i / 2 * LANES + k] = (uint8_t)(integers[i * LANES + k] | upper << 4);
        }
}

/* Quantizes all groups, as QuantizeLinear does, and packs them. */
EXPORT void KERNEL(pack_groups)(const pack_t *task)
{
    const lines_t *lines = &task->lines;
    const size_t groups = groups_of(lines), together = 8 / (size_t)task->bits, bytes = lines->size / together;
    for (size_t group = 0; group < groups; group++)
        for (size_t start = 0; start < lines->count; start += LANES) {
            const size_t length = least_of(lines->size, lines->length - group * lines->size);
            const size_t width = least_of(LANES, lines->count - start), used = (length + together - 1) / together;
            const size_t at = group * padded(lines) + start;
            gather(lines, group, start, width, length);
            quantize_lanes(task, length, task->scale + at, task->zero + at, task->integers);
            if (together == 2) join_pairs(task->integers, length);
            for (size_t k = 0; k < width; k++) {
                const uint8_t *restrict lane = task->integers + k;
                uint8_t *restrict out = task->packed + ((start + k) * groups + group) * bytes;
                for (size_t j = 0; j < used; j++) out[j] = lane[j * LANES];
            }
        }
}
