/* A Q/DQ pair, and any function of one, in a single pass over the values.
 *
 * onnxruntime computes QuantizeLinear as clip(rint(x / scale)) + zero_point and DequantizeLinear as
 * (q - zero_point) * scale. Here the zero point is part of the bounds, and the results are the same bits.
 */
#include "kernels.h"

/* parameters: the scale, then the smallest and the largest level minus the zero point, then, if size > 3, the result
 * for each level. NaN becomes the smallest level, as in onnxruntime. */
static inline float nearest_level(float steps, float low, float high)
{
    steps = steps > low ? steps : low;
    return rintf(steps < high ? steps : high);
}

/* Values per step: their levels stay in the first cache, and below 4 KB, because larger frames call a function of the C
 * library on Windows. */
enum { BLOCK = 512 };

/* A macro, so that each combination becomes a loop without branches. */
#define EACH(RESULT) INDEPENDENT for (size_t i = 0; i < size; i++) RESULT
#define LEVEL_OF(STEPS) nearest_level(STEPS, low, high)

/* One block of the pair. Adding zero turns -0 into 0, which is what integers become. */
static inline void pair(const float *x, float *y, size_t size, float scale, float low, float high)
{
    const float inverse = 1.0f / scale;
    if (is_power_of_two(scale)) EACH(y[i] = (LEVEL_OF(x[i] * inverse) + 0.0f) * scale);
    else EACH(y[i] = (LEVEL_OF(x[i] / scale) + 0.0f) * scale);
}

/* One block of a table. Levels come first: a loop that also reads the table would not become vector code. */
static inline void table(const float *x, float *y, size_t size, const float *parameters)
{
    const float scale = parameters[0], inverse = 1.0f / scale, low = parameters[1], high = parameters[2];
    const float *results = parameters + 3;
    int32_t levels[BLOCK];
    if (is_power_of_two(scale)) EACH(levels[i] = (int32_t)(LEVEL_OF(x[i] * inverse) - low));
    else EACH(levels[i] = (int32_t)(LEVEL_OF(x[i] / scale) - low));
    for (size_t i = 0; i < size; i++) y[i] = results[levels[i]];
}

EXPORT void KERNEL(look_up)(const float *x, float *y, size_t count, const float *parameters, size_t size)
{
    for (size_t first = 0; first < count; first += BLOCK) {
        const size_t block = count - first < BLOCK ? count - first : BLOCK;
        if (size > 3) table(x + first, y + first, block, parameters);
        else pair(x + first, y + first, block, parameters[0], parameters[1], parameters[2]);
    }
}
