#include "trainer/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/partition.h"

struct step {
    struct step_parts parts;
    float *gradients; /* f32 [elements], sums over tokens */
    struct bucket_set *buckets;
    float *losses;      /* f32 [micro_rows] */
    struct batch batch; /* fetched ahead: its errors ride along with the step before */
    bool have_batch, last;
    status fetched; /* what fetching it said */
};

/* The one small reduction of a step: sums, then these, then the votes. */
enum small_sum {
    SMALL_SQUARES = OBJECTIVE_SUMS,
    SMALL_ERRORS,
    SMALL_VOTES,
    SMALL_SUMS = SMALL_VOTES + STEP_VOTES
};

status step_create(const struct step_parts *parts, struct step **out)
{
    *out = NULL;
    struct step *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory for a step");
    s->parts = *parts;
    status result = STATUS_OK;
    int64_t elements = model_elements(parts->model);
    s->losses = malloc((size_t)parts->micro_rows * sizeof *s->losses);
    REQUIRE_GOTO(result, fail, s->losses != NULL, STATUS_INTERNAL, "out of memory for losses");
    if (parts->optimizer != NULL) {
        TRY_GOTO(result, fail,
                 comm_allocate(parts->mesh.data, (size_t)elements * sizeof(float),
                               (void **)&s->gradients));
        TRY_GOTO(result, fail,
                 bucket_create(parts->mesh.data, s->gradients, elements, parts->bucket_elems,
                               &s->buckets));
    }
    *out = s;
    return STATUS_OK;
fail:
    (void)step_destroy(&s);
    return result;
}

status step_destroy(struct step **s)
{
    status result = STATUS_OK;
    if (*s != NULL) {
        KEEP_FIRST(result, bucket_destroy(&(*s)->buckets));
        if ((*s)->gradients != NULL) {
            KEEP_FIRST(result, comm_free((*s)->parts.mesh.data, (*s)->gradients));
        }
        free((*s)->losses);
        free(*s);
        *s = NULL;
    }
    return result;
}

static struct model_input model_input_of(const struct step *s, const struct batch *batch,
                                         int64_t step, bool training, bool fresh)
{
    return (struct model_input){
        .rows = batch->rows,
        .tokens = batch->inputs,
        .positions = batch->positions,
        .segments = batch->segments,
        .cu_rows = batch->cu_rows,
        .longest = batch->tokens,
        .first_row = batch->first_row,
        .seed = s->parts.seed,
        .step = step,
        .training = training,
        .fresh = fresh,
    };
}

static struct objective_views views_of(const struct step *s, struct tensor hidden, bool gradient,
                                       bool fresh)
{
    struct model *m = s->parts.model;
    struct objective_views views = {
        .hidden = hidden,
        .head = model_head(m),
        .vocabulary = model_config_of(m)->vocabulary,
        .fresh = fresh,
        .losses = s->losses,
    };
    if (gradient) {
        views.hidden_gradient = tensor_rows(model_hidden_gradient(m), 0, hidden.rows);
        views.head_gradient = model_head_gradient(m, s->gradients);
    }
    return views;
}

/* ---- one micro-batch ---- */

static status require_finite(double loss, const struct batch *batch)
{
    if (isfinite(loss)) {
        return STATUS_OK;
    }
    char samples[256] = "";
    int used = 0;
    for (int64_t i = 0; i < batch->sequences && used < 200; i++) {
        used += snprintf(samples + used, sizeof samples - (size_t)used, " %lld",
                         (long long)batch->samples[i]);
    }
    RAISE(STATUS_NOT_FINITE,
          "the loss is %g in the micro-batch of samples%s; the weights were not updated. Lower "
          "optimizer.learning_rate, lengthen the warm-up, or look at these samples",
          loss, samples);
}

/* A layer's gradients are done: the main thread lives. */
static status on_layer(void *user, int64_t first)
{
    (void)user;
    (void)first;
    watchdog_phase("backward", 0);
    return STATUS_OK;
}

