/* Small kernels, one for each group of features, with bugs that test_planted.cc enables. */
#pragma once

#include "kernels/cuda/gpu.cuh"

enum planted_bug {
    PLANTED_NONE = 0,
    /* row_sums: a sum over a block through shared memory */
    PLANTED_SUM_NO_BARRIER,       /* scratch is read before all threads have written it */
    PLANTED_SUM_SCRATCH_REUSED,   /* scratch is overwritten before all threads have read it */
    PLANTED_SUM_SHARED_UNWRITTEN, /* the sum includes a word of memory that no thread wrote */
    /* gemm: C = A B^T by cp.async, ldmatrix and mma.sync, two stages */
    PLANTED_COPY_WAIT_WEAK,    /* the wait leaves one group too many pending */
    PLANTED_COPY_NO_BARRIER,   /* a thread does not wait for the copies of other threads */
    PLANTED_COPY_STAGE_REUSED, /* the next copy begins while other threads still read the stage */
    PLANTED_COPY_NOT_WAITED,   /* the kernel ends with a pending copy */
    PLANTED_MATRIX_MISALIGNED, /* ldmatrix from an address that is not a multiple of 16 */
    /* values: o = max(q k^T, 0) v, all tiles of k and v in the same shared memory, as in
     * attention */
    PLANTED_TILE_REUSED, /* the next tile is copied while other threads still read the last one */
    /* pipeline: C = A B^T by TMA, an mbarrier ring and wgmma, with a producer and consumers */
    PLANTED_RING_NOT_EMPTY,  /* the producer does not wait for an empty stage */
    PLANTED_WGMMA_NO_WAIT,   /* a stage is released while wgmma still reads it */
    PLANTED_WGMMA_NO_FENCE,  /* no wgmma.fence after writes to its registers */
    PLANTED_WGMMA_STALE,     /* no fence.proxy.async after writes of threads to a stage */
    PLANTED_RING_NO_FENCE,   /* no fence after the initialization of the mbarriers */
    PLANTED_RING_MISALIGNED, /* a static array moves the tiles off a multiple of 1024 bytes */
    /* outer: C = A^T B; threads store both operands, and wgmma reads them MN-major */
    PLANTED_OUTER_STALE,      /* no fence.proxy.async after the stores */
    PLANTED_OUTER_NO_SWIZZLE, /* the stores do not swizzle */
    /* turns: blocks modify the same words in turn, by bulk copies */
    PLANTED_TURN_NO_TICKET,  /* a block waits for a block that may start later */
    PLANTED_TURN_NOT_PASSED, /* a block does not pass its turn */
    PLANTED_TURN_NO_WAIT,    /* a block does not wait for its turn */
    PLANTED_TURN_NO_FENCE,   /* no fence.proxy.async.global after the wait for a turn */
    PLANTED_TURN_EARLY,      /* the turn is passed before the block has added */
    PLANTED_BULK_STALE,      /* no fence.proxy.async after writes of threads to the tile */
    PLANTED_BULK_NOT_WAITED, /* the turn is passed before the bulk copy has ended */
    PLANTED_BULK_NOT_READ,   /* the tile is overwritten before the bulk copy has read it */
    /* steps: two warps process tiles that a third one copies; a fourth one counts the steps */
    PLANTED_STEPS_AHEAD, /* arrivals at the barrier of the next step complete this step's barrier */
    /* neighbors: each thread reads the value that the next one wrote */
    PLANTED_GLOBAL_PAST_END,    /* reads one element too many */
    PLANTED_DYNAMIC_PAST_END,   /* writes one element too many to dynamic shared memory */
    PLANTED_STATIC_PAST_END,    /* the same in a static array */
    PLANTED_BARRIER_DIVERGENT,  /* two branches, a __syncthreads in each */
    PLANTED_BARRIER_COUNTS,     /* a named barrier with two different counts */
    PLANTED_BARRIER_UNREACHED,  /* one warp never arrives at a named barrier */
    PLANTED_BARRIER_LEFT,       /* a warp arrives at a named barrier at which no warp waits */
    PLANTED_SHUFFLE_ABSENT,     /* a lane of the mask does not participate */
    PLANTED_BLOCKS_SAME_WORD,   /* two blocks write the same word */
    PLANTED_SHARED_NOT_ALLOWED, /* more than 48 KiB without gpu_allow_shared */
    PLANTED_BUGS,
};

/* out[row] = sum of x[row][0..columns) + sum of the squared distances from their mean. */
void planted_row_sums(planted_bug bug, float *out, const float *x, int rows, int columns);
/* c [m, n] = a [m, k] b [n, k]^T; k a multiple of 64. */
void planted_gemm(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k);
/* o [64, 64] = max(q k^T, 0) v: q [64, 64], k and v [keys, 64], keys a multiple of 64. */
void planted_values(planted_bug bug, float *o, const bf16 *q, const bf16 *k, const bf16 *v,
                    int keys);
/* The same as planted_gemm, by TMA and wgmma. */
void planted_pipeline(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k);
/* c [64, 64] = a [128, 64]^T b [128, 64]. */
void planted_outer(planted_bug bug, float *c, const bf16 *a, const bf16 *b);
/* out[i] = 2 out[i] + x[4 i + block] for block = 0, 1, 2, 3 in this order; out has 64 elements and
 * begins with 0. words: 2, zero. */
void planted_turns(planted_bug bug, float *out, const float *x, uint32_t *words);
/* sums[step] = the sum of the 512 elements of x[step]; count = the number of steps, from zero. */
void planted_steps(planted_bug bug, float *sums, uint32_t *count, const bf16 *x, int steps);
/* out[i] = x[(i + 1) % 64] + x[i % 32] in each block of 64. Half of the last warp exits early. */
void planted_neighbors(planted_bug bug, float *out, const float *x, int blocks);
