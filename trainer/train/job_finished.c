/* The end of a run: which steps and evaluations are done. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "trainer/formats/checkpoint/manifest.h"
#include "trainer/train/job_impl.h"

bool job_reached_end(const struct job *job)
{
    double limit = 60 * job->session.recipe.train.max_minutes;
    return job->state.step >= job->total_steps ||
           (limit > 0 && job->state.train_seconds >= limit) ||
           early_stopping_should_stop(&job->early_stopping_rule, &job->early_stopping);
}

const char *job_end_reason(const struct job *job)
{
    return job->state.step >= job->total_steps ? "max_steps"
           : early_stopping_should_stop(&job->early_stopping_rule, &job->early_stopping)
               ? "patience"
               : "max_minutes";
}

void job_log_time_limit(const struct job *job)
{
    if (strcmp(job_end_reason(job), "max_minutes") == 0) {
        log_text("train.max_minutes=%g ended the run at step %" PRId64 " of %" PRId64
                 "; start it with a larger value, or null, to continue",
                 job->session.recipe.train.max_minutes, job->state.step, job->total_steps);
    }
}

void job_log_finished(const struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    const char *reason = job_end_reason(job);
    bool beyond = job->state.step > job->total_steps;
    if (strcmp(reason, "max_steps") == 0) {
        log_text("%s is finished: %" PRId64 " steps are done%s%s%s", r->run_dir, job->state.step,
                 beyond ? ", more than the recipe requires; nothing was trained" : "; a larger ",
                 beyond                ? ""
                 : r->train.epochs > 0 ? "train.epochs"
                                       : "train.max_steps",
                 beyond ? "" : " continues it");
        return;
    }
    log_info("%s ended in an earlier session; nothing was trained", r->run_dir);
    job_log_time_limit(job);
    if (strcmp(reason, "patience") == 0) {
        log_text("evaluate.patience=%" PRId64 " ended the run at step %" PRId64 " of %" PRId64
                 "; start it with a larger value, or null, to continue",
                 r->evaluate.patience, job->state.step, job->total_steps);
    }
}

/* Returns false if an earlier session was stopped at the last step before it wrote the final
 * weights. */
static bool has_final_weights(const struct job *job)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], reason[MANIFEST_REASON_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    struct manifest manifest;
    if (file_join(folder, job->session.recipe.run_dir, "final") != STATUS_OK ||
        file_join(path, folder, MANIFEST_FILE) != STATUS_OK || !file_exists(path) ||
        file_read(path, MANIFEST_BYTES_MAX, &text, &bytes) != STATUS_OK) {
        status_clear();
        return false;
    }
    bool best = job->session.recipe.checkpoint.keep_best && job->early_stopping.has_value;
    bool whole = manifest_parse(text, bytes, &manifest, reason) &&
                 (manifest.state.step == job->state.step ||
                  (best && manifest.state.step == job->early_stopping.step));
    manifest_destroy(&manifest);
    free(text);
    return whole;
}

static status read_best(struct job *job)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "metrics.jsonl"));
    return early_stopping_restore(&job->early_stopping_rule, path, job->state.step,
                                  &job->early_stopping);
}

status job_restore_best(struct job *job)
{
    bool reads = comm_rank(job->world) == 0;
    TRY(comm_agree(job->world, reads ? read_best(job) : STATUS_OK));
    TRY(comm_broadcast(job->world, &job->early_stopping, sizeof job->early_stopping, 0));
    if (job->session.recipe.checkpoint.keep_best && job->early_stopping.has_value) {
        checkpoint_pin_step(job->checkpoint, job->early_stopping.step);
    }
    return STATUS_OK;
}

status job_check_finished(struct job *job)
{
    bool beyond = job->state.step > job->total_steps; /* the recipe has fewer steps than are done */
    bool finished =
        comm_rank(job->world) == 0 && job_reached_end(job) && (beyond || has_final_weights(job));
    return comm_agree_flag(job->world, finished, &job->finished);
}
