#include "trainer/train/job_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "build_info.h"
#include "comm/watchdog/watchdog.h"
#include "datasets/shard/labels.h"
#include "trainer/evaluation/report.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/generated_outputs.h"

/* ---- the recipe and the run folder ---- */

status job_write_recipe_text(const struct recipe *recipe, char **out)
{
    size_t bytes = 0;
    FILE *memory = open_memstream(out, &bytes);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for the resolved recipe");
    status result = recipe_write(recipe, memory);
    if (fclose(memory) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_INTERNAL, "out of memory for the recipe");
    }
    return result;
}

status job_read_recipe(const struct job_options *options, struct job *job)
{
    *job = (struct job){.start_limit_seconds = DEADLINE_START_SECONDS};
    TRY(watchdog_set_startup_limit(job->start_limit_seconds));
    watchdog_set_phase("reading the recipe", 0);
    struct recipe *r = &job->session.recipe;
    if (recipe_read(options->recipe_path, options->overrides, options->override_count, r) !=
        STATUS_OK) {
        status_clear(); /* job_start reads the recipe again, with the settings of a checkpoint */
        return STATUS_OK;
    }
    job->start_limit_seconds = r->parallel.start_seconds;
    return watchdog_set_startup_limit(job->start_limit_seconds);
}

/* Sets the limit of the start to the limit in the complete recipe, unless BIREME_INIT_SECONDS has
 * set a longer limit. */
static status limit_start(const struct job *job)
{
    double current = watchdog_startup_limit(), limit = job->session.recipe.parallel.start_seconds;
    bool extended = current > job->start_limit_seconds && current > limit;
    return watchdog_set_startup_limit(extended ? current : limit);
}

/* Reads the recipe. Settings of the model that it leaves open come from the checkpoint from which
 * the run resumes, else from model.init_from. */
static status read_recipe(const struct job_options *options, struct job *job)
{
    const struct initial_model_request request = {
        .recipe_path = options->recipe_path,
        .overrides = options->overrides,
        .override_count = options->override_count,
        .resume = options->resume == JOB_RESUME_NEVER  ? NULL
                  : options->resume == JOB_RESUME_PATH ? options->resume_path
                                                       : "",
    };
    return initial_model_read_recipe(&request, job->world, &job->session.recipe);
}

/* Checks the recipe and reads the label names of the training data. */
static status prepare_recipe(struct job *job)
{
    struct recipe *r = &job->session.recipe;
    TRY(data_require_train(r));
    job->objective = objective_spec_objective(r);
    TRY(derive_preference(r, &job->preference));
    TRY(data_read_labels(r, &job->labels));
    TRY(evaluation_report_stopping_rule(r, job->objective, job->labels, &job->early_stopping_rule));
    TRY(generated_outputs_open_tasks(r, &job->tasks));
    if (job->labels != NULL) {
        TRY(labels_hash(job->labels, job->labels_sha256));
    }
    return job_write_recipe_text(r, &job->recipe_text);
}

static status make_run_folder(struct job *job)
{
    const char *folder = job->session.recipe.run_dir;
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    job->made_folder = !file_exists(folder);
    return file_make_folders(folder);
}

/* Removes the run folder after a failed start, unless it existed before or contains more than a
 * log. The error of the start stays pending. */
static void remove_new_folder(const struct job *job)
{
    static const char *const names[] = {"checkpoints", "recipe.yaml", "metrics.jsonl",
                                        "log.txt",     "LOCK",        ""};
    char path[FILE_PATH_BYTES];
    for (int i = 0; i < COUNT(names) && job->made_folder; i++) {
        snprintf(path, sizeof path, "%.4000s/%s", job->session.recipe.run_dir, names[i]);
        if (remove(path) != 0 && errno != ENOENT) {
            return; /* a folder that is not empty stays */
        }
    }
}

/* Opens log.txt. The run folder is already locked, so the file belongs to no other job. */
static status open_log(const struct job *job)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "log.txt"));
    return comm_rank(job->world) == 0 ? log_open(path) : STATUS_OK;
}

/* Writes the resolved recipe into the run folder, on rank 0. */
static status write_recipe(const struct job *job)
{
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "recipe.yaml"));
    return file_write(path, job->recipe_text, strlen(job->recipe_text));
}

