#include "trainer/train/spike_response.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/linear.h"

enum { SPIKE_TEXT_BYTES = 256, DOUBLINGS_MAX = 20, WARNINGS_MAX = 10 };

static void describe_spike(const struct spike_event *e, char text[SPIKE_TEXT_BYTES])
{
    snprintf(text, SPIKE_TEXT_BYTES,
             "step %" PRId64 ": loss %.5g (score %.1f), gradient norm %.5g (score %.1f), samples "
             "%" PRId64 " to %" PRId64,
             e->step, e->loss, e->score.loss, e->gradient_norm, e->score.gradient_norm,
             e->batch.first, e->batch.end - 1);
}

status spike_response_copy(struct spike_response *response, struct job *job)
{
    if (job->rollback == NULL) {
        return STATUS_OK;
    }
    TRY(sharded_optimizer_wait_all(job->optimizer));
    if (job->state.step > response->copy.step) {
        job->state.spikes.rollbacks = 0; /* none to this copy */
    }
    response->copy = job->state;
    return comm_agree(job->world, rollback_copy(job->rollback));
}

/* Adds the spike to the spikes of the run. */
static status count_spike(struct job *job, const struct spike_event *e)
{
    struct checkpoint_spikes *spikes = &job->state.spikes;
    int64_t limit = job->session.recipe.train.max_spikes;
    char text[SPIKE_TEXT_BYTES];
    describe_spike(e, text);
    REQUIRE(spikes->count < limit && spike_add_skipped(spikes, e->skipped), STATUS_NOT_FINITE,
            "%s: more than the %" PRId64
            " spikes of train.max_spikes; the weights were not updated. Lower "
            "optimizer.learning_rate, lengthen the warm-up, or check the data",
            text, limit);
    spikes->count++;
    return STATUS_OK;
}

/* Logs a spike, unless it directly follows another one, or the session has reached the limit of
 * warnings. A run with many spikes would otherwise fill the terminal. */
static void log_spike(struct spike_response *response, const struct spike_event *e)
{
    char text[SPIKE_TEXT_BYTES];
    if (response->after_spike || response->warnings == WARNINGS_MAX) {
        return;
    }
    response->warnings++;
    describe_spike(e, text);
    log_warning("SPIKE", "%s; the weights were updated as usual (train.on_spike: warn)%s", text,
                response->warnings == WARNINGS_MAX ? "; metrics.jsonl lists the further spikes"
                                                   : "");
}

static status skip_update(struct job *job, struct spike_event *e)
{
    char text[SPIKE_TEXT_BYTES];
    e->skipped = e->batch;
    TRY(comm_agree(job->world, count_spike(job, e)));
    describe_spike(e, text);
    log_warning("SPIKE",
                "%s; the weights were not updated (spike %" PRId64 " of at most %" PRId64 ")", text,
                job->state.spikes.count, job->session.recipe.train.max_spikes);
    return STATUS_OK;
}

/* Sets the counters and the averages to those of the copy, without the abandoned steps. */
static void rewind_counters(const struct spike_response *response, struct job *job, int64_t samples)
{
    struct checkpoint_spikes spikes = job->state.spikes;
    spikes.averages = response->copy.spikes.averages;
    spikes.updated_step = response->copy.spikes.updated_step;
    job->state = response->copy;
    job->state.samples = samples;
    job->state.spikes = spikes;
}

static status roll_back(struct spike_response *response, struct job *job, struct spike_event *e)
{
    char text[SPIKE_TEXT_BYTES];
    int64_t rollbacks = job->state.spikes.rollbacks;
    int64_t doublings = number_min(rollbacks, DOUBLINGS_MAX);
    int64_t more = doublings > 0 ? INT64_C(1) << (doublings - 1) : 0;
    int64_t end = e->batch.end + more * job->session.recipe.batch.global_size;
    e->skipped = (struct checkpoint_samples){response->copy.samples, end};
    TRY(comm_agree(job->world, count_spike(job, e)));
    job->state.spikes.rollbacks++;
    job_long_phase(job, "rollback");
    TRY(sharded_optimizer_wait_all(job->optimizer));
    TRY(comm_agree(job->world, rollback_restore(job->rollback)));
    TRY(comm_agree(job->world, model_fp8_sync(job->session.model)));
    rewind_counters(response, job, end);
    describe_spike(e, text);
    log_warning("SPIKE",
                "%s; back to step %" PRId64 ", and samples %" PRId64 " to %" PRId64
                " are skipped (spike %" PRId64 " of at most %" PRId64 ")",
                text, job->state.step, e->skipped.first, e->skipped.end - 1,
                job->state.spikes.count, job->session.recipe.train.max_spikes);
    TRY(job_rewind(job));
    job_long_phase(job, NULL);
    return STATUS_OK;
}

status spike_response_apply(struct spike_response *response, struct job *job,
                            const struct step_result *result, struct spike_event *out)
{
    const struct recipe *r = &job->session.recipe;
    status done = STATUS_OK;
    *out = (struct spike_event){
        .step = job->state.step + 1,
        .batch = {job->state.samples, job->state.samples + r->batch.global_size},
        .loss = result->loss,
        .gradient_norm = result->gradient_norm,
        .score = result->spike};
    if (result->spike.is_spike) {
        switch (r->train.on_spike) {
        case ON_SPIKE_WARN:
            out->action = "warn";
            log_spike(response, out);
            break;
        case ON_SPIKE_SKIP:
            out->action = "skip";
            done = skip_update(job, out);
            break;
        case ON_SPIKE_ROLLBACK:
            out->action = "rollback";
            done = roll_back(response, job, out);
            break;
        }
    }
    response->after_spike = result->spike.is_spike;
    return done;
}

status spike_response_write(const struct job *job, const struct spike_event *e)
{
    if (e->action == NULL || job->metrics == NULL) {
        return STATUS_OK;
    }
    const struct metric fields[] = {
        metric_text("action", e->action),
        metric_integer("spike_step", e->step),
        metric_number("loss", e->loss),
        metric_number("grad_norm", e->gradient_norm),
        metric_number("loss_score", e->score.loss),
        metric_number("grad_norm_score", e->score.gradient_norm),
        metric_integer("first_sample", e->batch.first),
        metric_integer("end_sample", e->batch.end),
        metric_integer("first_skipped_sample", e->skipped.first),
        metric_integer("end_skipped_sample", e->skipped.end),
        metric_integer("spikes", job->state.spikes.count),
    };
    enum recipe_on_spike action = job->session.recipe.train.on_spike;
    int count = COUNT(fields) - (action == ON_SPIKE_WARN ? 3 : 0);
    /* A run that resumes before the step drops the line, and writes it again. */
    int64_t step = action == ON_SPIKE_ROLLBACK ? job->state.step : e->step;
    return metrics_write(job->metrics, "spike", step, fields, count);
}
