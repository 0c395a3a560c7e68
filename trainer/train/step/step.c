#include "trainer/train/step/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/watchdog/watchdog.h"
#include "trainer/model/linear.h"
#include "trainer/train/step/step_impl.h"

void step_set_phase(const struct step *s, const char *name)
{
    watchdog_set_phase(name, 0);
    device_set_profiler_range(kernels_device(s->parts.kernels), name);
}

static status create_decision(struct step *s)
{
    struct sharded_optimizer *o = s->parts.optimizer;
    TRY(decision_create(&s->parts.mesh, s->parts.kernels,
                        optimizer_max_norm(sharded_optimizer_inner(o)), &s->decision));
    return sharded_optimizer_set_control(o, decision_control(s->decision),
                                         decision_found(s->decision));
}

static status create_parts(struct step *s)
{
    const struct step_parts *p = &s->parts;
    struct device *dev = kernels_device(p->kernels);
    struct stream *stream = kernels_stream(p->kernels);
    struct workspace_shape shape =
        micro_batch_workspace_shape(p->model, p->micro_rows, p->batch_size, p->optimizer != NULL);
    shape.ranks = comm_size(p->mesh.data);
    TRY(batch_upload_create(dev, stream, p->micro_rows, &s->upload));
    TRY(batch_upload_create(dev, stream, p->micro_rows, &s->evaluation_upload));
    for (int i = 0; i < DECISION_STEPS; i++) {
        TRY(loss_readback_create(p->kernels, &s->readbacks[i]));
    }
    s->readback = s->readbacks[0];
    bool runs_ahead = p->optimizer != NULL && !device_is_host(dev) && !p->decides_on_host;
    TRY(runs_ahead ? create_decision(s) : STATUS_OK);
    TRY(workspace_create(p->kernels, p->objective, &shape, &s->workspace));
    TRY(ALLOCATE(s->rank_counts, comm_size(p->mesh.data), "the counts of the ranks"));
    s->context = (struct micro_batch_context){
        .kernels = p->kernels,
        .model = p->model,
        .objective = p->objective,
        .workspace = s->workspace,
        .optimizer = p->optimizer,
        .preference = p->preference,
        .sink = p->sink,
        .reference_logps = p->reference_logps,
        .seed = p->seed,
        .label_smoothing = p->label_smoothing,
    };
    return STATUS_OK;
}

status step_create(const struct step_parts *parts, struct step **out)
{
    *out = NULL;
    struct step *s = NULL;
    TRY(ALLOCATE(s, 1, "a training step"));
    s->parts = *parts;
    status result = create_parts(s);
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
        decision_destroy(&(*s)->decision); /* waits for queued steps */
        KEEP_FIRST(result, batch_upload_destroy(&(*s)->upload));
        KEEP_FIRST(result, batch_upload_destroy(&(*s)->evaluation_upload));
        for (int i = 0; i < DECISION_STEPS; i++) {
            loss_readback_destroy(&(*s)->readbacks[i]);
        }
        workspace_destroy(&(*s)->workspace);
        free((*s)->rank_counts);
        free(*s);
        *s = NULL;
    }
    return result;
}

void step_set_loaders(struct step *s, struct loader *loader, struct loader *collect_loader)
{
    s->parts.loader = loader;
    s->parts.collect_loader = collect_loader;
    s->has_batch = false;
    s->read_error = STATUS_OK;
}

/* ---- one micro-batch ---- */

struct micro_batch step_get_micro_batch(const struct step *s, const struct batch *batch,
                                        const struct batch *device_batch)
{
    return (struct micro_batch){
        .batch = batch,
        .device_batch = device_batch,
        .first_row = s->first_row + batch->first_row,
        .first_output = s->first_output + batch->outputs.first,
        .example_weight = s->example_weight,
    };
}

status step_run_micro_batch(struct step *s, struct micro_batch *m)
{
    struct loss_slot *slot = NULL;
    TRY(loss_readback_add(s->readback, m->batch, &slot));
    m->device_sums = slot->device_sums;
    m->host_sums = slot->host_sums;
    return micro_batch_run(&s->context, m);
}