static status require_same_job_on_all_ranks(const struct job *job)
{
    char digest[HASH_TEXT_BYTES];
    TRY(comm_check_equal(job->world, "the program's build", BUILD_VERSION " " BUILD_COMMIT));
    TRY(comm_agree(job->world, hash_memory(job->recipe_text, strlen(job->recipe_text), digest)));
    return comm_check_equal(job->world, "the resolved recipe", digest);
}

/* ---- the parts ---- */

struct data_setup job_get_data_setup(const struct job *job)
{
    const struct session *s = &job->session;
    return (struct data_setup){
        .recipe = &s->recipe,
        .rank = comm_rank(s->mesh.data),
        .ranks = comm_size(s->mesh.data),
        .vocabulary = model_source_vocabulary(model_get_config(s->model)),
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
        .labels_sha256 = job->labels != NULL ? job->labels_sha256 : NULL,
        .reference =
            job->reference.sources > 0 ? (const double *const *)job->reference.values : NULL,
        .validation_reference = job->reference.validation,
        .masking = &s->masking,
        .denoise = &s->denoise,
        .decoder_start = derive_first_input(&s->recipe, s->tokenizer),
    };
}

/* Returns whether the loss couples all examples of the global batch. */
static bool needs_collect_pass(const struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    return objective_spec_example(r) == EXAMPLE_EMBED ||
           (objective_spec_has_reference(r) && preference_needs_whole_batch(&job->preference));
}

static status open_training_data(struct job *job)
{
    struct data_setup data = job_get_data_setup(job);
    TRY(data_open_train(&data, job->state.samples, &job->loader));
    return needs_collect_pass(job)
               ? data_open_train(&data, job->state.samples, &job->collect_loader)
               : STATUS_OK;
}

/* Opens and checks every shard before the run starts. The number of samples determines the number
 * of steps, and each checkpoint stores the fingerprint of the training set. */
static status validate_data(struct job *job)
{
    struct data_setup data = job_get_data_setup(job);
    struct data_summary summary;
    TRY(data_validate(&data, &summary));
    memcpy(job->data_tokenizer_sha256, summary.tokenizer_sha256, sizeof job->data_tokenizer_sha256);
    memcpy(job->data_fingerprint, summary.fingerprint, sizeof job->data_fingerprint);
    job->evaluate_samples = summary.evaluate_samples;
    job->train_samples = summary.train_samples;
    return data_count_steps(data.recipe, summary.train_samples, &job->total_steps);
}

static status create_state_dicts(struct job *job)
{
    TRY(state_dict_create_session_fp8(&job->session, &job->state_dicts[JOB_FP8_HISTORY]));
    TRY(state_dict_create_session_weights(&job->session, NULL, NULL,
                                          &job->state_dicts[JOB_WEIGHTS]));
    return sharded_optimizer_moments_state(&job->session, job->optimizer,
                                           &job->state_dicts[JOB_MOMENTS]);
}

static status check_prompt(const struct session *s)
{
    struct token_list ids = {0};
    if (s->recipe.generate.prompt[0] == '\0') {
        return STATUS_OK;
    }
    status result = generated_outputs_encode_prompt(&s->recipe, s->tokenizer, &ids);
    token_list_free(&ids);
    return result;
}

static status start_session(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    TRY(session_start(&job->session, job->world, r->data.tokenizer, derive_rows(r),
                      derive_longest_sequence(r), true));
    TRY(comm_agree(job->world, check_prompt(&job->session)));
    TRY(comm_agree(job->world, generated_outputs_prepare_targets(job)));
    return comm_agree(job->world, validate_data(job));
}

static status create_optimizer(struct job *job)
{
    int data = comm_size(job->session.mesh.data);
    int64_t micro_batches = derive_micro_batches(&job->session.recipe, data);
    TRY(comm_agree(job->world, sharded_optimizer_create_from_session(&job->session, micro_batches,
                                                                     &job->optimizer)));
    return comm_agree(job->world, create_state_dicts(job));
}

static status create_evaluator(struct job *job)
{
    struct labels names = {0};
    if (job->labels != NULL) {
        TRY(labels_parse_json(job->labels, "the training shards", &names));
    }
    const struct recipe *r = &job->session.recipe;
    status result = evaluator_create(r->objective, &names, job->session.tokenizer,
                                     r->answer.no_answer_threshold, &job->evaluator);
    labels_free(&names);
    return result;
}

