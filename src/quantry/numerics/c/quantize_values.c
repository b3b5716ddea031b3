/* Fake quantization with one scale, and its gradients.
 *
 * Values are processed in chunks. Any number of threads may call the same function with the same task: each takes the
 * next chunk until none is left. Partial sums are kept per chunk, so the result does not depend on the threads.
 */
#include "kernels.h"

enum { CHUNK = 1 << 15, BLOCK = 4096 };

typedef struct {
    const float *values;    /* to quantize */
    const float *gradients; /* with respect to the results */
    float *results;
    uint8_t *inside; /* one byte per value: 1 if its level is between the bounds; NULL if not wanted */
    double *sums;    /* one per chunk */
    size_t count;
    size_t next;            /* first chunk that no thread has taken */
    float scale, low, high; /* low and high: smallest and largest level, minus the zero point */
} task_t;

/* Takes the next chunk; returns its number of values, 0 if none is left. */
static size_t take_chunk(task_t *task, size_t *first)
{
    *first = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED) * CHUNK;
    if (*first >= task->count) return 0;
    return task->count - *first < CHUNK ? task->count - *first : CHUNK;
}

/* A macro, so that each combination becomes a loop without branches. */
#define QUANTIZE(STEPS, MASK)                                                                                          \
    for (size_t i = 0; i < size; i++) {                                                                                \
        float level = rintf(STEPS);                                                                                    \
        MASK;                                                                                                          \
        y[i] = clip(level, low, high) * scale;                                                                         \
    }
#define KEEP_INSIDE in[i] = (level >= low) & (level <= high)

EXPORT void KERNEL(quantize)(task_t *task)
{
    const float scale = task->scale, inverse = 1.0f / scale, low = task->low, high = task->high;
    const int exact = is_power_of_two(scale);
    for (size_t first, size; (size = take_chunk(task, &first));) {
        const float *x = task->values + first;
        float *restrict y = task->results + first;
        uint8_t *restrict in = task->inside ? task->inside + first : NULL;
        if (exact && in) QUANTIZE(x[i] * inverse, KEEP_INSIDE)
        else if (exact) QUANTIZE(x[i] * inverse, (void)0)
        else if (in) QUANTIZE(x[i] / scale, KEEP_INSIDE)
        else QUANTIZE(x[i] / scale, (void)0)
    }
}

/* Writes the gradient where the value was inside the bounds, else 0. Masks bits instead of multiplying, because
 * NaN * 0 is not 0. */
EXPORT void KERNEL(pass_inside)(task_t *task)
{
    for (size_t first, size; (size = take_chunk(task, &first));) {
        const uint32_t *g = (const uint32_t *)task->gradients + first;
        const uint8_t *in = task->inside + first;
        uint32_t *restrict y = (uint32_t *)task->results + first;
        for (size_t i = 0; i < size; i++) y[i] = g[i] & -(uint32_t)in[i];
    }
}

/* One value's part of the gradients; see learn. */
static inline float learn_value(float steps, float gradient, float low, float high, float *result)
{
    float level = rintf(steps);
    int inside = (level >= low) & (level <= high);
    float bound = level < low ? low : level > high ? high : level;
    *result = inside ? gradient : 0.0f;
    return gradient * (inside ? level - steps : bound);
}

/* Up to BLOCK values: few enough for sums in float32. */
static inline __attribute__((always_inline)) float learn_block(const float *x, const float *g, float *restrict y,
                                                               size_t size, const task_t *task, int exact)
{
    const float scale = task->scale, inverse = 1.0f / scale, low = task->low, high = task->high;
    float lanes[SUM_LANES] = {0}, sum = 0.0f;
    size_t i = 0;
    for (; i + SUM_LANES <= size; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++)
            lanes[k] += learn_value(exact ? x[i + k] * inverse : x[i + k] / scale, g[i + k], low, high, y + i + k);
    for (size_t k = 0; i + k < size; k++)
        lanes[k] += learn_value(exact ? x[i + k] * inverse : x[i + k] / scale, g[i + k], low, high, y + i + k);
    for (size_t k = 0; k < SUM_LANES; k++) sum += lanes[k];
    return sum;
}

/* Writes the gradients with respect to the values, and for each chunk the sum of the gradient with respect to the scale:
 * round(x / scale) - x / scale inside the bounds, and the bound that was exceeded outside. */
EXPORT void KERNEL(learn)(task_t *task)
{
    const int exact = is_power_of_two(task->scale);
    for (size_t first, size; (size = take_chunk(task, &first));) {
        double sum = 0.0;
        for (size_t start = first; start < first + size; start += BLOCK) {
            size_t length = first + size - start < BLOCK ? first + size - start : BLOCK;
            const float *x = task->values + start, *g = task->gradients + start;
            float *y = task->results + start;
            sum += exact ? learn_block(x, g, y, length, task, 1) : learn_block(x, g, y, length, task, 0);
        }
        task->sums[first / CHUNK] = sum;
    }
}