status step_upload(struct step *s, const struct batch *batch, struct batch *device_batch)
{
    TRY(batch_upload_begin(s->evaluation_upload, batch));
    return batch_upload_end(s->evaluation_upload, batch, device_batch);
}

void step_add_sums(struct step *s, const double micro_batch_sums[OBJECTIVE_SUMS],
                   double sums[OBJECTIVE_SUMS])
{
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += micro_batch_sums[i];
        if (s->parts.reproducible) {
            exact_add(&s->sums[i], micro_batch_sums[i]);
        }
    }
}

/* Adds the sums that have arrived from the device. */
static status add_arrived_sums(struct step *s, double sums[OBJECTIVE_SUMS])
{
    const struct loss_samples *samples = NULL;
    double micro_batch_sums[OBJECTIVE_SUMS];
    status result = STATUS_OK;
    while (loss_readback_next(s->readback, micro_batch_sums, &samples)) {
        if (!s->parts.skips_spikes) {
            KEEP_FIRST(result, loss_readback_require_finite(micro_batch_sums[OBJECTIVE_LOSS],
                                                            samples, s->parts.loader));
        }
        step_add_sums(s, micro_batch_sums, sums);
    }
    return result;
}

/* Flags of a micro-batch that change its launches: the variant of its graph. */
enum {
    GRAPH_FIRST = 1,  /* it sets the gradients */
    GRAPH_LAST = 2,   /* it is the last one of this rank in the step */
    GRAPH_HIDDEN = 4, /* the collect pass has computed its hidden states */
};

/* Runs forward, loss and backward of an uploaded micro-batch. The first micro-batch of a step sets
 * the gradients, the others add to them. */
static status train_micro_batch(struct step *s, int64_t step_number, const struct batch *batch,
                                bool first, double sums[OBJECTIVE_SUMS])
{
    struct kernels *k = s->parts.kernels;
    struct batch device_batch;
    if (loss_readback_is_full(s->readback)) {
        TRY(loss_readback_wait(s->readback));
        TRY(add_arrived_sums(s, sums));
    }
    TRY(batch_upload_end(s->upload, batch, &device_batch));
    struct micro_batch m = step_get_micro_batch(s, batch, &device_batch);
    m.step = step_number;
    m.training = m.gradient = true;
    m.first_micro_batch = first;
    m.has_hidden = s->collected == 1; /* the collect pass has run this micro-batch last */
    m.hidden = s->hidden;
    const struct kernels_graph_key key = {device_batch.inputs, device_batch.rows,
                                          (first ? GRAPH_FIRST : 0) |
                                              (s->is_last ? GRAPH_LAST : 0) |
                                              (m.has_hidden ? GRAPH_HIDDEN : 0)};
    TRY(kernels_graph_begin(k, &key));
    return kernels_graph_end(k, step_run_micro_batch(s, &m));
}

static status read_batch(struct step *s)
{
    bool end = false;
    step_set_phase(s, "data");
    s->read_error = loader_next(s->parts.loader, &s->batch, &s->is_last, &end);
    if (s->read_error == STATUS_OK && end) {
        s->read_error = RAISE_STATUS(STATUS_INTERNAL, "the training data ended");
    }
    if (s->read_error == STATUS_OK && s->batch.sequences > 0) {
        s->read_error = batch_upload_begin(s->upload, &s->batch);
    }
    s->has_batch = true;
    return s->read_error;
}

/* Counts the global batch before the first gradient of a step: the position of this rank's rows in
 * it, and the predictions per example. A batch without predictions counts as a batch with one
 * prediction, as in get_gradient_scale. A rank without a batch reports its error at the step
 * reduction. */
