#include "trainer/objective/workspace.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/objective/contrastive_batch.h"
#include "trainer/objective/pair_loss.h"
#include "trainer/objective/task_head.h"

struct workspace {
    struct kernels *kernels;
    struct objective_input input; /* views of the memory below */
    struct mirror row_mirror;     /* WORKSPACE_ROW_ARRAYS arrays */
    struct task_head task_head;
    struct pair_loss_batch pairs;         /* for a preference loss of the whole batch */
    struct contrastive_batch contrastive; /* for a contrastive loss of the whole batch */
    /* PER_EXAMPLE: the loss is a sum over examples. Otherwise the state of a whole-batch loss. */
    enum { PER_EXAMPLE, COLLECTING, GATHERED } phase;
};

static void assign_row_arrays(struct workspace *w, int64_t rows)
{
    struct objective_scratch *scratch = &w->input.scratch;
    scratch->row_mirror = &w->row_mirror;
    scratch->pair_values = w->row_mirror.device_data; /* first, for its alignment */
    scratch->row_scales = (float *)w->row_mirror.device_data + 3 * rows;
    scratch->losses = scratch->row_scales + rows;
    scratch->entropies = scratch->losses + rows;
    scratch->mean_logits = scratch->entropies + rows;
    scratch->argmax = (int32_t *)(scratch->mean_logits + rows);
}

static status allocate_tensor(struct workspace *w, const struct workspace_shape *shape,
                              const char *name, struct tensor *out)
{
    struct tensor t = tensor_view(NULL, kernels_dtype(w->kernels), shape->rows, shape->width);
    TRY(device_allocate(kernels_device(w->kernels), tensor_bytes(t), name, &t.data));
    *out = t;
    return STATUS_OK;
}

static void release_tensor(struct workspace *w, struct tensor t)
{
    if (t.data != NULL) {
        device_release(kernels_device(w->kernels), t.data, tensor_bytes(t));
    }
}

static status allocate_selected_rows(struct workspace *w, const struct workspace_shape *shape)
{
    struct objective_scratch *scratch = &w->input.scratch;
    if (shape->batch_size > 0) {
        TRY(pair_loss_create(w->kernels, shape->batch_size, shape->ranks, &w->pairs));
        w->input.whole_batch.collected_pairs = &w->pairs;
    }
    TRY(allocate_tensor(w, shape, "the selected rows", &scratch->selected_rows));
    if (shape->training) {
        TRY(allocate_tensor(w, shape, "the gradient of the selected rows",
                            &scratch->selected_gradient));
    }
    return STATUS_OK;
}

static status allocate_workspace(struct workspace *w, const struct objective *objective,
                                 const struct workspace_shape *shape)
{
    struct kernels *k = w->kernels;
    size_t bytes = WORKSPACE_ROW_ARRAYS * (size_t)shape->rows * sizeof *w->input.scratch.losses;
    TRY(mirror_create(kernels_device(k), kernels_stream(k), bytes,
                      "the row arrays of the objective", &w->row_mirror));
    assign_row_arrays(w, shape->rows);
    if (shape->labels > 0) {
        TRY(task_head_create(k, shape->task_rows, shape->labels, &w->task_head));
        w->input.task_head = &w->task_head;
    }
    if (shape->contrastive && shape->batch_size > 0) {
        TRY(contrastive_batch_create(k, shape->batch_size, shape->width, shape->ranks,
                                     &w->contrastive));
        w->input.whole_batch.contrastive = &w->contrastive;
    }
    return objective->selects_rows ? allocate_selected_rows(w, shape) : STATUS_OK;
}

status workspace_create(struct kernels *k, const struct objective *objective,
                        const struct workspace_shape *shape, struct workspace **out)
{
    *out = NULL;
    struct workspace *w = NULL;
    TRY(ALLOCATE(w, 1, "an objective's workspace"));
    w->kernels = k;
    status result = allocate_workspace(w, objective, shape);
    if (result != STATUS_OK) {
        workspace_destroy(&w);
        return result;
    }
    *out = w;
    return STATUS_OK;
}

void workspace_destroy(struct workspace **w)
{
    if (*w != NULL) {
        release_tensor(*w, (*w)->input.scratch.selected_rows);
        release_tensor(*w, (*w)->input.scratch.selected_gradient);
        mirror_destroy(&(*w)->row_mirror);
        task_head_destroy(&(*w)->task_head);
        pair_loss_destroy(&(*w)->pairs);
        contrastive_batch_destroy(&(*w)->contrastive);
        free(*w);
        *w = NULL;
    }
}

struct objective_input workspace_input(const struct workspace *w)
{
    struct objective_input in = w->input;
    in.whole_batch.size = w->pairs.pairs.size;
    if (w->phase != COLLECTING) {
        in.whole_batch.collected_pairs = NULL;
    }
    in.whole_batch.gradients = w->phase == GATHERED ? w->pairs.pairs.gradients : NULL;
    in.whole_batch.contrastive_phase = w->phase == COLLECTING ? CONTRASTIVE_COLLECTING
                                       : w->phase == GATHERED ? CONTRASTIVE_READY
                                                              : CONTRASTIVE_ALONE;
    return in;
}

/* ---- losses of the whole batch ---- */

bool workspace_needs_whole_batch(const struct workspace *w)
{
    return w->pairs.pairs.size > 0 || w->contrastive.pairs.size > 0;
}

status workspace_collect_begin(struct workspace *w)
{
    w->phase = COLLECTING;
    return w->contrastive.pairs.size > 0 ? contrastive_batch_clear(&w->contrastive)
                                         : pair_loss_clear(&w->pairs);
}

status workspace_gather(struct comm *data, struct workspace *w,
                        const struct preference_settings *preference, bool complete, bool *failed)
{
    w->phase = GATHERED;
    if (w->contrastive.pairs.size > 0) {
        return contrastive_batch_gather(data, &w->contrastive, complete, failed);
    }
    return pair_loss_gather(data, preference, &w->pairs, complete, failed);
}

status workspace_add_batch_loss(const struct workspace *w, double sums[OBJECTIVE_SUMS])
{
    double batch_sums[CONTRASTIVE_SUMS] = {0};
    if (w->pairs.pairs.size > 0) {
        return pair_loss_add_losses(&w->pairs, &sums[OBJECTIVE_LOSS]);
    }
    if (w->contrastive.pairs.size > 0) {
        TRY(contrastive_batch_read_sums(&w->contrastive, batch_sums));
    }
    sums[OBJECTIVE_LOSS] += batch_sums[CONTRASTIVE_SUM_LOSS];
    sums[OBJECTIVE_COUNT + 1] += batch_sums[CONTRASTIVE_SUM_CORRECT];
    return STATUS_OK;
}
