/* The instructions of AMX, Intel's matrix extensions with tile registers, that the back-end uses.
 *
 * The tests define the macros in advance (tests/kernels/tile_model.h), so that the GEMMs run on
 * processors without AMX. */
#pragma once

#if !defined(TILE_LOAD) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* tile_is_available - return whether the processor has AMX for bf16 and the operating system
 * permits it. The permission applies to the whole process (Documentation/arch/x86/xstate.rst of
 * Linux). */
static inline bool tile_is_available(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx = 1U << 22 | 1U << 24; /* AMX-BF16 and AMX-TILE, in EDX of leaf 7 */
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & amx) == amx &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#define TILE_IS_AVAILABLE() tile_is_available()
#define TILE_CONFIGURE(configuration) _tile_loadconfig(configuration)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(tile) _tile_zero(tile)
/* The load intrinsics do not declare that they read memory, so the compiler may move earlier stores
 * after a load. A TILE_FENCE after the stores to the operands and before the load prevents this. */
#define TILE_FENCE() __asm__ volatile("" ::: "memory")
#define TILE_LOAD(tile, memory, stride) _tile_loadd(tile, memory, stride)
#define TILE_LOAD_ONCE(tile, memory, stride) _tile_stream_loadd(tile, memory, stride)
#define TILE_STORE(tile, memory, stride) _tile_stored(tile, memory, stride)
#define TILE_MULTIPLY(to, a, b) _tile_dpbf16ps(to, a, b)
#endif
