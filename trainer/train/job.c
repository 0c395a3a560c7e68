#include "base/memory.h"
#include "trainer/train/job_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "build_info.h"
#include "comm/watchdog/watchdog.h"
#include "datasets/shard/labels.h"
#include "trainer/evaluation/report.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/formats/weights/open.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/sample.h"

/* ---- the recipe and the run folder ---- */

static status write_recipe_text(const struct recipe *recipe, char **out)
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
    TRY(watchdog_limit_startup(job->start_limit_seconds));
    watchdog_phase("reading the recipe", 0);
    struct recipe *r = &job->session.recipe;
    if (recipe_read(options->recipe_path, options->overrides, options->override_count, r) !=
        STATUS_OK) {
        status_clear(); /* job_start reads the recipe again, with the settings of a checkpoint */
        return STATUS_OK;
    }
    job->start_limit_seconds = r->parallel.start_seconds;
    return watchdog_limit_startup(job->start_limit_seconds);
}

/* Sets the limit of the start to that of the complete recipe, unless BIREME_INIT_SECONDS has
 * extended it to more. */
static status limit_start(const struct job *job)
{
    double current = watchdog_startup_limit(), limit = job->session.recipe.parallel.start_seconds;
    bool extended = current > job->start_limit_seconds && current > limit;
    return watchdog_limit_startup(extended ? current : limit);
}

/* Settings of the model that the recipe leaves open come from the checkpoint that the run resumes
 * from, else from model.init_from. */
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
    TRY(objective_find(recipe_objective_name(r->objective), &job->objective));
    TRY(derive_preference(r, &job->preference));
    TRY(data_read_labels(r, &job->labels));
    TRY(evaluation_report_stopping_rule(r, job->objective, job->labels, &job->early_stopping_rule));
    TRY(sample_open_tasks(r, &job->tasks));
    if (job->labels != NULL) {
        TRY(labels_hash(job->labels, job->labels_sha256));
    }
    return write_recipe_text(r, &job->recipe_text);
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

/* Called after the run folder is locked, so that the log of another job is not touched. */
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
    TRY(hash_memory(job->recipe_text, strlen(job->recipe_text), digest));
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
        .vocabulary = model_get_config(s->model)->vocabulary,
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

/* Loads the Adam moments of optimizer.init_from. The step count starts at 0. */
static status load_initial_moments(struct job *job)
{
    const char *from = job->session.recipe.optimizer.init_from;
    if (from[0] == '\0') {
        return STATUS_OK;
    }
    struct checkpoint_info found = {0};
    status resolved = checkpoint_resolve(job->world, from, false, &found);
    resolved = recipe_annotate_error(&job->session.recipe, "optimizer.init_from", resolved, "");
    TRY(comm_agree(job->world, resolved));
    log_info("optimizer moments from %s, saved at step %" PRId64 "; steps are counted from 0",
             found.folder, found.state.step);
    status result = checkpoint_load(job->world, found.folder, &job->state_dicts[1].tensor_set, 1);
    free(found.recipe_text);
    return result;
}

/* Loads the base model of new or existing adapters. The path and the fingerprint of the base model
 * become part of the recipe that checkpoints store. */
static status load_initial_adapters(struct job *job)
{
    struct session *s = &job->session;
    char init_adapters[FILE_PATH_BYTES];
    TRY(comm_agree(job->world, adapter_base_find(&s->recipe, job->world, init_adapters)));
    TRY(adapter_base_load(s, job->world, true));
    TRY(comm_agree(job->world,
                   weights_check_tokenizer(&s->recipe, s->tokenizer, job->data_tokenizer_sha256,
                                           s->recipe.adapter.base)));
    free(job->recipe_text);
    job->recipe_text = NULL;
    TRY(comm_agree(job->world, write_recipe_text(&s->recipe, &job->recipe_text)));
    job->init_adapters = init_adapters[0] != '\0';
    if (!job->init_adapters) {
        return STATUS_OK;
    }
    log_info("adapters from %s", init_adapters);
    return checkpoint_load_pretrained(job->world, init_adapters, &job->state_dicts[0].tensor_set,
                                      1);
}

