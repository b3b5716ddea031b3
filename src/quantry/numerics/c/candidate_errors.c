/* Weighted rounding errors of a tensor for each of several candidate scales, per channel.
 *
 * Any number of threads may call this with the same task: each takes the next channel until none is left.
 */
#include "kernels.h"

enum { BLOCK = 4096 };

typedef struct {
    const float *values, *gradients; /* [outer, channels, inner] */
    const float *scales;             /* [candidates, channels] */
    const float *low, *high;         /* [channels]: smallest and largest level, minus the zero point */
    double *sums;                    /* [candidates, channels]; added to */
    size_t outer, channels, inner, candidates;
    size_t next; /* first channel that no thread has taken */
} task_t;

static inline float squared_error(float steps, float x, float g, float scale, float low, float high)
{
    float error = (clip(rintf(steps), low, high) * scale - x) * g;
    return error * error;
}

/* Up to BLOCK values: few enough for sums in float32. */
static inline __attribute__((always_inline)) double block_error(const float *x, const float *g, size_t size,
                                                                float scale, float low, float high, int exact)
{
    const float inverse = 1.0f / scale;
    float lanes[SUM_LANES] = {0}, sum = 0.0f;
    size_t i = 0;
    for (; i + SUM_LANES <= size; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++)
            lanes[k] += squared_error(exact ? x[i + k] * inverse : x[i + k] / scale, x[i + k], g[i + k], scale, low, high);
    for (size_t k = 0; i + k < size; k++)
        lanes[k] += squared_error(exact ? x[i + k] * inverse : x[i + k] / scale, x[i + k], g[i + k], scale, low, high);
    for (size_t k = 0; k < SUM_LANES; k++) sum += lanes[k];
    return sum;
}

EXPORT void KERNEL(add_errors)(task_t *task)
{
    const size_t channels = task->channels, inner = task->inner;
    for (size_t c; (c = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED)) < channels;)
        for (size_t o = 0; o < task->outer; o++)
            /* A block stays in the first-level cache while all candidates are computed on it. */
            for (size_t start = 0; start < inner; start += BLOCK) {
                const float *x = task->values + (o * channels + c) * inner + start;
                const float *g = task->gradients + (o * channels + c) * inner + start;
                const float low = task->low[c], high = task->high[c];
                const size_t size = inner - start < BLOCK ? inner - start : BLOCK;
                for (size_t k = 0; k < task->candidates; k++) {
                    const float scale = task->scales[k * channels + c];
                    task->sums[k * channels + c] += is_power_of_two(scale)
                                                        ? block_error(x, g, size, scale, low, high, 1)
                                                        : block_error(x, g, size, scale, low, high, 0);
                }
            }
}
