/* What errors of rounding cost with each of several scales: sums of squared errors times gradients, channel by channel.
 *
 * Any number of threads may call this with the same task at once: each takes the next channel until there is none.
 */
#include <math.h>
#include <stddef.h>

enum { LANES = 16, BLOCK = 4096 };

typedef struct {
    const float *values, *gradients; /* [outer, channels, inner] */
    const float *scales;             /* [candidates, channels] */
    const float *low, *high;         /* [channels]: smallest and largest level, zero point taken off */
    double *sums;                    /* [candidates, channels]; added to */
    size_t outer, channels, inner, candidates;
    size_t next; /* the first channel that nobody has taken */
} task_t;

#define WALK(STEPS)                                                                                                    \
    for (size_t i = 0; i < size; i += LANES) {                                                                         \
        size_t width = size - i < LANES ? size - i : LANES;                                                            \
        for (size_t k = 0; k < width; k++) {                                                                           \
            float level = rintf(STEPS);                                                                                \
            level = level < low ? low : level;                                                                         \
            level = level > high ? high : level;                                                                       \
            float error = (level * scale - x[i + k]) * g[i + k];                                                       \
            lanes[k] += error * error;                                                                                 \
        }                                                                                                              \
    }

static double squares(const float *x, const float *g, size_t size, float scale, float low, float high)
{
    float lanes[LANES] = {0}, sum = 0.0f;
    const float inverse = 1.0f / scale;
    int exponent;
    /* Where 1 / scale is exact, its product is the quotient. */
    if (frexpf(scale, &exponent) == 0.5f && exponent > -125 && exponent < 126) {
        WALK(x[i + k] * inverse)
    } else {
        WALK(x[i + k] / scale)
    }
    for (size_t k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

void add_errors(task_t *task)
{
    const size_t channels = task->channels, inner = task->inner;
    for (size_t c; (c = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED)) < channels;)
        for (size_t o = 0; o < task->outer; o++)
            for (size_t start = 0; start < inner; start += BLOCK) {
                /* A block stays in the first-level cache while all candidates walk over it. */
                const size_t place = (o * channels + c) * inner + start;
                const size_t size = inner - start < BLOCK ? inner - start : BLOCK;
                for (size_t k = 0; k < task->candidates; k++)
                    task->sums[k * channels + c] += squares(task->values + place, task->gradients + place, size,
                                                            task->scales[k * channels + c], task->low[c], task->high[c]);
            }
}