static status on_final(void *user, int64_t first)
{
    struct step *s = user;
    watchdog_phase("backward", 0);
    TRY(bucket_advance(s->buckets, first));
    return comm_progress(s->parts.mesh.data);
}

/* The first of a step sets the gradients, the others add to them; after the last they are final. */
static status micro_batch(struct step *s, int64_t step, const struct batch *batch, bool fresh,
                          bool last, double sums[OBJECTIVE_SUMS])
{
    const struct step_parts *p = &s->parts;
    struct model_input input = model_input_of(s, batch, step, true, fresh);
    struct tensor hidden;
    watchdog_phase("forward", 0);
    TRY(model_forward(p->model, &input, &hidden));
    struct objective_views views = views_of(s, hidden, true, fresh);
    double own[OBJECTIVE_SUMS] = {0};
    watchdog_phase("loss", 0);
    TRY(p->objective->loss(p->kernels, batch, &views, true, own));
    TRY(require_finite(own[OBJECTIVE_LOSS], batch));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += own[i];
    }
    watchdog_phase("backward", 0);
    return model_backward(p->model, &input, s->gradients, last ? on_final : on_layer, s);
}

static status fetch(struct step *s)
{
    bool end = false;
    watchdog_phase("data", 0);
    s->fetched = loader_next(s->parts.loader, &s->batch, &s->last, &end);
    s->have_batch = true;
    return s->fetched;
}

/* The one small meeting: sums over the ranks that have other data; errors and votes over the world. */
static status meet(const struct step *s, double small[SMALL_SUMS])
{
    TRY(comm_sum_doubles(s->parts.mesh.data, small, SMALL_SUMS));
    return comm_sum_doubles(s->parts.mesh.tensor, small + SMALL_ERRORS, SMALL_SUMS - SMALL_ERRORS);
}

/* All micro-batches of this rank's share. */
static status accumulate(struct step *s, int64_t step, double sums[OBJECTIVE_SUMS],
                         struct step_result *out)
{
    for (bool last = false; !last;) {
        double start = clock_seconds();
        if (!s->have_batch) {
            TRY(fetch(s));
        }
        out->data_seconds += clock_seconds() - start;
        TRY(s->fetched);
        s->have_batch = false;
        last = s->last;
        if (s->batch.sequences > 0) {
            TRY(micro_batch(s, step, &s->batch, out->rows == 0, last, sums));
            out->rows += s->batch.rows;
        }
    }
    if (out->rows == 0) {
        return device_zero(kernels_device(s->parts.kernels), kernels_stream(s->parts.kernels),
                           s->gradients,
                           (size_t)model_elements(s->parts.model) * sizeof *s->gradients);
    }
    return STATUS_OK;
}

/* ---- the end of a step ---- */

/* Which tensor made the squared norm not finite: looked for in this rank's share only. */
static status require_finite_gradients(const struct step *s, struct range share)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(s->parts.model, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        for (int64_t e = 0; e < p->rows * p->columns; e++) {
            int64_t at = p->first + e;
            bool mine = at >= share.first && at < share.first + share.count;
            REQUIRE(!mine || isfinite(s->gradients[at]), STATUS_NOT_FINITE,
                    "the gradient of %s is %g at element %lld, with a finite loss on every rank; "
                    "the weights were not updated. Lower optimizer.learning_rate or use fp32",
                    p->name, (double)s->gradients[at], (long long)e);
        }
    }
    return STATUS_OK;
}

static status update(struct step *s, int64_t step, double learning_rate, struct step_result *out)
{
    const struct step_parts *p = &s->parts;
    double scale = 1 / fmax(1, out->sums[OBJECTIVE_COUNT]);
    out->gradient_norm *= scale;
    out->loss = out->sums[OBJECTIVE_LOSS] * scale;
    scale *= optimizer_clip(p->optimizer, out->gradient_norm);
    watchdog_phase("optimizer", 0);
    return optimizer_update(p->optimizer, model_weights(p->model), model_copy(p->model),
                            s->gradients, step + 1, learning_rate, scale);
}