static status count_global_batch(struct step *s)
{
    const struct mesh *mesh = &s->parts.mesh;
    if (!s->parts.objective->needs_global_counts) {
        return STATUS_OK;
    }
    if (!s->has_batch) {
        (void)read_batch(s);
    }
    struct batch_counts own = {0}, total = {0};
    if (s->read_error == STATUS_OK) {
        own = s->batch.rank_counts;
    }
    TRY(comm_all_gather_bytes(mesh->data, s->rank_counts, &own, sizeof own));
    for (int r = 0; r < comm_size(mesh->data); r++) {
        bool is_self = r == comm_rank(mesh->data) && !s->parts.reproducible;
        s->first_row = is_self ? total.rows : s->first_row;
        s->first_output = is_self ? total.outputs : s->first_output;
        total.rows += s->rank_counts[r].rows;
        total.outputs += s->rank_counts[r].outputs;
        total.examples += s->rank_counts[r].examples;
    }
    s->example_weight = fmax(1, (double)total.outputs) / fmax(1, (double)total.examples);
    return STATUS_OK;
}

status step_reduce_stats(struct step *s, double stats[STEP_STATS])
{
    const struct mesh *mesh = &s->parts.mesh;
    TRY(comm_sum_doubles(mesh->data, stats, STEP_STATS));
    TRY(comm_sum_doubles(mesh->tensor, stats + STAT_SQUARES, STEP_STATS - STAT_SQUARES));
    if (s->parts.reproducible) {
        TRY(comm_sum_exact(mesh->data, s->sums, OBJECTIVE_SUMS));
        TRY(comm_sum_exact(mesh->world, &s->squares, 1));
        for (int i = 0; i < OBJECTIVE_SUMS; i++) {
            stats[i] = exact_value(&s->sums[i]);
        }
        stats[STAT_SQUARES] = exact_value(&s->squares);
    }
    memset(s->sums, 0, sizeof s->sums);
    memset(&s->squares, 0, sizeof s->squares);
    return STATUS_OK;
}

status step_agree_on_batch(const struct step *s, status read_error, bool *all_ready)
{
    double failed = read_error != STATUS_OK || s->abandoned;
    TRY(comm_sum_doubles(s->parts.mesh.tensor, &failed, 1));
    *all_ready = failed == 0;
    return read_error;
}

status step_abort_if_tensor_parallel(const struct step *s, status result)
{
    if (result != STATUS_OK && result != STATUS_NOT_FINITE && comm_size(s->parts.mesh.tensor) > 1) {
        comm_abort(s->parts.mesh.world, result);
    }
    return result;
}

/* Accumulates the gradients of all micro-batches of this rank. A rank with an error runs none, but
 * takes part in the agreement of its tensor-parallel group. */
static status accumulate_gradients(struct step *s, int64_t step_number, status error,
                                   double sums[OBJECTIVE_SUMS], struct step_result *out)
{
    for (bool last = false; !last;) {
        double start = clock_seconds();
        if (!s->has_batch && error == STATUS_OK) {
            (void)read_batch(s);
        }
        out->data_seconds += clock_seconds() - start;
        bool all_ready = false;
        s->abandoned = out->rows > 0 && s->parts.should_stop != NULL && s->parts.should_stop();
        TRY(step_agree_on_batch(s, error != STATUS_OK ? error : s->read_error, &all_ready));
        if (!all_ready) {
            return STATUS_OK;
        }
        s->has_batch = false;
        last = s->is_last;
        if (s->batch.sequences > 0) {
            /* with reproducible sums the buckets accumulate each micro-batch separately */
            bool first = out->rows == 0 || s->parts.reproducible;
            TRY(step_abort_if_tensor_parallel(
                s, train_micro_batch(s, step_number, &s->batch, first, sums)));
            out->rows += s->batch.rows;
            out->tokens += s->batch.tokens_seen;
        }
    }
    if (out->rows == 0) {
        return bucket_clear(
            sharded_optimizer_buckets(s->parts.optimizer)); /* a rank without samples adds zeros */
    }
    return STATUS_OK;
}

/* ---- the end of a step ---- */

/* Returns the factor from summed to mean gradients. */
static double get_gradient_scale(const struct step_result *out)
{
    return 1 / fmax(1, out->sums[OBJECTIVE_COUNT]);
}

