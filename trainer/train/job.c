#include "trainer/train/job.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "build_info.h"
#include "datasets/shard/labels.h"
#include "trainer/weights/adapter_base.h"
#include "trainer/evaluation/report.h"
#include "trainer/setup/data.h"
#include "trainer/checkpoint/manifest.h"

/* Opening shards, verifying and writing checkpoints of many gigabytes may take this long. */
static const double long_phase_seconds = 600;

/* ---- the recipe and the run folder ---- */

static status write_recipe_text(const struct recipe *recipe, char **out)
{
    size_t bytes = 0;
    FILE *memory = open_memstream(out, &bytes);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for the resolved recipe");
    status result = recipe_write(recipe, memory);
    if (fclose(memory) != 0 && result == STATUS_OK) {
        result = status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory for the recipe");
    }
    return result;
}

static status read_recipe(const struct job_options *options, struct job *job)
{
    struct recipe *r = &job->session.recipe;
    TRY(recipe_read(options->recipe_path, options->overrides, options->override_count, r));
    TRY(job_data_named(r));
    TRY(objective_find(r->objective, &job->objective));
    TRY(session_preference(r, &job->preference));
    TRY(evaluation_rule(r, job->objective, &job->best_rule));
    TRY(job_data_labels(r, &job->labels));
    if (job->labels != NULL) {
        TRY(labels_hash(job->labels, job->labels_sha256));
    }
    return write_recipe_text(r, &job->recipe_text);
}

static status make_run_folder(const struct job *job)
{
    return comm_rank(job->world) == 0 ? file_make_folders(job->session.recipe.run_dir) : STATUS_OK;
}

/* After the run folder's lock is ours: another job's log is not written into. */
static status open_log(const struct job *job)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "log.txt"));
    return comm_rank(job->world) == 0 ? log_open(path) : STATUS_OK;
}

/* Rank 0, once it is sure that this recipe goes on in this folder. */
static status keep_recipe(const struct job *job)
{
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "recipe.yaml"));
    return file_write(path, job->recipe_text, strlen(job->recipe_text));
}

static status same_job_everywhere(const struct job *job)
{
    char digest[HASH_TEXT_BYTES];
    TRY(comm_check_equal(job->world, "the program's build", BUILD_VERSION " " BUILD_COMMIT));
    TRY(hash_memory(job->recipe_text, strlen(job->recipe_text), digest));
    return comm_check_equal(job->world, "the resolved recipe", digest);
}

/* ---- the parts ---- */

static struct job_data data_of(const struct job *job)
{
    const struct session *s = &job->session;
    return (struct job_data){
        .recipe = &s->recipe,
        .rank = comm_rank(s->mesh.data),
        .ranks = comm_size(s->mesh.data),
        .vocabulary = model_config_of(s->model)->vocabulary,
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
        .labels_sha256 = job->labels != NULL ? job->labels_sha256 : NULL,
        .reference =
            job->reference.sources > 0 ? (const double *const *)job->reference.values : NULL,
        .held_reference = job->reference.held,
        .masking = &s->masking,
    };
}

/* Moments without the step that made them. */
static status begin_moments(struct job *job)
{
    const char *from = job->session.recipe.optimizer.init_from;
    if (from[0] == '\0') {
        return STATUS_OK;
    }
    struct checkpoint_found found = {0};
    status chosen = checkpoint_choose(job->world, from, false, &found);
    chosen = recipe_blame(&job->session.recipe, "optimizer.init_from", chosen, "");
    TRY(comm_agree(job->world, chosen));
    log_info("the optimizer's moments from %s, saved at step %lld; steps are counted from 0",
             found.folder, (long long)found.state.step);
    status result = checkpoint_load(job->world, found.folder, &job->families[1].family, 1);
    free(found.recipe_text);
    return result;
}

/* Adapters beside a frozen model. What that is known by becomes part of the recipe that checkpoints keep. */
static status begin_adapters(struct job *job)
{
    struct session *s = &job->session;
    char carried[FILE_PATH_BYTES];
    TRY(comm_agree(job->world, base_model_find(&s->recipe, job->world, carried)));
    TRY(base_model_load(s, job->world, true));
    free(job->recipe_text);
    job->recipe_text = NULL;
    TRY(comm_agree(job->world, write_recipe_text(&s->recipe, &job->recipe_text)));
    job->carried = carried[0] != '\0';
    if (!job->carried) {
        return STATUS_OK;
    }
    log_info("adapters from %s", carried);
    return checkpoint_load_body(job->world, carried, &job->families[0].family, 1);
}

