/* Which instruction-set level the processor supports, and which build this is. Compiled once, without a level. */
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Bits of CPUID leaf 1 (ecx), leaf 7 (ebx) and leaf 0x80000001 (ecx); see Intel's manual, volume 2, "CPUID". */
enum {
    SSE3 = 1 << 0, SSSE3 = 1 << 9, FMA = 1 << 12, CX16 = 1 << 13, SSE4_1 = 1 << 19, SSE4_2 = 1 << 20, MOVBE = 1 << 22,
    POPCNT = 1 << 23, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29
};
enum { BMI1 = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512CD = 1 << 28, AVX512BW = 1 << 30 };
static const uint32_t AVX512VL = 1u << 31;
enum { LAHF = 1 << 0, LZCNT = 1 << 5 };

static int has(uint32_t bits, uint32_t wanted)
{
    return (bits & wanted) == wanted;
}

/* Which registers the operating system saves when it switches threads. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The highest of the levels that the x86-64 ABI defines, or an empty string below v2. */
EXPORT const char *quantry_level(void)
{
    uint32_t eax, ebx, ecx, edx, one, seven = 0, extended = 0;
    if (!__get_cpuid(1, &eax, &ebx, &one, &edx)) return "";
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) seven = ebx;
    if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx)) extended = ecx;
    if (!has(one, SSE3 | SSSE3 | CX16 | SSE4_1 | SSE4_2 | POPCNT) || !has(extended, LAHF)) return "";
    uint32_t saved = has(one, OSXSAVE) ? saved_registers() : 0;
    int v3 = has(one, FMA | MOVBE | AVX | F16C) && has(seven, BMI1 | AVX2 | BMI2) && has(extended, LZCNT);
    if (!v3 || !has(saved, 0x06)) return "v2";
    int v4 = has(seven, AVX512F | AVX512DQ | AVX512CD | AVX512BW | AVX512VL);
    return v4 && has(saved, 0xe6) ? "v4" : "v3";
}
#else
EXPORT const char *quantry_level(void)
{
    return "neon";
}
#endif

/* Digest of the sources and flags that this library was built from. */
EXPORT const char *quantry_build_id(void)
{
    return BUILD_ID;
}

#if defined(_WIN32)
/* The library links no C runtime, so it brings its own entry point. There is nothing to set up. */
int __stdcall DllMainCRTStartup(void *library, uint32_t reason, void *reserved)
{
    (void)library, (void)reason, (void)reserved;
    return 1;
}
#endif
