/* Quantizes and dequantizes floats with one scale, and takes gradients back through that.
 *
 * Values are walked over in chunks. Any number of threads may call the same function with the same task at once: each
 * takes the next chunk until there is none.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { CHUNK = 1 << 15, LANES = 16, BLOCK = 4096 };

typedef struct {
    const float *values;    /* what is quantized */
    const float *gradients; /* by the results */
    float *results;
    uint8_t *inside; /* one byte for each value, 1 where its level is between the bounds; or NULL where nobody asks */
    double *sums;    /* of each chunk */
    size_t count;
    size_t next;            /* the first chunk that nobody has taken */
    float scale, low, high; /* low and high: smallest and largest level, zero point taken off */
} task_t;

/* Takes a chunk; returns its number of values, 0 where all are taken. */
static size_t take(task_t *task, size_t *first)
{
    *first = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED) * CHUNK;
    if (*first >= task->count) return 0;
    return task->count - *first < CHUNK ? task->count - *first : CHUNK;
}

/* Whether 1 / scale is exact: then its product is the quotient, at a fraction of the time. */
static int is_power_of_two(float scale)
{
    int exponent;
    return frexpf(scale, &exponent) == 0.5f && exponent > -125 && exponent < 126;
}

/* A level that is not a number stays so. */
#define WALK(STEPS, MASK)                                                                                              \
    for (size_t i = 0; i < size; i++) {                                                                                \
        float level = rintf(STEPS);                                                                                    \
        MASK;                                                                                                          \
        level = level < low ? low : level;                                                                             \
        level = level > high ? high : level;                                                                           \
        y[i] = level * scale;                                                                                          \
    }
#define KEEP in[i] = (level >= low) & (level <= high)

void quantize(task_t *task)
{
    const float scale = task->scale, inverse = 1.0f / scale, low = task->low, high = task->high;
    const int exact = is_power_of_two(scale);
    for (size_t first, size; (size = take(task, &first));) {
        const float *x = task->values + first;
        float *restrict y = task->results + first;
        uint8_t *restrict in = task->inside ? task->inside + first : NULL;
        if (exact && in) WALK(x[i] * inverse, KEEP)
        else if (exact) WALK(x[i] * inverse, (void)0)
        else if (in) WALK(x[i] / scale, KEEP)
        else WALK(x[i] / scale, (void)0)
    }
}

/* The gradient where the value was inside, and 0 elsewhere, whatever the gradient is. */
void pass_inside(task_t *task)
{
    for (size_t first, size; (size = take(task, &first));) {
        const uint32_t *g = (const uint32_t *)task->gradients + first;
        const uint8_t *in = task->inside + first;
        uint32_t *restrict y = (uint32_t *)task->results + first;
        for (size_t i = 0; i < size; i++) y[i] = g[i] & -(uint32_t)in[i];
    }
}

/* Writes the gradients by the values, and of each chunk its part of the one by the scale: the sum of each gradient
 * times round(x / scale) - x / scale inside, and times the bound that was hit outside. */
void learn(task_t *task)
{
    const float scale = task->scale, inverse = 1.0f / scale, low = task->low, high = task->high;
    const int exact = is_power_of_two(scale);
    for (size_t first, size; (size = take(task, &first));) {
        double sum = 0.0;
        for (size_t start = first; start < first + size; start += BLOCK) {
            size_t length = first + size - start < BLOCK ? first + size - start : BLOCK;
            float lanes[LANES] = {0}, part = 0.0f;
            for (size_t i = start; i < start + length; i += LANES) {
                size_t width = start + length - i < LANES ? start + length - i : LANES;
                const float *x = task->values + i, *g = task->gradients + i;
                float *restrict y = task->results + i;
                for (size_t k = 0; k < width; k++) {
                    float steps = exact ? x[k] * inverse : x[k] / scale;
                    float level = rintf(steps);
                    int within = (level >= low) & (level <= high);
                    float bound = level < low ? low : level > high ? high : level;
                    y[k] = within ? g[k] : 0.0f;
                    lanes[k] += g[k] * (within ? level - steps : bound);
                }
            }
            for (size_t k = 0; k < LANES; k++) part += lanes[k];
            sum += part;
        }
        task->sums[first / CHUNK] = sum;
    }
}
