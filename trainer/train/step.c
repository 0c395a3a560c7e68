#include "trainer/train/step.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "trainer/train/batch_upload.h"
#include "trainer/objective/workspace.h"
#include "trainer/train/loss_readback.h"
#include "trainer/train/objective_input.h"

struct step {
    struct step_parts parts;
    struct workspace *workspace;
    int64_t surveyed;     /* micro-batches that told of a loss of the whole batch, ... */
    struct tensor hidden; /* ... and what the last one went forward to */
    struct feed *feed, *evaluation_feed;
    struct batch_share *shares; /* [data-parallel ranks] */
    int64_t first_row;          /* of the packed global batch, at this rank's share */
    int64_t first_masked;       /* likewise of the rows that a head reads */
    double example_weight;
    struct batch batch; /* fetched ahead: its errors ride along with the step before */
    bool have_batch, last;
    status fetched;                                 /* what fetching it said */
    struct exact_sum sums[OBJECTIVE_SUMS], squares; /* of this rank, since the ranks last met */
    struct told *told;                              /* NULL: sums are read at once */
};

/* The one small reduction of a step: sums over the batch and its tokens, then what ranks of a tensor group
 * have each of their own: squares, errors, votes. */
enum small_sum {
    SMALL_TOKENS = OBJECTIVE_SUMS,
    SMALL_SQUARES,
    SMALL_ERRORS,
    SMALL_VOTES,
    SMALL_SUMS = SMALL_VOTES + STEP_VOTES
};

/* What this rank does from now on, for the watchdog and for profilers. */
static void phase(const struct step *s, const char *name)
{
    watchdog_phase(name, 0);
    device_range(kernels_device(s->parts.kernels), name);
}

static struct workspace_shape workspace_shape_of(const struct step_parts *p)
{
    const struct model_config *c = model_config_of(p->model);
    bool task = c->task != MODEL_WORDS;
    return (struct workspace_shape){
        .rows = p->micro_rows,
        .width = c->width,
        .task_rows = task ? c->output_rows : 0,
        .labels = task ? c->labels : 0,
        .vectors = c->task == MODEL_VECTORS,
        .batch_size = p->batch_size,
        .training = p->update != NULL,
    };
}

static status make(struct step *s)
{
    const struct step_parts *p = &s->parts;
    struct device *dev = kernels_device(p->kernels);
    struct stream *stream = kernels_stream(p->kernels);
    const struct workspace_shape shape = workspace_shape_of(p);
    TRY(feed_create(dev, stream, p->micro_rows, &s->feed));
    TRY(feed_create(dev, stream, p->micro_rows, &s->evaluation_feed));
    TRY(p->objective->tallied > 0 ? told_create(p->kernels, &s->told) : STATUS_OK);
    TRY(workspace_create(p->kernels, p->objective, &shape, &s->workspace));
    s->shares = calloc((size_t)comm_size(p->mesh.data), sizeof *s->shares);
    REQUIRE(s->shares != NULL, STATUS_INTERNAL, "out of memory for the ranks' shares");
    return STATUS_OK;
}

