/* bf16 GEMMs with AMX (amx.h).
 *
 * The columns of b of a unit are packed into panels, which fill the L2 cache. Then a panel of a is
 * packed and multiplied by all panels of b.
 *
 * Numerics  In calls with the same options, the order of additions depends on the inner size only,
 *           not on the unit. The bits of the output therefore do not depend on the number of
 *           threads.
 *
 * Calls     panels_find once for each context; divide, bytes and run for each GEMM */
#pragma once

#include "kernels/cpu/gemm/grid.h"

/* The functions:
 *
 *   divide  divides the output into units for a number of threads
 *   bytes   returns the memory that a thread needs for units of this size
 *   run     computes one unit on the calling thread; memory has `bytes` and is aligned to 64 bytes.
 *           If the call permits other units, `after` is called for the rows of one panel at a
 *           time, else for the whole unit. `before` is called for the whole unit */
struct panels {
    struct grid (*divide)(const struct matmul_call *call, int threads);
    size_t (*bytes)(const struct matmul_call *call, int64_t rows, int64_t columns);
    void (*run)(const struct matmul_call *call, struct matmul_block unit, void *memory);
};

/* panels_find - return the functions, or NULL if this build, processor or kernel has no AMX. */
const struct panels *panels_find(void);

/* panels_library_bytes - return the largest memory of a thread for calls within these limits. */
size_t panels_library_bytes(const struct kernels_limits *limits);