static status create_replica_check(struct job *job)
{
    const struct session *s = &job->session;
    return s->recipe.parallel.check_every > 0 && comm_size(s->mesh.data) > 1
               ? replica_check_create(s, &job->replica_check)
               : STATUS_OK;
}

static status create_rollback(struct job *job)
{
    return job->session.recipe.train.on_spike == ON_SPIKE_ROLLBACK
               ? rollback_create(&job->session, job->optimizer, &job->rollback)
               : STATUS_OK;
}

/* Returns whether the hosts decide about spikes even if the ranks have GPUs. All ranks must make
 * the same decision, but scores from GPUs of different models can differ in the last bit. */
static bool decides_on_host(const struct session *s)
{
    enum recipe_on_spike response = s->recipe.train.on_spike;
    return response == ON_SPIKE_ROLLBACK || (response == ON_SPIKE_SKIP && !s->same_devices);
}

static status create_step(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct step_parts parts = {
        .mesh = job->session.mesh,
        .kernels = job->session.kernels,
        .model = job->session.model,
        .objective = job->objective,
        .optimizer = job->optimizer,
        .loader = job->loader,
        .preference = &job->preference,
        .collect_loader = job->collect_loader,
        .batch_size = needs_collect_pass(job) ? r->batch.global_size : 0,
        .seed = (uint64_t)r->seed,
        .label_smoothing = r->train.label_smoothing_factor,
        .micro_rows = derive_rows(r),
        .reproducible = r->parallel.reproducible,
        .sink = evaluator_sink(job->evaluator),
        .spikes = &job->state.spikes,
        .skips_spikes = r->train.on_spike != ON_SPIKE_WARN,
        .decides_on_host = decides_on_host(&job->session),
        .should_stop = stop_signal_received,
    };
    return step_create(&parts, &job->step);
}

/* ---- start and stop ---- */

