/* The CPU back-end's inside: how one source is compiled for several instruction sets, the context's
 * working memory, and the threads.
 *
 * Variants   CMake compiles every file of this folder but the few named there once
 *            for each instruction set, with -DCPU_VARIANT=name. Such a file writes CPU(f) for every
 *            function that other files see; inner loops are plain C for the compiler to vectorise.
 *            variant.c collects them in one table a variant; cpu.c, compiled for the plainest
 *            processor, takes the best table that this processor can run.
 * Threads    OpenMP with num_threads(k->threads) and static schedules only. An operation's result
 *            must not depend on the number of threads: split outputs, never sums.
 * Scratch    an operation marks cpu_of(k)->scratch, takes, and releases to the mark. What it will
 *            need at worst is computed by its CPU(x_scratch) function, and variant.c takes the
 *            largest of them: operations run one at a time. */
#pragma once

#include "base/arena.h"
#include "kernels/kernels_table.h"

struct matmul;
struct floor; /* floor.c's operands */

/* One instruction set's table and what its operations need of the scratch arena. */
struct cpu_variant {
    const char *name;
    struct kernels_table table;
    size_t (*scratch_bytes)(enum dtype dtype, int threads, const struct kernels_limits *limits);
};

struct cpu {
    const struct cpu_variant *variant;
    struct arena scratch;
    struct matmul *matmul;
    struct floor *floor; /* NULL: none was measured */
};

static inline struct cpu *cpu_of(const struct kernels *k)
{
    return k->state;
}

/* cpu_share - the half-open part of `count` items that is the share of thread `index` of
 * `threads`, in whole multiples of `unit` (but for the end). */
struct cpu_range {
    int64_t first, last;
};

static inline struct cpu_range cpu_share(int64_t count, int64_t unit, int index, int threads)
{
    int64_t units = (count + unit - 1) / unit;
    int64_t first = units * index / threads * unit;
    int64_t last = units * (index + 1) / threads * unit;
    return (struct cpu_range){first < count ? first : count, last < count ? last : count};
}

/* cpu_prefetch - ask for a part of a row that is read a while later. Where rows lie pages apart no
 * processor asks by itself. Asking beyond the end does no harm. */
static inline void cpu_prefetch(struct tensor t, int64_t row, int64_t column, int64_t width)
{
    enum { LINE = 64 };
    int64_t size = (int64_t)dtype_bytes(t.dtype);
    uintptr_t from = (uintptr_t)t.data + (uintptr_t)((row * t.stride + column) * size);
    for (int64_t i = 0; i < width * size; i += LINE) {
        __builtin_prefetch((const void *)(from + (uintptr_t)i));
    }
}

#define CPU_JOIN_(variant, name) cpu_##variant##_##name
#define CPU_JOIN(variant, name) CPU_JOIN_(variant, name)

#ifdef CPU_VARIANT
#define CPU(name) CPU_JOIN(CPU_VARIANT, name)

#define CPU_PROTOTYPE(name) __typeof__(name) CPU(name);
KERNELS_OPERATIONS(CPU_PROTOTYPE)
#undef CPU_PROTOTYPE

/* CPU(x_scratch) - bytes that operation x takes from the scratch arena at worst (each taking is
 * rounded up to 64 bytes by the arena; cpu_scratch_rounded does the same). */
typedef size_t cpu_scratch(enum dtype dtype, int threads, const struct kernels_limits *limits);
cpu_scratch CPU(attention_scratch);
cpu_scratch CPU(norm_scratch);
cpu_scratch CPU(embedding_scratch);
cpu_scratch CPU(classifier_scratch);

extern const struct cpu_variant CPU(variant);
#endif

static inline size_t cpu_scratch_rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}
