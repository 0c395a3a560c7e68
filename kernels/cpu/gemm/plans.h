/* The plans of oneDNN: each computes a block of a GEMM on one thread.
 *
 * Plans     A plan is a oneDNN primitive for one shape, layout and pair of dtypes. It is created at
 *           its first use and kept. Therefore only the first training step creates plans or
 *           allocates memory.
 *
 * Calls     plans_find outside of parallel regions; plans_run on each thread */
#pragma once

#include "kernels/cpu/matmul.h"

/* The key of a plan. Keys are compared byte by byte, so there is no padding. */
struct plan_key {
    int64_t rows, inner, columns;
    int64_t stride_a, stride_b, stride_c;
    int32_t threads; /* 1: for one thread; the other threads use the plan too, for other blocks */
    uint8_t type_ab, type_c, transpose_a, transpose_b, accumulate, bias, unused[6];
};

_Static_assert(sizeof(struct plan_key) == 64, "padding in a key that is compared byte by byte");

struct plan;
struct panels;

/* The operands of a block. */
struct plan_operands {
    void *c, *a, *b, *bias;
    int64_t stride_a, stride_b, stride_c;
};

/* plans_find - find the plan of a key, or create it. The least recently used plans are replaced. */
status plans_find(struct matmul *m, struct plan_key key, struct plan **out);

/* plans_run - run a plan on the calling thread, number `thread`.
 *
 * It raises no error; the caller combines the results of all threads.
 *
 * Returns   the status of oneDNN; 0: no error */
int plans_run(struct matmul *m, const struct plan *p, int thread, const struct plan_operands *o);

/* plans_reserve_copies - allocate memory of this size for each thread, for copies of operands.
 * After an error each thread keeps the memory that it had. */
status plans_reserve_copies(struct matmul *m, size_t bytes);

/* plans_copy_memory - return the memory of a thread that plans_reserve_copies allocated. */
void *plans_copy_memory(const struct matmul *m, int thread);

/* plans_panels - return the functions for GEMMs of bf16 with AMX; NULL: the context uses no AMX. */
const struct panels *plans_panels(const struct matmul *m);

/* plans_divisions - return the divisions of the context. */
struct divisions *plans_divisions(struct matmul *m);
