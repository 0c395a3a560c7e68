/* The checkpoints of a run: resumes a run, and prepares its next save. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "build_info.h"
#include "datasets/shard/labels.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/model/linear.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/train/job_impl.h"

status job_open_checkpoints(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_options options = {
        .run_dir = r->run_dir,
        .tokenizer_dir = r->data.tokenizer[0] != '\0' ? r->data.tokenizer : NULL,
        .recipe_text = job->recipe_text,
        .data_fingerprint = job->data_fingerprint,
        .version = BUILD_VERSION " " BUILD_COMMIT,
        .dropout_scheme = derive_dropout_scheme(r),
        .extra_file_name = LABELS_FILE,
        .extra_file_text = job->labels,
        .keep = r->checkpoint.keep,
        .async = r->checkpoint.async,
        .world = job->world,
        .replica_group = job->session.mesh.data,
    };
    return checkpoint_open(&options, &job->checkpoint);
}

status job_reserve_snapshot(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_tensor_set tensor_sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, tensor_sets);
    return r->checkpoint.every > 0 ? checkpoint_reserve(job->checkpoint, tensor_sets, count)
                                   : STATUS_OK;
}

static status require_same_job(const struct job *job, const struct checkpoint_info *found,
                               struct recipe *saved)
{
    char text[STATUS_TEXT_BYTES / 2];
    TRY(saved_recipe_parse(found, NULL, 0, saved));
    int count = recipe_differences(saved, &job->session.recipe, text, sizeof text);
    REQUIRE(count == 0, STATUS_CHECKPOINT,
            "%s was written by another recipe: %s. Use that recipe, another run_dir (with "
            "model.init_from and optimizer.init_from to start from its weights and moments), or "
            "--resume never",
            found->folder, text);
    REQUIRE(
        strcmp(found->data_fingerprint, job->data_fingerprint) == 0, STATUS_CHECKPOINT,
        "%s was trained on other data: data.train has other shards, names or weights. Use the same "
        "data, another run_dir (with model.init_from to keep the weights), or --resume never",
        found->folder);
    return STATUS_OK;
}

/* Logs that a resumed run has another number of steps, because this changes the learning rate. */
static void log_changed_schedule(const struct job *job, const struct recipe *saved)
{
    const double noticeable = 0.01; /* relative change of the rate */
    int64_t step = job->state.step, before = 0, now = job->total_steps;
    if (data_count_steps(saved, job->train_samples, &before) != STATUS_OK) {
        status_clear();
        return;
    }
    double rate_before = schedule_learning_rate(saved, step, before);
    double rate_now = schedule_learning_rate(&job->session.recipe, step, now);
    double change = fabs(rate_now - rate_before);
    if (before != now && step < now && change > noticeable * fmax(rate_before, rate_now)) {
        log_info("the schedule has %" PRId64 " steps instead of %" PRId64, now, before);
        log_info("at step %" PRId64 " the learning rate is %.3g instead of %.3g", step, rate_now,
                 rate_before);
    }
}

/* Warns if the run continues with another dropout than its checkpoint. */
static void warn_dropout_scheme(const struct job *job, const struct checkpoint_info *found)
{
    const struct recipe *r = &job->session.recipe;
    int old = found->dropout_scheme, scheme = derive_dropout_scheme(r);
    bool has_more = old >= DROPOUT_SCHEME; /* the same bits at more sites */
    bool drops = r->model.dropout > 0 || (!has_more && r->model.attention_dropout > 0) ||
                 (!has_more && job_has_adapters(job) && r->adapter.dropout > 0);
    if (drops && old != scheme && comm_rank(job->world) == 0) {
        log_warning(
            "DROPOUT",
            "%s was written with dropout scheme %d, but training continues with scheme %d%s",
            found->folder, old, scheme, has_more ? ", which drops at more places" : "");
    }
}

static status resume_from(struct job *job, const struct checkpoint_info *found)
{
    struct recipe saved;
    TRY(comm_agree(job->world, require_same_job(job, found, &saved)));
    struct checkpoint_tensor_set tensor_sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, tensor_sets);
    bool has_history = derive_has_delayed_scales(&saved);
    TRY(checkpoint_load(job->world, found->folder, tensor_sets,
                        has_history ? count : JOB_FP8_HISTORY));
    TRY(comm_agree(job->world, model_fp8_sync(job->session.model)));
    TRY(checkpoint_archive_newer(job->checkpoint, found->state.step));
    job->state = found->state;
    job->resumed = true;
    log_info("resuming %s: step %" PRId64 ", saved by %d rank%s, running on %d", found->folder,
             found->state.step, found->saved_ranks, text_plural(found->saved_ranks),
             comm_size(job->world));
    log_changed_schedule(job, &saved);
    warn_dropout_scheme(job, found);
    return comm_agree(job->world, model_sync_bf16(job->session.model));
}

status job_resume_or_initialize(const struct job_options *options, struct job *job)
{
    if (options->resume == JOB_RESUME_NEVER) {
        TRY(checkpoint_archive_newer(job->checkpoint, -1));
        return job_initialize_weights(job);
    }
    struct checkpoint_info found = {0};
    const char *path = options->resume == JOB_RESUME_PATH ? options->resume_path : NULL;
    TRY(checkpoint_find(job->checkpoint, path, &found));
    status result = found.found ? resume_from(job, &found) : job_initialize_weights(job);
    free(found.recipe_text);
    return result;
}

status job_release_full_weights(struct job *job)
{
    TRY(sharded_optimizer_round_weights(job->optimizer, job->state.spikes.updated_step));
    TRY(sharded_optimizer_release_weights(job->optimizer));
    state_dict_destroy(&job->state_dicts[JOB_WEIGHTS]);
    return sharded_optimizer_weights_state(&job->session, job->optimizer,
                                           &job->state_dicts[JOB_WEIGHTS]);
}
