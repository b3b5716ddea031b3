/* GPTQ: rounding of weights with error feedback, and coordinate descent on the integers.
 *
 * Rows are independent, so a call processes some of them and several calls may run in parallel. Matrices are stored row
 * by row. A row of the result belongs to the group `row / rows`.
 */
#include "kernels.h"

typedef struct {
    const float *values;
    ptrdiff_t group, row, column; /* strides in elements; zero along broadcast axes */
} broadcast_t;

typedef struct {
    size_t rows, width; /* of one group */
    broadcast_t scale, lowest, highest;
} grid_t;

static inline float at(const broadcast_t *array, size_t group, size_t row, size_t column)
{
    return array->values[(ptrdiff_t)group * array->group + (ptrdiff_t)row * array->row + (ptrdiff_t)column * array->column];
}

static inline float nearest(const grid_t *grid, size_t group, size_t row, size_t column, float weight)
{
    float scale = at(&grid->scale, group, row, column);
    float lowest = at(&grid->lowest, group, row, column), highest = at(&grid->highest, group, row, column);
    return clip(rintf(weight / scale), lowest, highest) * scale;
}

/* Rounds rows first..last. `result` and `rest` both start as the weights; `rest` is overwritten with the weights that
 * remain to be rounded. Row c of `spread` is how much of the error of column c each later column compensates. */
EXPORT void KERNEL(round_with_feedback)(const grid_t *grid, const float *spread, float *rest, float *result,
                                        size_t first, size_t last)
{
    size_t width = grid->width;
    enum { TOGETHER = 8 }; /* rows processed together, so that a row of `spread` is read once for all of them */
    for (size_t start = first; start < last;) {
        size_t group = start / grid->rows, end = start + TOGETHER < last ? start + TOGETHER : last;
        if (end > (group + 1) * grid->rows) end = (group + 1) * grid->rows;
        for (size_t column = 0; column < width; column++) {
            const float *share = spread + (group * width + column) * width;
            for (size_t row = start; row < end; row++) {
                float *restrict here = rest + row * width;
                float rounded = nearest(grid, group, row % grid->rows, column, here[column]);
                float lost = result[row * width + column] - rounded;
                result[row * width + column] = rounded;
                for (size_t next = column + 1; next < width; next++) here[next] += lost * share[next];
            }
        }
        start = end;
    }
}

/* One sweep over the columns of rows first..last: each weight takes the best value given the others. `slope` is half the
 * derivative of the error and is kept up to date for the columns to come. Returns whether any weight changed. */
EXPORT int KERNEL(descend)(const grid_t *grid, const float *gram, float *slope, float *current, size_t first, size_t last)
{
    size_t width = grid->width;
    int changed = 0;
    for (size_t row = first; row < last; row++) {
        size_t group = row / grid->rows;
        const float *matrix = gram + group * width * width;
        float *restrict slopes = slope + row * width;
        float *weights = current + row * width;
        for (size_t column = 0; column < width; column++) {
            /* The smallest normal float: a column that is always zero has no curvature. */
            float diagonal = matrix[column * width + column];
            float best = weights[column] - slopes[column] / (diagonal > 1.1754944e-38f ? diagonal : 1.1754944e-38f);
            float chosen = nearest(grid, group, row % grid->rows, column, best), step = chosen - weights[column];
            if (step == 0.0f) continue;
            changed = 1;
            weights[column] = chosen;
            const float *share = matrix + column * width;
            for (size_t next = column + 1; next < width; next++) slopes[next] += step * share[next];
        }
    }
    return changed;
}