/* Computes the loss and the gradient norm of the step from its sums, and their scores. on_device:
 * the scores that the device has computed; NULL: none. */
static void compute_loss(const struct step *s, double squares, const struct spike_state *on_device,
                         struct step_result *out)
{
    out->gradient_norm = sqrt(squares) * get_gradient_scale(out);
    out->loss = objective_loss(s->parts.objective, out->sums);
    if (on_device != NULL) {
        s->parts.spikes->averages = on_device->averages;
        out->spike = on_device->score;
        out->skipped = out->spike.is_spike;
    } else if (s->parts.spikes != NULL) {
        out->spike = spike_observe(s->parts.spikes, out->loss, out->gradient_norm,
                                   out->sums[OBJECTIVE_COUNT]);
        out->skipped = out->spike.is_spike && s->parts.skips_spikes;
    }
}

/* Checks that all ranks skip the update of this step, or none. */
static status require_same_decision(const struct step *s, const struct step_result *out)
{
    return s->parts.skips_spikes
               ? spike_require_same_decision(s->parts.mesh.world, out->spike.is_spike)
               : STATUS_OK;
}

static status apply_optimizer(struct step *s, int64_t step_number, double learning_rate,
                              const struct step_result *out)
{
    step_set_phase(s, "optimizer");
    TRY(comm_abort_on_error(s->parts.mesh.world,
                            kernels_graph_begin(s->parts.kernels, &(struct kernels_graph_key){0})));
    status result = sharded_optimizer_step(s->parts.optimizer, step_number + 1, learning_rate,
                                           out->gradient_norm, get_gradient_scale(out));
    return comm_abort_on_error(s->parts.mesh.world, kernels_graph_end(s->parts.kernels, result));
}

/* Reads the first batch of the next step, unless this rank has an error. */
static status read_next_batch(struct step *s, status result, struct step_result *out)
{
    double start = clock_seconds();
    result = result == STATUS_OK ? read_batch(s) : result;
    out->data_seconds += clock_seconds() - start;
    return result;
}

/* Waits for the sums of this rank: its losses, and the squares of the gradients that it owns. */
static status read_sums(struct step *s, status result, double stats[STEP_STATS])
{
    KEEP_FIRST(result, loss_readback_begin_copy(s->readback));
    KEEP_FIRST(result, sharded_optimizer_sum_of_squares(s->parts.optimizer, &s->squares));
    KEEP_FIRST(result, add_arrived_sums(s, stats));
    stats[STAT_SQUARES] = exact_value(&s->squares);
    return result;
}

/* Computes the loss, and updates the weights. stats: sums over all ranks. */
static status update_weights(struct step *s, int64_t step_number, double learning_rate,
                             const double stats[STEP_STATS], struct step_result *out)
{
    const struct step_parts *p = &s->parts;
    if (!isfinite(stats[STAT_SQUARES]) && !p->skips_spikes) {
        return comm_agree(p->mesh.world, sharded_optimizer_require_finite(p->optimizer));
    }
    memcpy(out->sums, stats, sizeof out->sums);
    compute_loss(s, stats[STAT_SQUARES], NULL, out);
    TRY(require_same_decision(s, out));
    TRY(model_fp8_advance(p->model, p->mesh.world, !out->skipped));
    return out->skipped ? STATUS_OK : apply_optimizer(s, step_number, learning_rate, out);
}

/* Sets the averages of spike detection on the device, unless a queued step changes them. */
static status set_averages(const struct step *s)
{
    if (!s->parts.skips_spikes || s->queued_count > 0) {
        return STATUS_OK;
    }
    struct spike_inputs loss = {.terms = 0};
    const struct objective_metric *m = objective_loss_terms(s->parts.objective);
    for (; m->name != NULL; m++) {
        REQUIRE(loss.terms < SPIKE_LOSS_TERMS, STATUS_INTERNAL, "the loss has too many terms");
        loss.sum[loss.terms] = m->sum;
        loss.count[loss.terms++] = m->count;
    }
    const struct spike_averages averages = s->parts.spikes->averages;
    return decision_set_averages(s->decision, &averages, &loss);
}