static status load_initial_weights(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_info found = {0};
    status resolved = checkpoint_resolve(job->world, r->model.init_from, true, &found);
    resolved = recipe_annotate_error(r, "model.init_from", resolved, "");
    KEEP_FIRST(resolved,
               resolved == STATUS_OK ? adapter_base_require_full_model(r, &found) : resolved);
    int64_t vocabulary = model_get_config(job->session.model)->vocabulary;
    KEEP_FIRST(resolved, resolved == STATUS_OK
                             ? initial_model_check_vocabulary(r, found.folder, vocabulary)
                             : resolved);
    TRY(comm_agree(job->world, resolved));
    log_info("weights from %s", found.folder);
    status result =
        comm_agree(job->world, weights_check_tokenizer(r, job->session.tokenizer,
                                                       job->data_tokenizer_sha256, found.folder));
    if (result == STATUS_OK) {
        result = checkpoint_load_pretrained(job->world, found.folder,
                                            &job->state_dicts[0].tensor_set, 1);
    }
    free(found.recipe_text);
    return result;
}

static bool has_adapters(const struct job *job)
{
    return job->session.recipe.adapter.type != ADAPTER_NONE;
}

/* Sets the weights at the start of a run: random, or from model.init_from. */
static status initialize_weights(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    if (job->weights_initialized) {
        return STATUS_OK;
    }
    TRY(comm_agree(job->world, model_init_weights(job->session.model, (uint64_t)r->seed,
                                                  job->session.threads)));
    if (r->model.init_from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(has_adapters(job) ? load_initial_adapters(job) : load_initial_weights(job));
    TRY(load_initial_moments(job));
    return comm_agree(job->world, model_sync_bf16(job->session.model));
}

/* A resumed run also needs the initial weights if some are frozen or the objective has a reference
 * model. */
static status initialize_before_resume(struct job *job)
{
    if (!has_adapters(job) && !objective_spec_has_reference(&job->session.recipe)) {
        return STATUS_OK;
    }
    TRY(initialize_weights(job));
    job->weights_initialized = true;
    return STATUS_OK;
}

/* The reference model has the initial weights. Their fingerprint becomes part of the data
 * fingerprint, which a resumed checkpoint must match. */
static status compute_reference(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    char text[2 * HASH_TEXT_BYTES];
    if (!objective_spec_has_reference(r)) {
        return STATUS_OK;
    }
    struct data_setup data = job_get_data_setup(job);
    TRY(reference_logprobs_compute(&job->session, &data, job->init_adapters, &job->reference));
    snprintf(text, sizeof text, "%s%s", job->data_fingerprint, job->reference.weights_fingerprint);
    return hash_memory(text, strlen(text), job->data_fingerprint);
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
    TRY(state_dict_create_session_fp8(&job->session, &job->state_dicts[2]));
    TRY(state_dict_create_session_weights(&job->session, NULL, NULL, &job->state_dicts[0]));
    return sharded_optimizer_moments_state(&job->session, job->optimizer, &job->state_dicts[1]);
}

static status check_prompt(const struct session *s)
{
    struct token_list ids = {0};
    if (s->recipe.generate.prompt[0] == '\0') {
        return STATUS_OK;
    }
    status result = sample_encode(&s->recipe, s->tokenizer, &ids);
    token_list_free(&ids);
    return result;
}

static status start_session(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    TRY(session_start(&job->session, job->world, r->data.tokenizer, derive_rows(r),
                      derive_longest_sequence(r), true));
    TRY(comm_agree(job->world, check_prompt(&job->session)));
    TRY(comm_agree(job->world, sample_prepare_targets(job)));
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
        .should_stop = stop_signal_received,
    };
    return step_create(&parts, &job->step);
}

/* ---- checkpoints ---- */

static status open_checkpoints(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_options options = {
        .run_dir = r->run_dir,
        .tokenizer_dir = r->data.tokenizer[0] != '\0' ? r->data.tokenizer : NULL,
        .recipe_text = job->recipe_text,
        .data_fingerprint = job->data_fingerprint,
        .version = BUILD_VERSION " " BUILD_COMMIT,
        .dropout_law = DROPOUT_LAW,
        .extra_file_name = LABELS_FILE,
        .extra_file_text = job->labels,
        .keep = r->checkpoint.keep,
        .async = r->checkpoint.async,
        .world = job->world,
        .replica_group = job->session.mesh.data,
    };
    return checkpoint_open(&options, &job->checkpoint);
}

/* Allocates the snapshot at the start, so that the first save stalls no longer than later ones, and
 * checks the space on the disk. */
static status reserve_snapshot(struct job *job)
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

