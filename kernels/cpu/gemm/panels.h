/* bf16 GEMMs with AMX (amx.h).
 *
 * The columns of b of a unit are packed into panels, which fill the L2 cache. Then a panel of a is
 * packed and multiplied by all panels of b.
 *
 * Numerics  In calls with the same options, the order of additions depends on the inner size only,
 *           not on the unit. The bits of the output therefore do not depend on the number of
 *           threads.
 *
 * Calls     panels_find for each context that uses AMX; divide, bytes and run for each GEMM */
#pragma once

#include "kernels/cpu/gemm/grid.h"

/* The functions:
 *
 *   divide  divides the output into units for a number of threads
 *   bytes   returns the memory that a thread needs for units of this size
 *   run     computes one unit on the calling thread. `memory` has the size that `bytes` returns and
 *           is aligned to 64 bytes. `before` is called for the whole unit. With keep_units, `after`
 *           is called for the whole unit. Otherwise it is called for each panel of rows */
struct panels {
    struct grid (*divide)(const struct matmul_call *call, int threads);
    size_t (*bytes)(const struct matmul_call *call, int64_t rows, int64_t columns);
    void (*run)(const struct matmul_call *call, struct matmul_block unit, void *memory);
};

/* panels_find - return the functions, or NULL if this build, processor or kernel has no AMX. */
const struct panels *panels_find(void);

/* panels_library_bytes - return the largest memory of a thread for calls within these limits. */
size_t panels_library_bytes(const struct kernels_limits *limits);