static status begin_weights(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_found found = {0};
    status chosen = checkpoint_choose(job->world, r->model.init_from, true, &found);
    chosen = recipe_blame(r, "model.init_from", chosen, "");
    KEEP_FIRST(chosen, chosen == STATUS_OK ? base_model_require_whole(r, &found) : chosen);
    TRY(comm_agree(job->world, chosen));
    log_info("weights from %s", found.folder);
    status result = checkpoint_load_body(job->world, found.folder, &job->families[0].family, 1);
    free(found.recipe_text);
    return result;
}

static bool has_adapters(const struct job *job)
{
    return job->session.recipe.adapter.type[0] != '\0';
}

static status begin_fresh(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    if (job->begun) {
        return STATUS_OK;
    }
    TRY(comm_agree(job->world, model_initialise(job->session.model, (uint64_t)r->seed)));
    if (r->model.init_from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(has_adapters(job) ? begin_adapters(job) : begin_weights(job));
    TRY(begin_moments(job));
    return comm_agree(job->world, model_weights_changed(job->session.model));
}

/* The weights that a run begins with are needed in a resumed one too: what is frozen, and a reference. */
static status begin_early(struct job *job)
{
    if (!has_adapters(job) && !job_data_has_reference(&job->session.recipe)) {
        return STATUS_OK;
    }
    TRY(begin_fresh(job));
    job->begun = true;
    return STATUS_OK;
}

/* The weights that the run begins with are the reference, in a resumed run too. What they are known by is part of
 * what a checkpoint must agree with. */
static status make_reference(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    char text[2 * HASH_TEXT_BYTES];
    if (!job_data_has_reference(r)) {
        return STATUS_OK;
    }
    struct job_data data = data_of(job);
    TRY(reference_make(&job->session, &data, job->carried, &job->reference));
    snprintf(text, sizeof text, "%s%s", job->data_fingerprint, job->reference.weights);
    return hash_memory(text, strlen(text), job->data_fingerprint);
}

static bool needs_whole(const struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    return job_data_kind(r) == EXAMPLE_EMBED ||
           (job_data_has_reference(r) && preference_whole(&job->preference));
}

static status open_training_data(struct job *job)
{
    struct job_data data = data_of(job);
    TRY(job_data_train(&data, job->state.samples, &job->loader));
    return needs_whole(job) ? job_data_train(&data, job->state.samples, &job->survey) : STATUS_OK;
}

/* Every shard is opened and checked before anything else is done; what they hold decides the number of
 * steps and is kept in each checkpoint. */
static status survey_data(struct job *job)
{
    struct job_data data = data_of(job);
    struct job_data_survey survey;
    TRY(job_data_survey(&data, &survey));
    memcpy(job->data_fingerprint, survey.fingerprint, sizeof job->data_fingerprint);
    job->evaluate_samples = survey.evaluate_samples;
    return job_data_steps(data.recipe, survey.train_samples, &job->total_steps);
}

static status make_families(struct job *job)
{
    TRY(session_weights(&job->session, NULL, &job->families[0]));
    return session_moments(&job->session, job->update, &job->families[1]);
}

static status start_session(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    TRY(session_start(&job->session, job->world, r->data.tokenizer, session_rows(r),
                      session_sequence(r), true));
    return comm_agree(job->world, survey_data(job));
}

static status make_update(struct job *job)
{
    int data = comm_size(job->session.mesh.data);
    int64_t micro_batches = session_micro_batches(&job->session.recipe, data);
    TRY(comm_agree(job->world, session_update(&job->session, micro_batches, &job->update)));
    return comm_agree(job->world, make_families(job));
}

static status make_grading(struct job *job)
{
    struct labels names = {0};
    if (job->labels != NULL) {
        TRY(labels_read_text(job->labels, "the training shards", &names));
    }
    const struct recipe *r = &job->session.recipe;
    status result = grading_create(r->objective, &names, job->session.tokenizer,
                                   r->answer.no_answer_threshold, &job->grading);
    labels_free(&names);
    return result;
}

static status make_step(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct step_parts parts = {
        .mesh = job->session.mesh,
        .kernels = job->session.kernels,
        .model = job->session.model,
        .objective = job->objective,
        .update = job->update,
        .loader = job->loader,
        .preference = &job->preference,
        .survey = job->survey,
        .batch_size = needs_whole(job) ? r->batch.global_size : 0,
        .seed = (uint64_t)r->seed,
        .micro_rows = session_rows(r),
        .reproducible = r->parallel.reproducible,
        .sink = grading_sink(job->grading),
    };
    return step_create(&parts, &job->step);
}

/* ---- checkpoints: resuming, or beginning ---- */

static status open_checkpoints(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_options options = {
        .run_dir = r->run_dir,
        .tokenizer_dir = r->data.tokenizer[0] != '\0' ? r->data.tokenizer : NULL,
        .recipe_text = job->recipe_text,
        .data_fingerprint = job->data_fingerprint,
        .version = BUILD_VERSION " " BUILD_COMMIT,
        .beside_name = LABELS_FILE,
        .beside_text = job->labels,
        .keep = r->checkpoint.keep,
        .async = r->checkpoint.async,
        .world = job->world,
        .replicas = job->session.mesh.data,
    };
    return checkpoint_open(&options, &job->checkpoint);
}

/* Now, so that the first save stands still no longer than the later ones. */
static status reserve_snapshot(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_family families[2] = {job->families[0].family, job->families[1].family};
    if (!r->checkpoint.async || r->checkpoint.every == 0) {
        return STATUS_OK;
    }
    return checkpoint_reserve(job->checkpoint, families, 2);
}

static status require_same_job(const struct job *job, const struct checkpoint_found *found)
{
    struct recipe saved;
    char name[FILE_PATH_BYTES + 32], text[STATUS_TEXT_BYTES / 2];
    snprintf(name, sizeof name, "%s/manifest.json", found->folder);
    TRY(recipe_parse(name, found->recipe_text, strlen(found->recipe_text), NULL, 0, &saved));
    int count = recipe_differences(&saved, &job->session.recipe, text, sizeof text);
    REQUIRE(count == 0, STATUS_CHECKPOINT,
            "%s was made by another recipe: %s. Use that recipe, another run_dir (with "
            "model.init_from and "
            "optimizer.init_from to go on from its weights and moments), or --resume never",
            found->folder, text);
    REQUIRE(
        strcmp(found->data_fingerprint, job->data_fingerprint) == 0, STATUS_CHECKPOINT,
        "%s was trained on other data: other shards, names or weights in data.train. Use those, "
        "another run_dir (with model.init_from to keep the weights), or --resume never",
        found->folder);
    return STATUS_OK;
}

static status resume_from(struct job *job, const struct checkpoint_found *found)
{
    TRY(comm_agree(job->world, require_same_job(job, found)));
    struct checkpoint_family families[2] = {job->families[0].family, job->families[1].family};
    TRY(checkpoint_load(job->world, found->folder, families, 2));
    TRY(checkpoint_set_aside(job->checkpoint, found->state.step));
    job->state = found->state;
    job->resumed = true;
    log_info("resuming %s: step %lld, saved by %d rank%s, running on %d", found->folder,
             (long long)found->state.step, found->saved_ranks, text_plural(found->saved_ranks),
             comm_size(job->world));
    return comm_agree(job->world, model_weights_changed(job->session.model));
}

static status resume_or_begin(const struct job_options *options, struct job *job)
{
    if (options->resume == RESUME_NEVER) {
        TRY(checkpoint_set_aside(job->checkpoint, -1));
        return begin_fresh(job);
    }
    struct checkpoint_found found = {0};
    const char *path = options->resume == RESUME_PATH ? options->resume_path : NULL;
    TRY(checkpoint_find(job->checkpoint, path, &found));
    status result = found.found ? resume_from(job, &found) : begin_fresh(job);
    free(found.recipe_text);
    return result;
}

/* From here on a rank may have no more than its shares of the f32 weights: what it saves are these. */
static status release_weights(struct job *job)
{
    TRY(update_round(job->update, job->state.step));
    TRY(update_release_weights(job->update));
    family_destroy(&job->families[0]);
    return session_weights(&job->session, job->update, &job->families[0]);
}

/* ---- the end of an earlier session ---- */

bool job_reached_end(const struct job *job)
{
    double limit = 60 * job->session.recipe.train.max_minutes;
    return job->state.step >= job->total_steps ||
           (limit > 0 && job->state.train_seconds >= limit) ||
           best_is_over(&job->best_rule, &job->best);
}

/* A session that was stopped or killed at the last step has left no final weights, or older ones. */
static bool has_final_weights(const struct job *job)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], reason[MANIFEST_REASON_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    struct manifest manifest;
    if (file_join(folder, job->session.recipe.run_dir, "final") != STATUS_OK ||
        file_join(path, folder, MANIFEST_FILE) != STATUS_OK || !file_exists(path) ||
        file_read(path, MANIFEST_LIMIT_BYTES, &text, &bytes) != STATUS_OK) {
        status_clear();
        return false;
    }
    bool best = job->session.recipe.checkpoint.keep_best && job->best.known;
    bool whole =
        manifest_parse(text, bytes, &manifest, reason) &&
        (manifest.state.step == job->state.step || (best && manifest.state.step == job->best.step));
    manifest_destroy(&manifest);
    free(text);
    return whole;
}

