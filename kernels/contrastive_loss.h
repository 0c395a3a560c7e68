/* The contrastive loss of text pairs, in double precision.
 *
 *   m = mean of the rows h_i of a text,   u = m / max(|m|, 1e-12)
 *   loss_i = -log( exp(s u_i . v_i) / sum_j exp(s u_i . v_j) ),   s = 20
 *   dh_i = (du - (u . du) u) / (|m| rows)
 *
 * u_i and v_i are the unit vectors of the first and the second text of pair i. The second texts of
 * all other pairs of a global batch are negatives. N pairs of width C take 6 N^2 C operations.
 *
 * Calls     contrastive_loss_pool for each micro-batch, contrastive_loss_run once for the global
 *           batch, contrastive_loss_sum and contrastive_loss_backward for each micro-batch
 * Source    Reimers, Gurevych 2019, arXiv:1908.10084; sentence-transformers'
 *           MultipleNegativesRankingLoss with scale 20
 *
 * kernels.h states the conventions of all operations. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "base/tensor.h"

struct kernels;

enum { TEXTS_PER_PAIR = 2 };

/* The results of a pair. */
enum contrastive_result {
    CONTRASTIVE_LOSS,
    CONTRASTIVE_CORRECT, /* 1 if the second text of the pair has the highest score, else 0 */
    CONTRASTIVE_RESULTS
};

/* The sums over the pairs of a micro-batch. */
enum contrastive_sum {
    CONTRASTIVE_SUM_LOSS,
    CONTRASTIVE_SUM_PAIRS,
    CONTRASTIVE_SUM_CORRECT,
    CONTRASTIVE_SUMS
};

/* The pairs of a global batch. All arrays are on the device. */
struct contrastive_pairs {
    int64_t size, width; /* S pairs of a full batch; C */
    double *units;       /* f64 [S, 2, C] unit vectors */
    double *lengths;     /* f64 [S, 2] max(|m|, 1e-12) */
    double *gradients;   /* f64 [S, 2, C] of the sum of all losses, for the unit vectors */
    double *results;     /* f64 [S, CONTRASTIVE_RESULTS] */
    double *scores;      /* f64 [score_rows, S] scratch memory; not used on the CPU */
    int64_t score_rows;  /* > 0 on a GPU */
};

/* The texts of a micro-batch. Pair i of P is pair (first + i) % S of the global batch. */
struct contrastive_texts {
    int64_t pairs, first;   /* P */
    const int32_t *cu_rows; /* int32 [2 P + 1] first row of each text, and the end; no text is
                             * empty; on the device */
};

/* contrastive_loss_score_rows - return the rows of the scratch memory of a GPU for S pairs. */
int64_t contrastive_loss_score_rows(int64_t size);

/* contrastive_loss_pool - compute the unit vectors and the lengths of a micro-batch.
 *
 * Shapes    rows f32 [N, C] without gaps between rows
 * Memory    writes to the units and lengths of these pairs only
 * Numerics  rows and columns are added in their order; the bits of the CPU on all devices
 * Errors    STATUS_INTERNAL for other shapes. cu_rows is not checked */
status contrastive_loss_pool(struct kernels *k, const struct contrastive_pairs *batch,
                             struct tensor rows, const struct contrastive_texts *texts);

/* contrastive_loss_run - compute the results and the gradients of the first `count` pairs.
 *
 * Numerics  sums are added in the order of their terms. On a GPU, exp and log may differ from the
 *           CPU in the last bit
 * Errors    STATUS_INTERNAL if count > S, or without scratch memory on a GPU */
status contrastive_loss_run(struct kernels *k, const struct contrastive_pairs *batch,
                            int64_t count);

/* contrastive_loss_sum - compute the sums over pairs [first, first + count) modulo S.
 *
 * Shapes    sums f64 [CONTRASTIVE_SUMS] on the device
 * Errors    STATUS_INTERNAL if count > S */
status contrastive_loss_sum(struct kernels *k, double *sums, const struct contrastive_pairs *batch,
                            int64_t first, int64_t count);

/* contrastive_loss_backward - compute the gradients of the rows of a micro-batch.
 *
 * Shapes    gradients f32 [N, C] without gaps between rows
 * Numerics  rounded to f32; the bits of the CPU on all devices
 * Errors    as in contrastive_loss_pool */
status contrastive_loss_backward(struct kernels *k, struct tensor gradients,
                                 const struct contrastive_pairs *batch,
                                 const struct contrastive_texts *texts);

#ifdef __cplusplus
}
#endif
