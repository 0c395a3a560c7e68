/* The losses of preference pairs that read all pairs of a global batch: aot, aot_unpaired and sft.
 * preference_loss.h defines them. Other losses may be added to them.
 *
 * Calls     preference_batch_store for each micro-batch, preference_batch_run once for the global
 *           batch. preference_loss_run then reads the gradients
 *
 * kernels.h states the conventions of all operations. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/preference_loss.h"

/* A pair and the value by which pairs are sorted. */
struct preference_ranked {
    double value;
    int64_t pair;
};

/* PREFERENCE_RANKED: the number of elements of scratch memory for each pair. */
enum { PREFERENCE_RANKED = 4 };

/* The pairs of a global batch. All arrays are on the device. */
struct preference_batch {
    int64_t size;                          /* S pairs of a full batch */
    struct preference_pair *pairs;         /* [S] */
    struct preference_gradient *gradients; /* [S] */
    struct preference_ranked *ranked;      /* [PREFERENCE_RANKED, S] scratch memory */
};

/* preference_batch_store - store the pairs of a micro-batch. Pair i of P is pair (first + i) % S of
 * the global batch.
 *
 * Shapes    logps f64 [P, 2] on the device; the operation reads rows->first and rows->reference
 * Errors    STATUS_INTERNAL if P > S */
status preference_batch_store(struct kernels *k, const struct preference_batch *batch,
                              const double *logps, const struct preference_rows *rows,
                              int64_t first);

/* preference_batch_run - compute losses and gradients of the first `count` pairs.
 *
 * Numerics  double precision, as in preference_loss_run. Equal values keep the order of the pairs;
 *           NaN is larger than all numbers
 * Errors    STATUS_INTERNAL if count > S */
status preference_batch_run(struct kernels *k, const struct preference_batch *batch, int64_t count,
                            const struct preference_settings *settings);

/* preference_batch_compute - perform the computation of preference_batch_run for arrays in host
 * memory, without a context.
 *
 * Shapes    gradients, pairs [count];  ranked [2, count] scratch memory */
void preference_batch_compute(struct preference_gradient *gradients,
                              struct preference_ranked *ranked, const struct preference_pair *pairs,
                              int64_t count, const struct preference_settings *settings);

#ifdef __cplusplus
}
#endif
