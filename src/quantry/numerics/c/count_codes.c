/* Histogram over the upper 16 bits of float32 values, and their extremes. Integer arithmetic only. */
#include "kernels.h"

enum { BLOCK = 8192 }; /* values that stay in the first-level cache between the two loops over them */

/* histogram: 65536 counts, one for each upper half of a float.
 * ranks: smallest and largest rank. A rank is a float's bits as an integer that ascends with its value: minus infinity
 * comes before all finite numbers, and NaNs are at both ends. */
EXPORT void KERNEL(count_codes)(const uint32_t *bits, size_t count, uint32_t *histogram, int32_t *ranks)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (size_t start = 0; start < count; start += BLOCK) {
        size_t size = count - start < BLOCK ? count - start : BLOCK;
        const uint32_t *block = bits + start;
        /* The extremes have their own loop because compilers can vectorize it; counting cannot be vectorized. */
        for (size_t i = 0; i < size; i++) {
            uint32_t negative = -(block[i] >> 31);
            int32_t rank = (int32_t)(block[i] ^ (negative >> 1));
            low = rank < low ? rank : low;
            high = rank > high ? rank : high;
        }
        /* Neighbours often have the same code, and incrementing one counter twice in a row waits for memory.
         * Four positions far from each other rarely do. */
        size_t quarter = size / 4;
        for (size_t i = 0; i < quarter; i++) {
            histogram[block[i] >> 16]++;
            histogram[block[i + quarter] >> 16]++;
            histogram[block[i + 2 * quarter] >> 16]++;
            histogram[block[i + 3 * quarter] >> 16]++;
        }
        for (size_t i = 4 * quarter; i < size; i++) histogram[block[i] >> 16]++;
    }
    ranks[0] = low;
    ranks[1] = high;
}