/* Renames the final weights of a run that continues: they are no longer the newest ones. */
static status rename_final(const struct job *job)
{
    char final[FILE_PATH_BYTES], old[FILE_PATH_BYTES];
    TRY(file_join(final, job->session.recipe.run_dir, "final"));
    TRY(file_join(old, job->session.recipe.run_dir, "final-old"));
    if (comm_rank(job->world) != 0 || !file_exists(final)) {
        return STATUS_OK;
    }
    TRY(file_remove_tree(old));
    REQUIRE(rename(final, old) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot rename %s to %s: %s", final, old, strerror(errno));
    log_info("the previous final weights are now in %s", old);
    return STATUS_OK;
}

static status open_metrics(struct job *job, int64_t resume_step)
{
    char path[FILE_PATH_BYTES], folder[FILE_PATH_BYTES];
    const struct recipe *recipe = &job->session.recipe;
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    TRY(file_join(path, recipe->run_dir, "metrics.jsonl"));
    TRY(file_join(folder, recipe->run_dir, "tensorboard"));
    if (recipe->log.tensorboard) { /* before metrics_open, which can remove lines */
        TRY(file_require_own_link(folder));
    }
    TRY(metrics_open(path, resume_step, job->state.spikes.count, &job->metrics));
    return recipe->log.tensorboard ? metrics_add_tensorboard(job->metrics, folder) : STATUS_OK;
}

static status reopen_data_and_metrics(struct job *job)
{
    TRY(loader_close(&job->loader));
    TRY(loader_close(&job->collect_loader));
    TRY(open_training_data(job));
    step_set_loaders(job->step, job->loader, job->collect_loader);
    TRY(metrics_close(&job->metrics));
    return open_metrics(job, job->state.step);
}

status job_rewind(struct job *job)
{
    TRY(comm_agree(job->world, reopen_data_and_metrics(job)));
    return job_restore_best(job);
}

void job_long_phase(const struct job *job, const char *phase)
{
    double normal = job->session.recipe.parallel.timeout_seconds;
    double limit = phase != NULL ? fmax(normal, DEADLINE_LONG_PHASE_SECONDS) : normal;
    limit = fmax(limit, watchdog_startup_limit());
    watchdog_set_phase(phase != NULL ? phase : "loop", limit);
    comm_set_deadline(job->world, limit);
    if (job->session.mesh.data != NULL) {
        comm_set_deadline(job->session.mesh.data, limit);
        comm_set_deadline(job->session.mesh.tensor, limit);
    }
}

static status start_job(const struct job_options *options, struct comm *world, struct job *job)
{
    job->world = world;
    job->started_seconds = clock_seconds();
    log_quiet(comm_rank(world) != 0);
    log_keep_warnings();
    TRY(read_recipe(options, job));
    TRY(limit_start(job));
    TRY(watchdog_start(world, job->session.recipe.parallel.timeout_seconds));
    job_long_phase(job, "start");
    TRY(comm_agree(world, prepare_recipe(job)));
    TRY(require_same_job_on_all_ranks(job));
    TRY(comm_agree(world, options->check(&job->session.recipe, world)));
    TRY(start_session(job));
    TRY(model_connect(job->session.model));
    TRY(create_optimizer(job));
    TRY(comm_agree(world, make_run_folder(job)));
    job_long_phase(job, "reference");
    TRY(job_initialize_before_resume(job));
    watchdog_pause_startup(true);
    TRY(job_compute_reference(job));
    watchdog_pause_startup(false);
    job_long_phase(job, "resume");
    TRY(job_open_checkpoints(job));
    TRY(comm_agree(world, open_log(job)));
    TRY(job_resume_or_initialize(options, job));
    TRY(job->resumed ? job_restore_best(job) : STATUS_OK);
    if (!job->resumed) {
        recipe_warn(&job->session.recipe);
    }
    TRY(job_check_finished(job));
    if (job->finished) {
        watchdog_end_startup();
        return STATUS_OK;
    }
    TRY(comm_agree(world, job_release_full_weights(job)));
    job_long_phase(job, "opening data");
    TRY(comm_agree(world, open_training_data(job)));
    TRY(comm_agree(world, create_evaluator(job)));
    TRY(comm_agree(world, create_replica_check(job)));
    TRY(comm_agree(world, create_rollback(job)));
    TRY(comm_agree(world, create_step(job)));
    TRY(job_reserve_snapshot(job));
    TRY(comm_agree(world, rename_final(job)));
    TRY(comm_agree(world, write_recipe(job)));
    TRY(comm_agree(world, open_metrics(job, job->resumed ? job->state.step : -1)));
    watchdog_end_startup();
    job_long_phase(job, NULL);
    return STATUS_OK;
}

status job_start(const struct job_options *options, struct comm *world, struct job *job)
{
    status result = start_job(options, world, job);
    if (result != STATUS_OK) {
        remove_new_folder(job);
    }
    return result;
}

status job_stop(struct job *job)
{
    status result = STATUS_OK;
    KEEP_FIRST(result, step_destroy(&job->step));
    evaluator_destroy(&job->evaluator);
    task_set_close(&job->tasks);
    replica_check_destroy(&job->replica_check);
    rollback_destroy(&job->rollback);
    KEEP_FIRST(result, loader_close(&job->loader));
    KEEP_FIRST(result, loader_close(&job->collect_loader));
    KEEP_FIRST(result, checkpoint_close(&job->checkpoint));
    KEEP_FIRST(result, metrics_close(&job->metrics));
    for (int i = 0; i < JOB_TENSOR_SETS; i++) {
        state_dict_destroy(&job->state_dicts[i]);
    }
    reference_logprobs_destroy(&job->reference);
    KEEP_FIRST(result, sharded_optimizer_destroy(&job->optimizer));
    KEEP_FIRST(result, session_stop(&job->session));
    free(job->recipe_text);
    free(job->labels);
    watchdog_stop();
    KEEP_FIRST(result, log_close());
    return result;
}

status job_evaluate(struct job *job, struct step_ballot *ballot, double sums[OBJECTIVE_SUMS])
{
    struct loader *loader = NULL;
    struct data_setup data = job_get_data_setup(job);
    TRY(comm_agree(job->world, data_open_validation(&data, job->evaluate_samples, &loader)));
    evaluator_begin(job->evaluator);
    status result = step_evaluate(job->step, loader, ballot, sums);
    if (result == STATUS_OK) {
        result = evaluator_end(job->evaluator, job->session.mesh.data);
    }
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}