static status recall_alone(struct job *job)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->session.recipe.run_dir, "metrics.jsonl"));
    return best_recall(&job->best_rule, path, job->state.step, &job->best);
}

/* What the evaluations of this run said, up to the step that it goes on from: rank 0 knows. */
static status recall_best(struct job *job)
{
    bool here = comm_rank(job->world) == 0 && job->resumed;
    TRY(comm_agree(job->world, here ? recall_alone(job) : STATUS_OK));
    TRY(comm_broadcast(job->world, &job->best, sizeof job->best, 0));
    if (job->session.recipe.checkpoint.keep_best && job->best.known) {
        checkpoint_keep_besides(job->checkpoint, job->best.step);
    }
    return STATUS_OK;
}

static status look_for_end(struct job *job)
{
    bool beyond = job->state.step > job->total_steps; /* the recipe asks for less than there is */
    bool here =
        comm_rank(job->world) == 0 && job_reached_end(job) && (beyond || has_final_weights(job));
    return comm_agree_flag(job->world, here, &job->finished);
}

/* ---- the whole ---- */

/* This run goes on: the final weights of its earlier end are no longer its newest ones. */
static status set_aside_final(const struct job *job)
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
    log_info("the final weights of the run's earlier end are in %s now", old);
    return STATUS_OK;
}