/* Warns if the run continues with other random bits for dropout than its checkpoint. */
static void warn_dropout_law(const struct job *job, const struct checkpoint_info *found)
{
    const struct recipe *r = &job->session.recipe;
    bool drops = r->model.dropout > 0 || r->model.attention_dropout > 0 ||
                 (has_adapters(job) && r->adapter.dropout > 0);
    if (drops && found->dropout_law != DROPOUT_LAW && comm_rank(job->world) == 0) {
        log_warning("DROPOUT",
                    "%s was written with dropout law %d, but training continues with law %d: the "
                    "probabilities are the same, the losses differ from those of version 0.1",
                    found->folder, found->dropout_law, DROPOUT_LAW);
    }
}

static status resume_from(struct job *job, const struct checkpoint_info *found)
{
    struct recipe saved;
    TRY(comm_agree(job->world, require_same_job(job, found, &saved)));
    struct checkpoint_tensor_set tensor_sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, tensor_sets);
    bool has_history = saved.train.precision == PRECISION_FP8;
    TRY(checkpoint_load(job->world, found->folder, tensor_sets, has_history ? count : 2));
    TRY(comm_agree(job->world, model_fp8_sync(job->session.model)));
    TRY(checkpoint_archive_newer(job->checkpoint, found->state.step));
    job->state = found->state;
    job->resumed = true;
    log_info("resuming %s: step %" PRId64 ", saved by %d rank%s, running on %d", found->folder,
             found->state.step, found->saved_ranks, text_plural(found->saved_ranks),
             comm_size(job->world));
    log_changed_schedule(job, &saved);
    warn_dropout_law(job, found);
    return comm_agree(job->world, model_sync_bf16(job->session.model));
}

static status resume_or_initialize(const struct job_options *options, struct job *job)
{
    if (options->resume == JOB_RESUME_NEVER) {
        TRY(checkpoint_archive_newer(job->checkpoint, -1));
        return initialize_weights(job);
    }
    struct checkpoint_info found = {0};
    const char *path = options->resume == JOB_RESUME_PATH ? options->resume_path : NULL;
    TRY(checkpoint_find(job->checkpoint, path, &found));
    status result = found.found ? resume_from(job, &found) : initialize_weights(job);
    free(found.recipe_text);
    return result;
}

/* With ZeRO and bf16 a rank keeps only its shards of the f32 weights from here on, and saves
 * these. */
static status release_full_weights(struct job *job)
{
    TRY(sharded_optimizer_round_weights(job->optimizer, job->state.spikes.updated_step));
    TRY(sharded_optimizer_release_weights(job->optimizer));
    state_dict_destroy(&job->state_dicts[0]);
    return sharded_optimizer_weights_state(&job->session, job->optimizer, &job->state_dicts[0]);
}

/* ---- start and stop ---- */

/* The run continues, so its final weights are no longer the newest: rename them. */
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
    char path[FILE_PATH_BYTES];
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    TRY(file_join(path, job->session.recipe.run_dir, "metrics.jsonl"));
    TRY(metrics_open(path, resume_step, job->state.spikes.count, &job->metrics));
    TRY(file_join(path, job->session.recipe.run_dir, "tensorboard"));
    bool tensorboard = job->session.recipe.log.tensorboard;
    return tensorboard ? metrics_add_tensorboard(job->metrics, path) : STATUS_OK;
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
    watchdog_phase(phase != NULL ? phase : "loop", limit);
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
    TRY(initialize_before_resume(job));
    watchdog_pause_startup(true);
    TRY(compute_reference(job));
    watchdog_pause_startup(false);
    job_long_phase(job, "resume");
    TRY(open_checkpoints(job));
    TRY(comm_agree(world, open_log(job)));
    TRY(resume_or_initialize(options, job));
    TRY(job->resumed ? job_restore_best(job) : STATUS_OK);
    if (!job->resumed) {
        recipe_warn(&job->session.recipe);
    }
    TRY(job_check_finished(job));
    if (job->finished) {
        watchdog_end_startup();
        return STATUS_OK;
    }
    TRY(comm_agree(world, release_full_weights(job)));
    job_long_phase(job, "opening data");
    TRY(comm_agree(world, open_training_data(job)));
    TRY(comm_agree(world, create_evaluator(job)));
    TRY(comm_agree(world, create_replica_check(job)));
    TRY(comm_agree(world, create_rollback(job)));
    TRY(create_step(job));
    TRY(reserve_snapshot(job));
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
    state_dict_destroy(&job->state_dicts[0]);
    state_dict_destroy(&job->state_dicts[1]);
    state_dict_destroy(&job->state_dicts[2]);
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
