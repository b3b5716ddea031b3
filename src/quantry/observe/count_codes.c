/* Counts the codes of floats and finds their extremes. Integers alone, so that every processor gives the same. */
#include <stddef.h>
#include <stdint.h>

enum { BLOCK = 8192 }; /* values that stay in the first-level cache between the two walks over them */

/* histogram: 65536 counts, one for each upper half of a float. ranks: the smallest and the largest rank, which is a
 * float's bits as an integer that ascends with its value: minus infinity first, NaN at either end. */
void count_codes(const uint32_t *bits, size_t count, uint32_t *histogram, int32_t *ranks)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (size_t start = 0; start < count; start += BLOCK) {
        size_t size = count - start < BLOCK ? count - start : BLOCK;
        const uint32_t *block = bits + start;
        /* A walk of its own for the extremes: compilers make vectors of it, which counting does not allow. */
        for (size_t i = 0; i < size; i++) {
            uint32_t negative = -(block[i] >> 31);
            int32_t rank = (int32_t)(block[i] ^ (negative >> 1));
            low = rank < low ? rank : low;
            high = rank > high ? rank : high;
        }
        /* Neighbours often have one code, and adding twice to one place in a row waits for memory: four apart do not. */
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
