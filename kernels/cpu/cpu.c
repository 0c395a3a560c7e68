/* The context of the CPU back-end: selection of the instruction set, threads, workspace. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread/cores.h"
#include "base/thread/thread.h"
#include "kernels/cpu/matmul.h"

extern const struct cpu_variant CPU_JOIN(baseline, variant);

static bool runs_baseline(void)
{
    return true;
}

/* CPU_X86_VARIANTS: the number of x86 variants in this build, in the order of this file. */
#if CPU_X86_VARIANTS > 0
extern const struct cpu_variant CPU_JOIN(v3, variant);

static bool runs_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

#if CPU_X86_VARIANTS > 1
extern const struct cpu_variant CPU_JOIN(v4, variant);

static bool runs_v4(void)
{
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

#if CPU_X86_VARIANTS > 2
extern const struct cpu_variant CPU_JOIN(v4_bf16, variant);

static bool runs_v4_bf16(void)
{
    return runs_v4() && __builtin_cpu_supports("avx512bf16");
}
#endif

#if CPU_X86_VARIANTS > 3
extern const struct cpu_variant CPU_JOIN(v4_amx, variant);

static bool runs_v4_amx(void)
{
    return runs_v4_bf16() && matmul_permits_amx();
}
#endif

/* In order of preference. */
static const struct candidate {
    const struct cpu_variant *variant;
    bool (*runs)(void);
} candidates[] = {
#if CPU_X86_VARIANTS > 3
    {&CPU_JOIN(v4_amx, variant), runs_v4_amx},
#endif
#if CPU_X86_VARIANTS > 2
    {&CPU_JOIN(v4_bf16, variant), runs_v4_bf16},
#endif
#if CPU_X86_VARIANTS > 1
    {&CPU_JOIN(v4, variant), runs_v4},
#endif
#if CPU_X86_VARIANTS > 0
    {&CPU_JOIN(v3, variant), runs_v3},
#endif
    {&CPU_JOIN(baseline, variant), runs_baseline},
};

enum { CANDIDATES = COUNT(candidates) };

static status choose_variant(const struct cpu_variant **out)
{
    const char *wanted = getenv("BIREME_CPU");
    for (int i = 0; i < CANDIDATES; i++) {
        if (wanted != NULL && wanted[0] != '\0' &&
            strcmp(wanted, candidates[i].variant->name) != 0) {
            continue;
        }
        if (candidates[i].runs()) {
            *out = candidates[i].variant;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE,
          "BIREME_CPU=%s: this build has no such variant or this processor cannot run it "
          "(baseline, v3, "
          "v4, v4_bf16, v4_amx); unset it to select the best one",
          wanted);
}

static size_t compute_scratch_bytes(enum dtype dtype, int threads,
                                    const struct kernels_limits *limits)
{
    size_t bytes = CPU_JOIN(baseline, variant).scratch_bytes(dtype, threads, limits);
    return bytes > 0 ? bytes : 64; /* arena_create() with 0 bytes would only measure */
}

size_t cpu_workspace_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    int count = threads > 0 ? threads : cores_allowed();
    return compute_scratch_bytes(dtype, count, limits) + matmul_library_bytes(dtype, count, limits);
}

static void destroy_context(struct kernels *k)
{
    struct cpu *cpu = cpu_get_state(k);
    if (cpu != NULL) {
        roofline_destroy(k);
        matmul_destroy(&cpu->matmul);
        arena_destroy(&cpu->scratch);
        free(cpu);
        k->state = NULL;
    }
}

/* Starts the threads of OpenMP, after a check that they can be started. */
static status start_threads(int threads)
{
    if (threads > 1) {
        TRY(thread_check_count(threads - 1));
    }
    _Atomic int started = 0;
#pragma omp parallel num_threads(threads)
    started++;
    return STATUS_OK;
}

static status create_context(struct kernels *k, int threads)
{
    REQUIRE(
        matmul_supports(k->dtype), STATUS_UNAVAILABLE,
        "precision %s: this processor lacks the instructions for it (AVX-512 BF16 or AMX), which "
        "bf16 and fp8 need; set train.precision to fp32",
        dtype_name(k->dtype));
    struct cpu *cpu = NULL;
    TRY(ALLOCATE(cpu, 1, "the kernels context"));
    k->state = cpu;
    k->threads = threads > 0 ? threads : cores_allowed();
    status result = STATUS_OK;
    TRY_GOTO(result, fail, start_threads(k->threads));
    TRY_GOTO(result, fail, choose_variant(&cpu->variant));
    k->table = cpu->variant->table;
    k->table.destroy = destroy_context;
    size_t bytes = compute_scratch_bytes(k->dtype, k->threads, &k->limits);
    TRY_GOTO(result, fail, arena_create(k->device, bytes, "the kernels workspace", &cpu->scratch));
    TRY_GOTO(result, fail, matmul_create(k, &cpu->matmul));
    snprintf(k->description, sizeof k->description, "CPU %s, %d thread%s, %s", cpu->variant->name,
             k->threads, k->threads == 1 ? "" : "s", matmul_description());
    return STATUS_OK;
fail:
    destroy_context(k);
    return result;
}

const struct kernels_driver cpu_driver = {create_context};