status step_create(const struct step_parts *parts, struct step **out)
{
    *out = NULL;
    struct step *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory for a step");
    s->parts = *parts;
    status result = make(s);
    if (result != STATUS_OK) {
        (void)step_destroy(&s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

status step_destroy(struct step **s)
{
    status result = STATUS_OK;
    if (*s != NULL) {
        KEEP_FIRST(result, feed_destroy(&(*s)->feed));
        KEEP_FIRST(result, feed_destroy(&(*s)->evaluation_feed));
        told_destroy(&(*s)->told);
        workspace_destroy(&(*s)->workspace);
        free((*s)->shares);
        free(*s);
        *s = NULL;
    }
    return result;
}

/* The last step's weights are still on their way: a layer's are waited for where they are read. */
static status on_needed(void *user, int64_t end)
{
    return update_await(user, end);
}

static struct model_input model_input_of(const struct step *s, const struct batch *batch,
                                         int64_t step, bool training, bool fresh)
{
    struct model_input input = views_input(batch);
    input.first_row = s->first_row + batch->first_row;
    input.first_output = s->first_masked + batch->first_masked;
    input.seed = s->parts.seed;
    input.step = step;
    input.training = training;
    input.fresh = fresh;
    input.needed = s->parts.update != NULL ? on_needed : NULL;
    input.user = s->parts.update;
    return input;
}

static struct objective_views views_of(const struct step *s, const struct batch *placed,
                                       const struct model_input *input, struct tensor hidden,
                                       bool gradient)
{
    float *const *gradients = gradient ? update_gradients(s->parts.update) : NULL;
    struct objective_views views = workspace_views(s->workspace);
    views_add_model(&views, s->parts.model, placed, input, hidden, gradients);
    views.preference = s->parts.preference;
    views.logps = s->parts.logps;
    views.example_weight = s->example_weight;
    views.sink = gradient ? NULL : s->parts.sink;
    return views;
}

/* ---- one micro-batch ---- */

static status require_finite(const struct step *s, double loss, const struct told_samples *samples)
{
    if (isfinite(loss)) {
        return STATUS_OK;
    }
    char named[1024];
    told_name_samples(samples, s->parts.loader, named, (int)sizeof named);
    RAISE(STATUS_NOT_FINITE,
          "the loss is %g in the micro-batch of samples %s; the weights were not updated. Lower "
          "optimizer.learning_rate, lengthen the warm-up, or look at these samples",
          loss, named);
}

static status on_final(void *user, int64_t first)
{
    struct step *s = user;
    watchdog_phase("backward", 0);
    return bucket_advance(update_buckets(s->parts.update), first);
}

/* Where sums shall be reproducible they are kept in a way that forgets the order. */
static void add_sums(struct step *s, const double own[OBJECTIVE_SUMS], double sums[OBJECTIVE_SUMS])
{
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += own[i];
        if (s->parts.reproducible) {
            exact_add(&s->sums[i], own[i]);
        }
    }
}

/* What has waited on the device and arrived. */
static status add_told(struct step *s, double sums[OBJECTIVE_SUMS])
{
    const struct told_samples *samples = NULL;
    status result = STATUS_OK;
    for (const double *own; (own = told_next(s->told, &samples)) != NULL;) {
        KEEP_FIRST(result, require_finite(s, own[OBJECTIVE_LOSS], samples));
        add_sums(s, own, sums);
    }
    return result;
}

/* The loss and its gradient; the sums at once, or where they wait. */
static status take_loss(struct step *s, const struct batch *batch, struct objective_views *views,
                        double sums[OBJECTIVE_SUMS])
{
    double own[OBJECTIVE_SUMS] = {0};
    phase(s, "loss");
    if (s->told != NULL) {
        if (told_is_full(s->told)) {
            TRY(told_pull(s->told));
            TRY(add_told(s, sums));
        }
        TRY(told_place(s->told, batch, &views->later));
        return s->parts.objective->loss(s->parts.kernels, batch, views, true, own);
    }
    TRY(s->parts.objective->loss(s->parts.kernels, batch, views, true, own));
    struct told_samples samples = told_keep_samples(batch);
    TRY(require_finite(s, own[OBJECTIVE_LOSS], &samples));
    add_sums(s, own, sums);
    return STATUS_OK;
}

/* Forward, loss and backward of a micro-batch that is where its kernels are. */
static status there_and_back(struct step *s, int64_t step, const struct batch *batch,
                             const struct batch *placed, bool fresh, double sums[OBJECTIVE_SUMS])
{
    const struct step_parts *p = &s->parts;
    struct model_input input = model_input_of(s, placed, step, true, fresh);
    struct tensor hidden = s->hidden;
    if (s->surveyed != 1) { /* else this one has gone forward, and nothing since */
        phase(s, "forward");
        TRY(model_forward(p->model, &input, &hidden));
    }
    struct bucket_set *buckets = update_buckets(p->update);
    TRY(bucket_begin_round(buckets));
    struct objective_views views = views_of(s, placed, &input, hidden, true);
    TRY(take_loss(s, batch, &views, sums));
    phase(s, "backward");
    TRY(model_backward(p->model, &input, update_gradients(p->update), on_final, s));
    return bucket_end_round(buckets);
}

/* The first of a step sets the gradients, the others add to them; after the last they are final. */
static status micro_batch(struct step *s, int64_t step, const struct batch *batch, bool fresh,
                          double sums[OBJECTIVE_SUMS])
{
    struct kernels *k = s->parts.kernels;
    struct batch placed;
    TRY(feed_take(s->feed, batch, &placed));
    const struct kernels_graph_key key = {placed.inputs, placed.rows,
                                          fresh + 2 * s->last + 4 * (s->surveyed == 1)};
    TRY(kernels_graph_begin(k, &key));
    status result = there_and_back(s, step, batch, &placed, fresh, sums);
    KEEP_FIRST(result, kernels_graph_end(k));
    return result;
}

static status fetch(struct step *s)
{
    bool end = false;
    phase(s, "data");
    s->fetched = loader_next(s->parts.loader, &s->batch, &s->last, &end);
    if (s->fetched == STATUS_OK && end) {
        s->fetched =
            status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "the training data came to an end");
    }
    if (s->fetched == STATUS_OK && s->batch.sequences > 0) {
        s->fetched = feed_start(s->feed, &s->batch);
    }
    s->have_batch = true;
    return s->fetched;
}

/* Before a step's first gradient: where this rank's rows lie in the packed global batch, and how many predictions
 * there are for each example. A rank that has not got its batch tells so when all meet. */
static status look_ahead(struct step *s)
{
    const struct mesh *mesh = &s->parts.mesh;
    if (!s->parts.objective->looks_ahead) {
        return STATUS_OK;
    }
    if (!s->have_batch) {
        (void)fetch(s);
    }
    struct batch_share mine = {0}, all = {0};
    if (s->fetched == STATUS_OK) {
        mine = s->batch.share;
    }
    TRY(comm_all_gather_bytes(mesh->data, s->shares, &mine, sizeof mine));
    for (int r = 0; r < comm_size(mesh->data); r++) {
        bool here = r == comm_rank(mesh->data) && !s->parts.reproducible;
        s->first_row = here ? all.rows : s->first_row;
        s->first_masked = here ? all.masked : s->first_masked;
        all.rows += s->shares[r].rows;
        all.masked += s->shares[r].masked;
        all.examples += s->shares[r].examples;
    }
    s->example_weight = (double)all.masked / fmax(1, (double)all.examples);
    return STATUS_OK;
}

/* The one small meeting: losses over the ranks that have other data; the rest over the world. */
static status meet(struct step *s, double small[SMALL_SUMS])
{
    const struct mesh *mesh = &s->parts.mesh;
    TRY(comm_sum_doubles(mesh->data, small, SMALL_SUMS));
    TRY(comm_sum_doubles(mesh->tensor, small + SMALL_SQUARES, SMALL_SUMS - SMALL_SQUARES));
    if (s->parts.reproducible) {
        TRY(comm_sum_exact(mesh->data, s->sums, OBJECTIVE_SUMS));
        TRY(comm_sum_exact(mesh->world, &s->squares, 1));
        for (int i = 0; i < OBJECTIVE_SUMS; i++) {
            small[i] = exact_value(&s->sums[i]);
        }
        small[SMALL_SQUARES] = exact_value(&s->squares);
    }
    memset(s->sums, 0, sizeof s->sums);
    memset(&s->squares, 0, sizeof s->squares);
    return STATUS_OK;
}

/* Ranks that share a model go through a micro-batch together or not at all. *together false and STATUS_OK:
 * another one has not got its batch, and tells why when all meet. */
static status gather_round(const struct step *s, status mine, bool *together)
{
    double failed = mine != STATUS_OK;
    TRY(comm_sum_doubles(s->parts.mesh.tensor, &failed, 1));
    *together = failed == 0;
    return mine;
}

/* In the middle of a micro-batch no rank of several that share a model can leave: the others wait for its
 * sums. A loss that is not finite is so on all of them. */
static status leave_alone(const struct step *s, status mine)
{
    if (mine != STATUS_OK && mine != STATUS_NOT_FINITE && comm_size(s->parts.mesh.tensor) > 1) {
        comm_abort(s->parts.mesh.world, mine);
    }
    return mine;
}

/* All micro-batches of this rank's share. */
static status accumulate(struct step *s, int64_t step, double sums[OBJECTIVE_SUMS],
                         struct step_result *out)
{
    for (bool last = false; !last;) {
        double start = clock_seconds();
        if (!s->have_batch) {
            (void)fetch(s);
        }
        out->data_seconds += clock_seconds() - start;
        bool together = false;
        TRY(gather_round(s, s->fetched, &together));
        if (!together) {
            return STATUS_OK;
        }
        s->have_batch = false;
        last = s->last;
        if (s->batch.sequences > 0) {
            bool fresh = out->rows == 0 || s->parts.reproducible; /* ordered sums are kept apart */
            TRY(leave_alone(s, micro_batch(s, step, &s->batch, fresh, sums)));
            out->rows += s->batch.rows;
            out->tokens += s->batch.seen;
        }
    }
    if (out->rows == 0) {
        return bucket_clear(update_buckets(s->parts.update)); /* an empty share adds nothing */
    }
    return STATUS_OK;
}

/* ---- losses of the whole batch ---- */

/* A batch that nobody fetched ahead. */
static status place_now(struct step *s, const struct batch *batch, struct batch *placed)
{
    TRY(feed_start(s->evaluation_feed, batch));
    return feed_take(s->evaluation_feed, batch, placed);
}

/* The pairs of this rank's share, without a gradient. */
static status survey_share(struct step *s, int64_t step, bool *known)
{
    const struct step_parts *p = &s->parts;
    double unused[OBJECTIVE_SUMS];
    bool end = false;
    for (bool last = false; !last;) {
        struct batch batch = {0}, placed;
        struct tensor hidden;
        bool together = false;
        phase(s, "survey");
        TRY(gather_round(s, loader_next(p->survey, &batch, &last, &end), &together));
        if (!together) {
            return STATUS_OK; /* another one tells why */
        }
        if (batch.sequences == 0) {
            continue;
        }
        TRY(leave_alone(s, place_now(s, &batch, &placed)));
        struct model_input input = model_input_of(s, &placed, step, true, false);
        TRY(leave_alone(s, model_forward(p->model, &input, &hidden)));
        s->hidden = hidden;
        s->surveyed++;
        struct objective_views views = views_of(s, &placed, &input, hidden, false);
        memset(unused, 0, sizeof unused);
        TRY(leave_alone(s, p->objective->loss(p->kernels, &batch, &views, false, unused)));
    }
    *known = true;
    return STATUS_OK;
}

/* Before the first gradient: the slopes of all pairs. All ranks come here, also one that has failed. *go: all have
 * come well. */
static status survey(struct step *s, int64_t step, status mine, bool *go)
{
    bool failed = false, known = false;
    workspace_clear(s->workspace);
    s->surveyed = 0;
    if (mine == STATUS_OK) {
        mine = survey_share(s, step, &known);
    }
    phase(s, "survey");
    TRY(workspace_gather(s->parts.mesh.data, s->workspace, s->parts.preference, known, &failed));
    *go = !failed;
    return mine;
}

/* After an evaluation's share: its loss. */
static status evaluate_whole(struct step *s, status mine, double sums[OBJECTIVE_SUMS])
{
    const struct step_parts *p = &s->parts;
    bool failed = false;
    TRY(workspace_gather(p->mesh.data, s->workspace, p->preference, mine == STATUS_OK, &failed));
    double own[OBJECTIVE_SUMS] = {0};
    if (!failed && comm_rank(p->mesh.data) == 0) {
        workspace_add_whole(s->workspace, own);
        add_sums(s, own, sums);
    }
    return mine;
}

/* ---- the end of a step ---- */

static status update(struct step *s, int64_t step, double learning_rate, struct step_result *out)
{
    double scale = 1 / fmax(1, out->sums[OBJECTIVE_COUNT]);
    out->gradient_norm *= scale;
    out->loss = objective_loss(s->parts.objective, out->sums);
    phase(s, "optimizer");
    TRY(kernels_graph_begin(s->parts.kernels, &(struct kernels_graph_key){0}));
    status result =
        update_apply(s->parts.update, step + 1, learning_rate, out->gradient_norm, scale);
    KEEP_FIRST(result, kernels_graph_end(s->parts.kernels));
    return result;
}

status step_train(struct step *s, int64_t step, double learning_rate,
                  const double votes[STEP_VOTES], status before, bool more, struct step_result *out)
{
    const struct step_parts *p = &s->parts;
    double start = clock_seconds(), small[SMALL_SUMS] = {0};
    *out = (struct step_result){0};

    TRY(look_ahead(s));
    status mine = before;
    bool go = true;
    if (p->survey != NULL) {
        mine = survey(s, step, mine, &go);
    }
    if (mine == STATUS_OK && go) {
        mine = accumulate(s, step, small, out);
    }
    phase(s, "gradient reduction");
    TRY(bucket_finish(update_buckets(p->update)));
    /* The step's one wait for the device is that for the squares, and sums come with them. */
    KEEP_FIRST(mine, told_fetch(s->told));
    KEEP_FIRST(mine, update_sum_of_squares(p->update, &s->squares));
    KEEP_FIRST(mine, add_told(s, small));
    small[SMALL_SQUARES] = exact_value(&s->squares);
    if (mine == STATUS_OK && more) {
        double waiting = clock_seconds();
        mine = fetch(s);
        out->data_seconds += clock_seconds() - waiting;
    }
    small[SMALL_TOKENS] = (double)out->tokens;
    small[SMALL_ERRORS] = mine != STATUS_OK;
    memcpy(small + SMALL_VOTES, votes, STEP_VOTES * sizeof *votes);
    phase(s, "step reduction");
    TRY(meet(s, small));

    if (small[SMALL_ERRORS] > 0) {
        return comm_agree(p->mesh.world, mine);
    }
    if (!isfinite(small[SMALL_SQUARES])) {
        return comm_agree(p->mesh.world, update_require_finite(p->update));
    }
    memcpy(out->sums, small, sizeof out->sums);
    memcpy(out->votes, small + SMALL_VOTES, sizeof out->votes);
    out->tokens = (int64_t)small[SMALL_TOKENS];
    out->gradient_norm = sqrt(small[SMALL_SQUARES]);
    TRY(update(s, step, learning_rate, out));
    device_range(kernels_device(p->kernels), NULL);
    out->total_seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* ---- evaluation ---- */

static status evaluate_batch(struct step *s, const struct batch *batch, double sums[OBJECTIVE_SUMS])
{
    const struct step_parts *p = &s->parts;
    struct batch placed;
    TRY(place_now(s, batch, &placed));
    struct model_input input = model_input_of(s, &placed, 0, false, false);
    struct tensor hidden;
    phase(s, "evaluation");
    TRY(model_forward(p->model, &input, &hidden));
    struct objective_views views = views_of(s, &placed, &input, hidden, false);
    double own[OBJECTIVE_SUMS] = {0};
    const struct told_samples *samples = NULL;
    TRY(s->told != NULL ? told_place(s->told, batch, &views.later) : STATUS_OK);
    TRY(p->objective->loss(p->kernels, batch, &views, false, own));
    TRY(told_pull(s->told));
    const double *told = told_next(s->told, &samples);
    add_sums(s, told != NULL ? told : own, sums);
    (void)told_next(s->told, &samples);
    return STATUS_OK;
}

/* This rank's share of one global batch. */
static status evaluate_share(struct step *s, struct loader *loader, double sums[OBJECTIVE_SUMS],
                             bool *end)
{
    for (bool last = false; !last && !*end;) {
        struct batch batch = {0};
        bool together = false;
        phase(s, "evaluation data");
        status fetched = loader_next(loader, &batch, &last, end);
        TRY(gather_round(s, fetched, &together));
        if (!together) {
            return STATUS_OK;
        }
        if (batch.sequences > 0) {
            TRY(leave_alone(s, evaluate_batch(s, &batch, sums)));
        }
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
        bool whole = workspace_is_whole(s->workspace);
        if (whole) {
            workspace_clear(s->workspace);
        }
        status mine = evaluate_share(s, loader, small, &end);
        mine = whole ? evaluate_whole(s, mine, small) : mine;
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