/* Queues the decision and the update. carried: sums of micro-batches that were read back. */
static status queue_update(struct step *s, int64_t step_number, double learning_rate,
                           const double carried[OBJECTIVE_SUMS], struct step_result *out)
{
    struct decision_sums *own = decision_own(s->decision);
    TRY(loss_readback_queue_sums(s->readback, s->parts.kernels, own->sums, carried));
    TRY(sharded_optimizer_queue_squares(s->parts.optimizer, &own->squares));
    TRY(loss_readback_begin_copy(s->readback));
    TRY(set_averages(s));
    TRY(decision_queue(s->decision));
    TRY(model_fp8_queue_advance(s->parts.model, s->parts.mesh.data, s->parts.mesh.tensor,
                                step_number, decision_control(s->decision)));
    TRY(decision_record(s->decision, step_number));
    TRY(apply_optimizer(s, step_number, learning_rate, out));
    device_set_profiler_range(kernels_device(s->parts.kernels), NULL);
    out->queued = true;
    s->queued[s->queued_count++] = (struct queued_step){step_number, *out};
    return STATUS_OK;
}

static void begin_step(struct step *s, int64_t step_number, struct step_result *out)
{
    *out = (struct step_result){0};
    s->abandoned = false;
    s->readback = s->readbacks[step_number % DECISION_STEPS];
    loss_readback_discard(s->readback); /* drop samples of an evaluation */
}

/* Runs the collect pass, if the step has one, and the micro-batches of this rank. */
static status compute_gradients(struct step *s, int64_t step_number, status result,
                                double sums[OBJECTIVE_SUMS], struct step_result *out)
{
    bool all_ready = true;
    if (s->parts.collect_loader != NULL) {
        result = step_collect(s, step_number, result, &all_ready);
    }
    return all_ready ? accumulate_gradients(s, step_number, result, sums, out) : result;
}

/* Reads the sums of this rank, unless the step is queued, and the first batch of the next step. A
 * device computes while this rank reads the batch. */
static status read_sums_and_batch(struct step *s, status result, bool reads_batch,
                                  double stats[STEP_STATS], struct step_result *out)
{
    bool is_host = device_is_host(kernels_device(s->parts.kernels));
    if (reads_batch && !is_host) {
        result = read_next_batch(s, result, out);
    }
    if (s->decision == NULL) {
        result = read_sums(s, result, stats);
    }
    return reads_batch && is_host ? read_next_batch(s, result, out) : result;
}

/* Adds the tokens, the error and the votes of this rank to the sums. */
static void fill_stats(const struct step *s, status result, const double votes[STEP_VOTES],
                       int64_t tokens, double stats[STEP_STATS])
{
    stats[STAT_TOKENS] = (double)tokens;
    stats[STAT_ERRORS] = result != STATUS_OK;
    stats[STAT_ABANDONED] = s->abandoned;
    memcpy(stats + STAT_VOTES, votes, STEP_VOTES * sizeof *votes);
    stats[STAT_VOTES + STEP_VOTE_STOP] += s->abandoned;
}

/* Updates the weights or queues the update, unless a rank has abandoned the step. stats: sums over
 * all ranks. carried: as in queue_update. */
static status end_step(struct step *s, int64_t step_number, double learning_rate,
                       const double stats[STEP_STATS], const double carried[OBJECTIVE_SUMS],
                       struct step_result *out)
{
    memcpy(out->votes, stats + STAT_VOTES, sizeof out->votes);
    out->abandoned = stats[STAT_ABANDONED] > 0;
    if (out->abandoned) {
        loss_readback_discard(s->readback);
        return STATUS_OK;
    }
    out->tokens = (int64_t)stats[STAT_TOKENS];
    if (s->decision != NULL) {
        return comm_abort_on_error(s->parts.mesh.world,
                                   queue_update(s, step_number, learning_rate, carried, out));
    }
    TRY(update_weights(s, step_number, learning_rate, stats, out));
    device_set_profiler_range(kernels_device(s->parts.kernels), NULL);
    out->ended_seconds = clock_seconds();
    return STATUS_OK;
}

