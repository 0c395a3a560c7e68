#include "trainer/objective/workspace.h"

#include <stdlib.h>

#include "trainer/objective/task_head.h"
#include "trainer/objective/pair_loss.h"
#include "trainer/objective/contrastive_loss.h"

struct workspace {
    struct kernels *kernels;
    struct objective_views views;         /* of the memory below */
    struct mirror made;                   /* WORKSPACE_ROW_ARRAYS, on the device */
    struct head_memory task;              /* of a task's head */
    struct whole_batch pairs;             /* of a loss of the whole batch, ... */
    struct whole_vectors vectors;         /* ... or these instead */
    enum { APART, TELLING, KNOWN } phase; /* APART: the loss is a sum over examples */
};

static void place_rows(struct workspace *w, int64_t rows)
{
    struct objective_views *v = &w->views;
    v->made = &w->made;
    v->row_scales = w->made.placed;
    v->losses = v->row_scales + rows;
    v->entropies = v->losses + rows;
    v->mean_logits = v->entropies + rows;
    v->best = (int32_t *)(v->mean_logits + rows);
    v->some_index = v->best + rows;
    v->some_targets = v->some_index + rows;
}

static size_t some_bytes(struct tensor some)
{
    return (size_t)(some.rows * some.columns) * dtype_bytes(some.dtype);
}

static status allocate_some(struct workspace *w, const struct workspace_shape *shape,
                            const char *what, struct tensor *out)
{
    void *data = NULL;
    struct tensor some = tensor_view(NULL, kernels_dtype(w->kernels), shape->rows, shape->width);
    TRY(device_allocate(kernels_device(w->kernels), some_bytes(some), what, &data));
    *out = tensor_view(data, some.dtype, some.rows, some.columns);
    return STATUS_OK;
}

static void release_some(struct workspace *w, struct tensor some)
{
    if (some.data != NULL) {
        device_release(kernels_device(w->kernels), some.data, some_bytes(some));
    }
}

static status take_scratch(struct workspace *w, const struct objective *objective,
                           const struct workspace_shape *shape)
{
    struct objective_views *v = &w->views;
    if (shape->batch_size > 0) {
        TRY(whole_batch_create(shape->batch_size, &w->pairs));
    }
    v->scratch = malloc(objective->scratch_bytes(shape->rows));
    REQUIRE(v->scratch != NULL, STATUS_INTERNAL, "out of memory for the objective");
    TRY(allocate_some(w, shape, "rows to learn", &v->some_rows));
    if (shape->training) {
        TRY(allocate_some(w, shape, "the gradient of rows to learn", &v->some_gradient));
    }
    return STATUS_OK;
}

static status make(struct workspace *w, const struct objective *objective,
                   const struct workspace_shape *shape)
{
    struct kernels *k = w->kernels;
    size_t bytes = WORKSPACE_ROW_ARRAYS * (size_t)shape->rows * sizeof *w->views.losses;
    TRY(mirror_create(kernels_device(k), kernels_stream(k), bytes, "losses", &w->made));
    place_rows(w, shape->rows);
    if (shape->labels > 0) {
        TRY(head_create(k, shape->task_rows, shape->labels, &w->task));
        w->views.task = &w->task;
    }
    if (shape->vectors && shape->batch_size > 0) {
        TRY(whole_vectors_create(shape->batch_size, shape->width, &w->vectors));
        w->views.vectors = &w->vectors;
    }
    if (objective->scratch_bytes != NULL) {
        TRY(take_scratch(w, objective, shape));
    }
    return STATUS_OK;
}

status workspace_create(struct kernels *k, const struct objective *objective,
                        const struct workspace_shape *shape, struct workspace **out)
{
    *out = NULL;
    struct workspace *w = calloc(1, sizeof *w);
    REQUIRE(w != NULL, STATUS_INTERNAL, "out of memory for an objective's workspace");
    w->kernels = k;
    status result = make(w, objective, shape);
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
        release_some(*w, (*w)->views.some_rows);
        release_some(*w, (*w)->views.some_gradient);
        free((*w)->views.scratch);
        mirror_destroy(&(*w)->made);
        head_destroy(&(*w)->task);
        whole_batch_destroy(&(*w)->pairs);
        whole_vectors_destroy(&(*w)->vectors);
        free(*w);
        *w = NULL;
    }
}

struct objective_views workspace_views(const struct workspace *w)
{
    struct objective_views views = w->views;
    views.batch_pairs = w->phase == TELLING ? w->pairs.pairs : NULL;
    views.batch_slopes = w->phase == KNOWN ? w->pairs.slopes : NULL;
    views.batch_size = w->pairs.size;
    views.vectors_known = w->phase == KNOWN;
    return views;
}

/* ---- losses of the whole batch ---- */

bool workspace_is_whole(const struct workspace *w)
{
    return w->pairs.size > 0 || w->vectors.size > 0;
}

void workspace_clear(struct workspace *w)
{
    w->phase = TELLING;
    if (w->vectors.size > 0) {
        whole_vectors_clear(&w->vectors);
    } else {
        whole_batch_clear(&w->pairs);
    }
}

status workspace_gather(struct comm *data, struct workspace *w,
                        const struct preference_settings *preference, bool known, bool *failed)
{
    w->phase = KNOWN;
    return w->vectors.size > 0 ? whole_vectors_gather(data, &w->vectors, known, failed)
                               : whole_batch_gather(data, preference, &w->pairs, known, failed);
}

void workspace_add_whole(const struct workspace *w, double sums[OBJECTIVE_SUMS])
{
    for (int64_t i = 0; i < w->pairs.size; i++) {
        sums[OBJECTIVE_LOSS] += w->pairs.pairs[i].tokens[CHOSEN] > 0 ? w->pairs.slopes[i].loss : 0;
    }
    for (int64_t i = 0; i < w->vectors.size; i++) {
        sums[OBJECTIVE_LOSS] += w->vectors.losses[i];
        sums[OBJECTIVE_COUNT + 1] += w->vectors.right[i];
    }
}
