/* What an objective works on beside the model's memory: values of each row, host memory of its own, the outputs of a
 * task's head; and of a loss of the whole batch, what is known of it so far. */
#pragma once

#include "comm/comm.h"
#include "trainer/objective/objective.h"

struct workspace;

enum { WORKSPACE_ROW_ARRAYS = 7 }; /* of 4 bytes a row */

struct workspace_shape {
    int64_t rows, width; /* N at most, C */
    int64_t task_rows;   /* that a task's head reads at most */
    int64_t labels;      /* outputs of it; 0: the model has no task's head */
    bool vectors;        /* the task is vectors of pairs */
    int64_t batch_size;  /* examples of a global batch; 0: the loss is a sum over them */
    bool training;       /* there are gradients */
};

/* workspace_create - *out NULL on failure.
 *
 * Memory    on k's device and on the host; the objective and k stay the caller's
 * Errors    STATUS_INTERNAL where memory does not suffice */
status workspace_create(struct kernels *k, const struct objective *objective,
                        const struct workspace_shape *shape, struct workspace **out);
void workspace_destroy(struct workspace **w);

/* workspace_views - views of all this, and of nothing else: the batch and the model are the caller's to add. */
struct objective_views workspace_views(const struct workspace *w);

/* workspace_is_whole - whether the loss is one of a whole batch. It is told first: workspace_clear, the objective's loss
 * of all micro-batches of this rank's share, workspace_gather; then it is known, and its slopes with it. */
bool workspace_is_whole(const struct workspace *w);
void workspace_clear(struct workspace *w);

/* workspace_gather - losses and slopes of the whole batch; collective over the ranks that have other data. A rank whose
 * share is not known says so: *failed on all ranks, and nothing is made. */
status workspace_gather(struct comm *data, struct workspace *w,
                        const struct preference_settings *preference, bool known, bool *failed);

/* workspace_add_whole - to sums, what a gathered batch comes to: the whole of it, so on one rank alone. */
void workspace_add_whole(const struct workspace *w, double sums[OBJECTIVE_SUMS]);