status step_train(struct step *s, int64_t step_number, double learning_rate,
                  const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                  struct step_result *out)
{
    double start = clock_seconds(), stats[STEP_STATS] = {0}, carried[OBJECTIVE_SUMS];
    begin_step(s, step_number, out);
    /* Until step_reduce_stats an error of this rank stays in `result`: the other ranks would wait
     * for a rank that returns before these collectives. Only an error of a collective returns. */
    status result = pending_error;
    KEEP_FIRST(result, s->decision != NULL ? decision_begin(s->decision, step_number) : STATUS_OK);
    TRY(count_global_batch(s));
    result = compute_gradients(s, step_number, result, stats, out);
    step_set_phase(s, "gradient reduction");
    TRY(bucket_finish(sharded_optimizer_buckets(s->parts.optimizer)));
    memcpy(carried, stats, sizeof carried);
    result = read_sums_and_batch(s, result, has_next_step && !s->abandoned, stats, out);
    fill_stats(s, result, votes, out->tokens, stats);
    step_set_phase(s, "step reduction");
    TRY(step_reduce_stats(s, stats));
    if (stats[STAT_ERRORS] > 0) {
        return comm_agree(s->parts.mesh.world, result);
    }
    TRY(end_step(s, step_number, learning_rate, stats, carried, out));
    if (!out->abandoned && !out->queued) {
        out->total_seconds = out->ended_seconds - start;
    }
    return STATUS_OK;
}

/* ---- the results of a queued step ---- */

static status raise_gradient(const struct step *s, const struct loss_readback *readback,
                             struct not_finite found)
{
    char text[1024];
    const struct loss_samples samples = loss_readback_samples(readback);
    loss_readback_describe_samples(&samples, s->parts.loader, text, (int)sizeof text);
    return sharded_optimizer_raise_not_finite(s->parts.optimizer, found, text);
}

/* Agrees on the error of a step that is not finite. The sums are equal on all ranks. */
static status require_finite_step(const struct step *s, struct loss_readback *readback,
                                  const struct decision_result *r)
{
    struct comm *world = s->parts.mesh.world;
    if (!isfinite(r->total.sums[OBJECTIVE_LOSS])) {
        TRY(comm_agree(world, loss_readback_require_all_finite(readback, s->parts.loader)));
    } else if (!isfinite(r->total.squares)) {
        TRY(comm_agree(world, raise_gradient(s, readback, r->found)));
    } else {
        return STATUS_OK;
    }
    return comm_agree(world,
                      RAISE_STATUS(STATUS_NOT_FINITE,
                                   "the losses add up to %g and the squared gradients to %g, "
                                   "but the values of each rank are finite; the weights were not "
                                   "updated. Lower optimizer.learning_rate",
                                   r->total.sums[OBJECTIVE_LOSS], r->total.squares));
}

status step_finish(struct step *s, struct step_result *out)
{
    struct decision_result r;
    struct decision_time time;
    const struct queued_step q = s->queued[0];
    struct loss_readback *readback = s->readbacks[q.number % DECISION_STEPS];
    *out = q.result;
    TRY(decision_wait(s->decision, q.number, &r, &time));
    s->queued[0] = s->queued[1];
    s->queued_count--;
    TRY(s->parts.skips_spikes ? STATUS_OK : require_finite_step(s, readback, &r));
    loss_readback_discard(readback);
    memcpy(out->sums, r.total.sums, sizeof out->sums);
    compute_loss(s, r.total.squares, s->parts.skips_spikes ? &r.spikes : NULL, out);
    TRY(require_same_decision(s, out));
    model_fp8_finish_advance(s->parts.model, q.number, !out->skipped);
    out->total_seconds = time.total_seconds;
    out->ended_seconds = time.ended_seconds;
    return STATUS_OK;
}

bool step_runs_ahead(const struct step *s)
{
    return s->decision != NULL;
}
