/* The evaluation of a validation set with the parts of a training step. */
#include <math.h>
#include <string.h>

#include "trainer/train/step/step_impl.h"

/* Adds the loss over a whole global batch of an evaluation. */
static status evaluate_whole_batch(struct step *s, status result, double sums[OBJECTIVE_SUMS])
{
    const struct step_parts *p = &s->parts;
    bool failed = false;
    TRY(workspace_gather(p->mesh.data, s->workspace, p->preference, result == STATUS_OK, &failed));
    double own[OBJECTIVE_SUMS] = {0};
    if (!failed && comm_rank(p->mesh.data) == 0) {
        result = workspace_add_batch_loss(s->workspace, own);
        step_add_sums(s, own, sums);
    }
    return result;
}

static status evaluate_batch(struct step *s, const struct batch *batch, double sums[OBJECTIVE_SUMS])
{
    struct batch device_batch;
    const struct loss_samples *samples = NULL;
    double micro_batch_sums[OBJECTIVE_SUMS];
    TRY(step_upload(s, batch, &device_batch));
    struct micro_batch m = step_get_micro_batch(s, batch, &device_batch);
    step_set_phase(s, "evaluation");
    TRY(step_run_micro_batch(s, &m));
    TRY(loss_readback_wait(s->readback));
    while (loss_readback_next(s->readback, micro_batch_sums, &samples)) {
        step_add_sums(s, micro_batch_sums, sums);
    }
    return STATUS_OK;
}

/* Evaluates this rank's micro-batches of one global batch. A rank with an error evaluates none. */
static status evaluate_rank(struct step *s, struct loader *loader, status error,
                            double sums[OBJECTIVE_SUMS], bool *end)
{
    for (bool last = false; !last && !*end;) {
        struct batch batch = {0};
        bool all_ready = false;
        step_set_phase(s, "evaluation data");
        status read_error = error != STATUS_OK ? error : loader_next(loader, &batch, &last, end);
        TRY(step_agree_on_batch(s, read_error, &all_ready));
        if (!all_ready) {
            return STATUS_OK;
        }
        if (batch.sequences > 0) {
            TRY(step_abort_if_tensor_parallel(s, evaluate_batch(s, &batch, sums)));
        }
    }
    return STATUS_OK;
}

/* The ranks reduce their sums after each global batch, so that none runs ahead for longer than a
 * deadline and an error ends the evaluation at once. */
status step_evaluate(struct step *s, struct loader *loader, struct step_ballot *ballot,
                     double sums[OBJECTIVE_SUMS])
{
    memset(sums, 0, OBJECTIVE_SUMS * sizeof *sums);
    for (bool end = false; !end;) {
        double stats[STEP_STATS] = {0};
        bool needs_whole_batch = workspace_needs_whole_batch(s->workspace);
        status begun = needs_whole_batch ? workspace_collect_begin(s->workspace) : STATUS_OK;
        status result = evaluate_rank(s, loader, begun, stats, &end);
        result = needs_whole_batch ? evaluate_whole_batch(s, result, stats) : result;
        if (result == STATUS_OK && !isfinite(stats[OBJECTIVE_LOSS])) {
            result = RAISE_STATUS(STATUS_NOT_FINITE,
                                  "the validation loss is %g; the weights are damaged, or "
                                  "optimizer.learning_rate is too high",
                                  stats[OBJECTIVE_LOSS]);
        }
        stats[STAT_ERRORS] = result != STATUS_OK;
        if (ballot != NULL) {
            ballot->cast(ballot->user, stats + STAT_VOTES);
        }
        TRY(step_reduce_stats(s, stats));
        if (stats[STAT_ERRORS] > 0) {
            return comm_agree(s->parts.mesh.world, result);
        }
        for (int i = 0; i < OBJECTIVE_SUMS; i++) {
            sums[i] += stats[i];
        }
        if (ballot != NULL) {
            memcpy(ballot->votes, stats + STAT_VOTES, sizeof ballot->votes);
            end = end || ballot->votes[STEP_VOTE_STOP] > 0 || ballot->votes[STEP_VOTE_WALL] > 0;
        }
    }
    return STATUS_OK;
}
