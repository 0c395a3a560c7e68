/* Small kernels of every kind, each with mistakes that can be planted in it: the emulator's own test. */
#pragma once

#include "kernels/cuda/gpu.cuh"

enum planted_bug {
    PLANTED_NONE = 0,
    /* row_sums: a sum over a block through shared memory */
    PLANTED_SUM_NO_BARRIER,       /* scratch is read before all have written it */
    PLANTED_SUM_SCRATCH_REUSED,   /* scratch is written again before all have read it */
    PLANTED_SUM_SHARED_UNWRITTEN, /* a word of shared memory that nobody wrote counts */
    /* products: C = A B^T by cp.async, ldmatrix and mma.sync, two stages */
    PLANTED_COPY_WAIT_WEAK,    /* one group too many may be on its way */
    PLANTED_COPY_NO_BARRIER,   /* other threads' copies are not waited for */
    PLANTED_COPY_STAGE_REUSED, /* the next copy begins while others still read */
    PLANTED_COPY_NOT_WAITED,   /* the kernel ends with a copy on its way */
    PLANTED_MATRIX_MISALIGNED, /* ldmatrix from an address that is not a multiple of 16 */
    /* values: o = max(q k^T, 0) v, tiles of k and v one after the other in the same place, as attention has them */
    PLANTED_TILE_REUSED, /* the next tile is fetched while others still read */
    /* pipeline: the same by TMA, an mbarrier ring and wgmma, producer and consumers */
    PLANTED_RING_NOT_EMPTY, /* the producer does not wait for an empty stage */
    PLANTED_WGMMA_NO_WAIT,  /* a stage is given back while wgmma still reads it */
    PLANTED_WGMMA_NO_FENCE, /* its registers are not fenced */
    PLANTED_WGMMA_STALE,    /* what threads wrote over a stage is not fenced */
    PLANTED_RING_NO_FENCE,  /* neither are the mbarriers, when they are made */
    /* neighbours: each thread reads what the next one wrote */
    PLANTED_GLOBAL_PAST_END,   /* one element too many is read */
    PLANTED_DYNAMIC_PAST_END,  /* one element too many is written, dynamic shared memory */
    PLANTED_STATIC_PAST_END,   /* likewise in a static array */
    PLANTED_BARRIER_DIVERGENT, /* two branches, a __syncthreads in each */
    PLANTED_BARRIER_COUNTS,    /* a named barrier with two different counts */
    PLANTED_BARRIER_UNREACHED, /* a named barrier that one warp never comes to */
    PLANTED_BARRIER_LEFT,      /* a named barrier that a warp arrives at, and nobody waits at */
    PLANTED_SHUFFLE_ABSENT,    /* a lane of the mask does not take part */
    PLANTED_BLOCKS_SAME_WORD,  /* two blocks write the same word */
    PLANTED_SHARED_NOT_ASKED,  /* more than 48 KiB without asking */
    PLANTED_BUGS,
};

/* out[row] = sum of x[row][0..columns), then the largest distance from the mean is added. */
void planted_row_sums(planted_bug bug, float *out, const float *x, int rows, int columns);
/* c [m, n] = a [m, k] b [n, k]^T; k a multiple of 64. */
void planted_products(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k);
/* o [64, 64] = max(q k^T, 0) v: q [64, 64], k and v [keys, 64], keys a multiple of 64. */
void planted_values(planted_bug bug, float *o, const bf16 *q, const bf16 *k, const bf16 *v,
                    int keys);
void planted_pipeline(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k);
/* out[i] = x[(i + 1) % 64] + x[i % 32] in each block of 64. Half of the last warp leaves before. */
void planted_neighbours(planted_bug bug, float *out, const float *x, int blocks);