static status open_metrics(struct job *job)
{
    char path[FILE_PATH_BYTES];
    if (comm_rank(job->world) != 0) {
        return STATUS_OK;
    }
    TRY(file_join(path, job->session.recipe.run_dir, "metrics.jsonl"));
    TRY(metrics_open(path, job->resumed ? job->state.step : -1, &job->metrics));
    TRY(file_join(path, job->session.recipe.run_dir, "tensorboard"));
    bool asked = job->session.recipe.log.tensorboard;
    return asked ? metrics_add_tensorboard(job->metrics, path) : STATUS_OK;
}

void job_long_phase(const struct job *job, const char *phase)
{
    double usual = job->session.recipe.parallel.timeout_seconds;
    double limit = phase != NULL ? fmax(usual, long_phase_seconds) : usual;
    watchdog_phase(phase != NULL ? phase : "loop", limit);
    comm_set_deadline(job->world, limit);
    if (job->session.mesh.data != NULL) {
        comm_set_deadline(job->session.mesh.data, limit);
        comm_set_deadline(job->session.mesh.tensor, limit);
    }
}

status job_start(const struct job_options *options, struct comm *world, struct job *job)
{
    *job = (struct job){.world = world, .started = clock_seconds()};
    log_quiet(comm_rank(world) != 0);
    log_keep_warnings();
    TRY(comm_agree(world, read_recipe(options, job)));
    TRY(watchdog_start(world, job->session.recipe.parallel.timeout_seconds));
    job_long_phase(job, "start");
    TRY(same_job_everywhere(job));
    TRY(start_session(job));
    TRY(model_connect(job->session.model));
    TRY(make_update(job));
    TRY(comm_agree(world, make_run_folder(job)));
    job_long_phase(job, "reference");
    TRY(begin_early(job));
    TRY(make_reference(job));
    job_long_phase(job, "resume");
    TRY(open_checkpoints(job));
    TRY(comm_agree(world, open_log(job)));
    TRY(resume_or_begin(options, job));
    TRY(recall_best(job));
    TRY(look_for_end(job));
    if (job->finished) {
        return STATUS_OK;
    }
    TRY(comm_agree(world, release_weights(job)));
    job_long_phase(job, "opening data");
    TRY(comm_agree(world, open_training_data(job)));
    TRY(comm_agree(world, make_grading(job)));
    TRY(make_step(job));
    TRY(reserve_snapshot(job));
    TRY(comm_agree(world, set_aside_final(job)));
    TRY(comm_agree(world, keep_recipe(job)));
    TRY(comm_agree(world, open_metrics(job)));
    job_long_phase(job, NULL);
    return STATUS_OK;
}

status job_stop(struct job *job)
{
    status result = STATUS_OK;
    KEEP_FIRST(result, step_destroy(&job->step));
    grading_destroy(&job->grading);
    KEEP_FIRST(result, loader_close(&job->loader));
    KEEP_FIRST(result, loader_close(&job->survey));
    KEEP_FIRST(result, checkpoint_close(&job->checkpoint));
    KEEP_FIRST(result, metrics_close(&job->metrics));
    family_destroy(&job->families[0]);
    family_destroy(&job->families[1]);
    reference_destroy(&job->reference);
    KEEP_FIRST(result, update_destroy(&job->update));
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
    struct job_data data = data_of(job);
    TRY(comm_agree(job->world, job_data_validation(&data, job->evaluate_samples, &loader)));
    grading_begin(job->grading);
    status result = step_evaluate(job->step, loader, ballot, sums);
    if (result == STATUS_OK) {
        result = grading_end(job->grading, job->session.mesh.data);
    }
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}
