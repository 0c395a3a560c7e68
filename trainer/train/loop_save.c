/* Checkpoints and final weights of a run. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/watchdog/watchdog.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/setup/session.h"
#include "trainer/train/loop_impl.h"

static status log_save(struct loop *loop, int64_t step)
{
    double seconds = clock_seconds() - loop->save_started_seconds;
    loop->save_seconds = fmax(loop->save_seconds, seconds);
    char folder[FILE_PATH_BYTES];
    TRY(checkpoint_step_path(loop->job->checkpoint, step, folder, sizeof folder));
    log_info("saved step %" PRId64 " in %s", step, folder);
    if (loop->job->metrics == NULL) {
        return STATUS_OK;
    }
    const struct metric fields[] = {
        metric_integer("saved_step", step),
        metric_number("seconds", seconds),
        metric_number("stall_seconds", loop->save_stall_seconds),
    };
    return metrics_write(loop->job->metrics, "checkpoint", loop->job->state.step, fields,
                         COUNT(fields));
}

status loop_publish_checkpoint(struct loop *loop)
{
    int64_t step = -1;
    job_long_phase(loop->job, "publishing a checkpoint");
    TRY(checkpoint_publish(loop->job->checkpoint, &step));
    job_long_phase(loop->job, NULL);
    if (step >= 0) {
        loop_store_local_error(loop, log_save(loop, step));
        run_report_write(&loop->report, loop->job, false);
    }
    return STATUS_OK;
}

status loop_check_replicas(struct loop *loop)
{
    struct job *job = loop->job;
    if (job->replica_check == NULL || loop->checked == job->state.step) {
        return STATUS_OK;
    }
    loop->checked = job->state.step;
    watchdog_set_phase("comparison of replicas", 0);
    TRY(sharded_optimizer_wait_all(job->optimizer));
    status result = replica_check_run(job->replica_check);
    if (result == STATUS_DIVERGED) {
        KEEP_FIRST(result, loop_publish_checkpoint(loop));
    }
    return result;
}

status loop_save_checkpoint(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->last_saved == job->state.step) {
        return STATUS_OK;
    }
    double started = clock_seconds();
    TRY(loop_check_replicas(loop));
    TRY(spike_response_copy(&loop->spikes, job));
    TRY(loop_publish_checkpoint(loop)); /* one save at a time */
    TRY(sharded_optimizer_wait_all(job->optimizer));
    struct checkpoint_tensor_set tensor_sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, tensor_sets);
    /* Sync the metrics first: after a power failure the checkpoint must not be newer. */
    if (job->metrics != NULL) {
        loop_store_local_error(loop, metrics_sync(job->metrics));
    }
    job->state.train_seconds = loop_train_seconds(loop);
    loop->save_started_seconds = clock_seconds();
    job_long_phase(job, "checkpoint");
    TRY(checkpoint_save(job->checkpoint, &job->state, tensor_sets, count, NULL));
    loop->save_stall_seconds = clock_seconds() - started;
    job_long_phase(job, NULL);
    loop->last_saved = job->state.step;
    return loop_recipe(loop)->checkpoint.async ? STATUS_OK : loop_publish_checkpoint(loop);
}

status loop_save_best(struct loop *loop)
{
    struct job *job = loop->job;
    if (!loop->improved || !loop_recipe(loop)->checkpoint.keep_best) {
        return STATUS_OK;
    }
    loop->improved = false;
    TRY(loop_publish_checkpoint(loop));
    checkpoint_pin_step(job->checkpoint, job->early_stopping.step);
    return loop_save_checkpoint(loop);
}

/* Loads the weights and the state of the best evaluation (checkpoint.keep_best). */
static status load_best(struct loop *loop, struct checkpoint_state *state)
{
    struct job *job = loop->job;
    struct checkpoint_info found = {0};
    char folder[FILE_PATH_BYTES];
    if (!loop_recipe(loop)->checkpoint.keep_best || !job->early_stopping.has_value ||
        job->early_stopping.step == job->state.step) {
        return STATUS_OK;
    }
    TRY(checkpoint_step_path(job->checkpoint, job->early_stopping.step, folder, sizeof folder));
    TRY(comm_agree(job->world, checkpoint_verify_folder(job->world, folder, &found)));
    free(found.recipe_text);
    TRY(checkpoint_load(job->world, folder, &job->state_dicts[JOB_WEIGHTS].tensor_set, 1));
    *state = found.state;
    log_info("final weights: step %" PRId64 ", with the best %s: %.6g", state->step,
             job->early_stopping_rule.metric, job->early_stopping.value);
    return STATUS_OK;
}

status loop_write_final(struct loop *loop)
{
    struct job *job = loop->job;
    char folder[FILE_PATH_BYTES];
    TRY(loop_check_replicas(loop));
    TRY(loop_publish_checkpoint(loop));
    TRY(sharded_optimizer_wait_all(job->optimizer));
    /* Final weights mean that the run is finished: after a power failure no line may be missing. */
    if (job->metrics != NULL) {
        loop_store_local_error(loop, metrics_sync(job->metrics));
    }
    /* After an error no final weights are written, so that the next start repeats this work. */
    TRY(comm_agree(job->world, status_restore(&loop->local_error)));
    TRY(file_join(folder, loop_recipe(loop)->run_dir, "final"));
    job_long_phase(job, "final weights");
    struct checkpoint_state state = job->state;
    TRY(load_best(loop, &state));
    return checkpoint_write_final(job->checkpoint, folder, &state,
                                  &job->state_dicts[JOB_WEIGHTS].tensor_set, 1);
}
