/* Losses over the whole global batch: the collect pass of a step. */
#include "trainer/train/step/step_impl.h"

/* Runs this rank's micro-batches without gradients, to collect the pairs of the global batch. A
 * rank with an error runs none, as in accumulate_gradients. */
static status collect_rank(struct step *s, int64_t step_number, status error, bool *complete)
{
    for (bool last = false, end = false; !last;) {
        struct batch batch = {0}, device_batch;
        bool all_ready = false;
        step_set_phase(s, "collect pass");
        s->abandoned = s->collected > 0 && s->parts.should_stop != NULL && s->parts.should_stop();
        status ready =
            error != STATUS_OK ? error : loader_next(s->parts.collect_loader, &batch, &last, &end);
        TRY(step_agree_on_batch(s, ready, &all_ready));
        if (!all_ready) {
            return STATUS_OK; /* another rank reports its error */
        }
        if (batch.sequences == 0) {
            continue;
        }
        TRY(step_abort_if_tensor_parallel(s, step_upload(s, &batch, &device_batch)));
        double unused[OBJECTIVE_SUMS] = {0}; /* this pass computes no loss */
        struct micro_batch m = step_get_micro_batch(s, &batch, &device_batch);
        m.step = step_number;
        m.training = true;
        m.host_sums = unused;
        TRY(step_abort_if_tensor_parallel(s, micro_batch_run(&s->context, &m)));
        s->hidden = m.hidden;
        s->collected++;
    }
    *complete = true;
    return STATUS_OK;
}

status step_collect(struct step *s, int64_t step_number, status pending_error, bool *all_ready)
{
    bool failed = false, complete = false;
    s->collected = 0;
    status result = pending_error;
    KEEP_FIRST(result, workspace_collect_begin(s->workspace));
    result = collect_rank(s, step_number, result, &complete);
    step_set_phase(s, "collect pass");
    TRY(workspace_gather(s->parts.mesh.data, s->workspace, s->parts.preference, complete, &failed));
    *all_ready = !failed;
    return result;
}
