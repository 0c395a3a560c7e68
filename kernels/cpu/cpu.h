/* Internals of the CPU back-end: instruction sets, threads, workspace.
 *
 * Variants  CMake compiles the sources of this folder and of attention/ once for each instruction
 *           set, with -DCPU_VARIANT=name (kernels/CMakeLists.txt lists the exceptions). A function
 *           that is visible to other files is defined as CPU(f). The inner loops are plain C that
 *           the compiler vectorizes. variant.c builds one table for each variant. cpu.c is compiled
 *           for the oldest supported processor; it selects the best table that this processor can
 *           run.
 * Threads   OpenMP with num_threads(k->threads) and static schedules, except in the backward pass
 *           of attention. The result of an operation must not depend on the number of threads, so
 *           threads split the outputs, or the blocks of a sum. The size and the order of the blocks
 *           are fixed. division.h, gemm/divisions.h and attention/attention_division.h contain the
 *           rules of the division.
 * Scratch   An operation marks cpu_get_state(k)->scratch, takes memory, and releases it to the
 *           mark. Its function CPU(x_scratch) computes the largest amount that it takes. Operations
 *           run one at a time, so the arena has the maximum over all operations (variant.c). */
#pragma once

#include "base/device/arena.h"
#include "base/number.h"
#include "kernels/kernels_table.h"

/* A function that becomes a part of each caller, so that the compiler can specialize it for
 * constant arguments and vectorize its loops. */
#define CPU_INLINE static inline __attribute__((always_inline))

struct matmul;
struct roofline; /* operands of the roofline measurement */

/* The table of one instruction set, and the scratch memory that its operations need. */
struct cpu_variant {
    const char *name;
    struct kernels_table table;
    size_t (*scratch_bytes)(enum dtype dtype, int threads, const struct kernels_limits *limits);
    bool uses_amx; /* AMX computes the GEMMs of bf16 (gemm/panels.h) */
};

/* The state of a context. */
struct cpu {
    const struct cpu_variant *variant;
    struct arena scratch;
    struct matmul *matmul;
    struct roofline *roofline; /* NULL: not measured */
};

/* cpu_get_state - return the CPU part of a context. */
static inline struct cpu *cpu_get_state(const struct kernels *k)
{
    return k->state;
}

/* Items [first, last). */
struct cpu_range {
    int64_t first, last;
};

/* cpu_thread_range - compute the range of `count` items that thread `index` of `threads` processes.
 *
 * Units     a range begins and ends at multiples of `unit`, except at `count` */
static inline struct cpu_range cpu_thread_range(int64_t count, int64_t unit, int index, int threads)
{
    int64_t units = number_divide_up(count, unit);
    int64_t first = units * index / threads * unit;
    int64_t last = units * (index + 1) / threads * unit;
    return (struct cpu_range){number_min(first, count), number_min(last, count)};
}

/* cpu_prefetch - prefetch `width` columns of a row that will be read later.
 *
 * The hardware prefetcher does not follow rows that are pages apart. A prefetch beyond the end of
 * the memory is harmless. */
static inline void cpu_prefetch(struct tensor t, int64_t row, int64_t column, int64_t width)
{
    enum { LINE = 64 };
    int64_t size = (int64_t)dtype_bytes(t.dtype);
    uintptr_t from = (uintptr_t)t.data + (uintptr_t)((row * t.stride + column) * size);
    for (int64_t i = 0; i < width * size; i += LINE) {
        __builtin_prefetch((const void *)(from + (uintptr_t)i));
    }
}

/* cpu_transpose - write the transpose of a part of a matrix.
 *
 * Shapes    out f32 [rows, columns] without gaps;  in f32 [columns, rows] with a stride */
static inline void cpu_transpose(float *out, const float *in, int64_t stride, int64_t rows,
                                 int64_t columns)
{
    for (int64_t j = 0; j < columns; j++) {
        for (int64_t i = 0; i < rows; i++) {
            out[i * columns + j] = in[j * stride + i];
        }
    }
}

#define CPU_JOIN_(variant, name) cpu_##variant##_##name
#define CPU_JOIN(variant, name) CPU_JOIN_(variant, name)

/* cpu_control_sum_exact, cpu_control_sum_rows, cpu_control_sum_segments, cpu_control_trust_ratios,
 * cpu_control_decide_update - implement the operations of control.h for all instruction sets. */
__typeof__(control_sum_exact) cpu_control_sum_exact;
__typeof__(control_sum_rows) cpu_control_sum_rows;
__typeof__(control_sum_segments) cpu_control_sum_segments;
__typeof__(control_trust_ratios) cpu_control_trust_ratios;
__typeof__(control_decide_update) cpu_control_decide_update;

/* cpu_head_loss_run - implement head_loss_run for all instruction sets. */
__typeof__(head_loss_run) cpu_head_loss_run;

/* cpu_preference_loss_run - implement preference_loss_run for all instruction sets. */
__typeof__(preference_loss_run) cpu_preference_loss_run;

/* cpu_preference_batch_* - implement the losses of a whole batch for all instruction sets. */
__typeof__(preference_batch_store) cpu_preference_batch_store;
__typeof__(preference_batch_run) cpu_preference_batch_run;

/* cpu_contrastive_loss_* - implement the contrastive loss for all instruction sets. */
__typeof__(contrastive_loss_pool) cpu_contrastive_loss_pool;
__typeof__(contrastive_loss_run) cpu_contrastive_loss_run;
__typeof__(contrastive_loss_sum) cpu_contrastive_loss_sum;
__typeof__(contrastive_loss_backward) cpu_contrastive_loss_backward;

/* cpu_spike_score_run - implement spike_score_run for all instruction sets. */
__typeof__(spike_score_run) cpu_spike_score_run;

/* roofline_measure - implement kernels_roofline on the CPU. */
__typeof__(kernels_roofline) roofline_measure;

/* roofline_destroy - release the operands that roofline_measure keeps in the context. */
void roofline_destroy(struct kernels *k);

#ifdef CPU_VARIANT
#define CPU(name) CPU_JOIN(CPU_VARIANT, name)

#define CPU_PROTOTYPE(name) __typeof__(name) CPU(name);
KERNELS_OPERATIONS(CPU_PROTOTYPE)
#undef CPU_PROTOTYPE

/* CPU(x_scratch) - compute the bytes that operation x takes from the scratch arena at most.
 *
 * The arena rounds each allocation up to 64 bytes; cpu_scratch_align does the same. */
typedef size_t cpu_scratch(enum dtype dtype, int threads, const struct kernels_limits *limits);
cpu_scratch CPU(attention_scratch);
cpu_scratch CPU(norm_scratch);
cpu_scratch CPU(embedding_scratch);
cpu_scratch CPU(fp8_scratch);
cpu_scratch CPU(classifier_scratch);
cpu_scratch CPU(column_sums_scratch);

extern const struct cpu_variant CPU(variant);
#endif

/* cpu_scratch_align - round bytes up to the alignment of the scratch arena. */
static inline size_t cpu_scratch_align(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}
