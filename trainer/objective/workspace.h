/* The working memory of an objective: row arrays, selected rows, the outputs of a fine-tuning head,
 * and the data of a loss over the whole global batch. */
#pragma once

#include "comm/comm.h"
#include "trainer/objective/objective.h"

struct workspace;

/* Arrays of 4 bytes per row. pair_values counts as 3, because a pair has at least 2 rows. */
enum { WORKSPACE_ROW_ARRAYS = 8 };

struct workspace_shape {
    int64_t rows, width; /* largest N; C */
    int64_t task_rows;   /* most rows that a fine-tuning head reads */
    int64_t labels;      /* outputs of the fine-tuning head; 0: none */
    bool contrastive;    /* the objective is contrastive (embed) */
    int ranks;           /* of the data-parallel group */
    int64_t batch_size;  /* examples of a global batch; 0: the loss is a sum over examples */
    bool training;       /* gradients are computed */
};

/* workspace_create - allocate the working memory of an objective.
 *
 * Memory    on the device of k and on the host; k and objective remain owned by the caller. *out is
 *           NULL on failure
 * Errors    STATUS_INTERNAL if memory is exhausted */
status workspace_create(struct kernels *k, const struct objective *objective,
                        const struct workspace_shape *shape, struct workspace **out);

/* workspace_destroy - release the memory and set *w to NULL. *w may be NULL. */
void workspace_destroy(struct workspace **w);

/* workspace_input - return an objective input with the workspace's fields set.
 * The caller adds the batch and the views of the model. */
struct objective_input workspace_input(const struct workspace *w);

/* workspace_needs_whole_batch - check whether the loss reads all examples of the global batch.
 *
 * Order     such a loss takes two passes over the micro-batches. In the first pass, call
 *           workspace_collect_begin, then the objective for each micro-batch of this rank, then
 *           workspace_gather. The gradients are available in the second pass */
bool workspace_needs_whole_batch(const struct workspace *w);

/* workspace_collect_begin - start the first pass. */
status workspace_collect_begin(struct workspace *w);

/* workspace_gather - compute losses and gradients of the whole batch.
 *
 * Order     collective over the data-parallel group. A rank that has not run all of its
 *           micro-batches passes complete = false. Then *failed is true on all ranks, and nothing
 *           is computed */
status workspace_gather(struct comm *data, struct workspace *w,
                        const struct preference_settings *preference, bool complete, bool *failed);

/* workspace_add_batch_loss - add the loss of the whole gathered batch to sums.
 *
 * Order     on one rank only, because each rank holds the whole batch; waits for the device */
status workspace_add_batch_loss(const struct workspace *w, double sums[OBJECTIVE_SUMS]);
