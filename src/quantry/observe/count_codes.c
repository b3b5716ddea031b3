/* Counts the codes of floats, and finds their extremes, in one walk over memory. */
#include <stddef.h>
#include <stdint.h>

/* A float's bits as an integer that ascends with its value: minus infinity first, NaN at either end. */
static int32_t rank_of(uint32_t bits)
{
    return (int32_t)(bits & 0x80000000u ? bits ^ 0x7fffffffu : bits);
}

/* histogram: 65536 counts, one for each upper half of a float. ranks: the smallest and the largest rank. */
void count_codes(const uint32_t *bits, size_t count, uint32_t *histogram, int32_t *ranks)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    /* Neighbours often have one code, and adding twice to one place in a row waits for memory: four far apart do not. */
    size_t quarter = count / 4;
    for (size_t i = 0; i < quarter; i++) {
        for (size_t part = 0; part < 4; part++) {
            uint32_t value = bits[i + part * quarter];
            int32_t rank = rank_of(value);
            low = rank < low ? rank : low;
            high = rank > high ? rank : high;
            histogram[value >> 16]++;
        }
    }
    for (size_t i = 4 * quarter; i < count; i++) {
        int32_t rank = rank_of(bits[i]);
        low = rank < low ? rank : low;
        high = rank > high ? rank : high;
        histogram[bits[i] >> 16]++;
    }
    ranks[0] = low;
    ranks[1] = high;
}
