/* Shared by all kernels.
 *
 * Every source file is compiled once for each instruction-set level and its functions get the level's name as a suffix
 * (quantry_train_rows_v3). levels.c finds the highest level that the processor supports, and Python calls the functions
 * of that level.
 *
 * Results must not depend on the level. Therefore:
 *  - floating-point sums always use SUM_LANES partial sums, however wide the vectors are, and join them in order;
 *  - the compiler must not fuse multiplications and additions (-ffp-contract=off); where fusing pays, the code calls
 *    fused_multiply_add, which rounds once on every level;
 *  - no function of libm is called whose results differ between platforms: only those that IEEE 754 defines exactly
 *    (rint, sqrt, fabs, copysign).
 */
#ifndef QUANTRY_KERNELS_H
#define QUANTRY_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* LEVEL is given on the command line, for example -DLEVEL=v3. */
#define JOIN_(name, level) quantry_##name##_##level
#define JOIN(name, level) JOIN_(name, level)
#define KERNEL(name) JOIN(name, LEVEL)

enum { SUM_LANES = 16 };

/* Before a loop whose iterations do not depend on each other, which the compiler cannot see from pointers. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline float float_from_bits(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int32_t bits_from_float(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Whether 1 / scale is exact. Then x * (1 / scale) equals x / scale, and multiplying is several times faster. */
static inline int is_power_of_two(float scale)
{
    int32_t bits = bits_from_float(scale), exponent = bits >> 23;
    return (bits & 0x7fffff) == 0 && exponent > 1 && exponent < 252;
}

static inline float clip(float x, float low, float high)
{
    /* In this order NaN stays NaN. */
    x = x < low ? low : x;
    return x > high ? high : x;
}

#endif