status step_train(struct step *s, int64_t step, double learning_rate,
                  const double votes[STEP_VOTES], status before, bool more, struct step_result *out)
{
    const struct step_parts *p = &s->parts;
    struct comm *data = p->mesh.data;
    double start = clock_seconds(), small[SMALL_SUMS] = {0};
    *out = (struct step_result){0};

    status mine = before;
    if (mine == STATUS_OK) {
        mine = accumulate(s, step, small, out);
    }
    watchdog_phase("gradient reduction", 0);
    TRY(bucket_finish(s->buckets));
    struct range share =
        partition_share(model_elements(p->model), 1, comm_size(data), comm_rank(data));
    KEEP_FIRST(mine, sum_of_squares(p->kernels, &small[SMALL_SQUARES], s->gradients + share.first,
                                    share.count));
    if (mine == STATUS_OK && more) {
        double waiting = clock_seconds();
        mine = fetch(s);
        out->data_seconds += clock_seconds() - waiting;
    }
    small[SMALL_ERRORS] = mine != STATUS_OK;
    memcpy(small + SMALL_VOTES, votes, STEP_VOTES * sizeof *votes);
    watchdog_phase("step reduction", 0);
    TRY(meet(s, small));

    if (small[SMALL_ERRORS] > 0) {
        return comm_agree(p->mesh.world, mine);
    }
    if (!isfinite(small[SMALL_SQUARES])) {
        return comm_agree(p->mesh.world, require_finite_gradients(s, share));
    }
    memcpy(out->sums, small, sizeof out->sums);
    memcpy(out->votes, small + SMALL_VOTES, sizeof out->votes);
    out->gradient_norm = sqrt(small[SMALL_SQUARES]);
    TRY(update(s, step, learning_rate, out));
    out->total_seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* ---- evaluation ---- */

/* This rank's share of one global batch. */
static status evaluate_share(struct step *s, struct loader *loader, double sums[OBJECTIVE_SUMS],
                             bool *end)
{
    const struct step_parts *p = &s->parts;
    for (bool last = false; !last && !*end;) {
        struct batch batch;
        watchdog_phase("evaluation data", 0);
        TRY(loader_next(loader, &batch, &last, end));
        if (batch.sequences == 0) {
            continue;
        }
        struct model_input input = model_input_of(s, &batch, 0, false, false);
        struct tensor hidden;
        watchdog_phase("evaluation", 0);
        TRY(model_forward(p->model, &input, &hidden));
        struct objective_views views = views_of(s, hidden, false, false);
        TRY(p->objective->loss(p->kernels, &batch, &views, false, sums));
    }
    return STATUS_OK;
}

/* The ranks meet after each global batch: none runs ahead for longer than a deadline, and an error is
 * told at once. */
status step_evaluate(struct step *s, struct loader *loader, struct step_ballot *ballot,
                     double sums[OBJECTIVE_SUMS])
{
    memset(sums, 0, OBJECTIVE_SUMS * sizeof *sums);
    for (bool end = false; !end;) {
        double small[SMALL_SUMS] = {0};
        status mine = evaluate_share(s, loader, small, &end);
        if (mine == STATUS_OK && !isfinite(small[OBJECTIVE_LOSS])) {
            mine = status_raise(STATUS_NOT_FINITE, __FILE__, __LINE__,
                                "the held-out loss is %g: the weights are damaged, or "
                                "optimizer.learning_rate is too high",
                                small[OBJECTIVE_LOSS]);
        }
        small[SMALL_ERRORS] = mine != STATUS_OK;
        if (ballot != NULL) {
            ballot->cast(ballot->user, small + SMALL_VOTES);
        }
        TRY(meet(s, small));
        if (small[SMALL_ERRORS] > 0) {
            return comm_agree(s->parts.mesh.world, mine);
        }
        for (int i = 0; i < OBJECTIVE_SUMS; i++) {
            sums[i] += small[i];
        }
        if (ballot != NULL) {
            memcpy(ballot->votes, small + SMALL_VOTES, sizeof ballot->votes);
            end = end || ballot->votes[VOTE_STOP] > 0 || ballot->votes[VOTE_WALL] > 0;
        }
    }
    return STATUS_OK;
}
