#include "trainer/train/generated_outputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "comm/watchdog/watchdog.h"
#include "trainer/evaluation/target_scores.h"
#include "trainer/inference/generate.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/train/job_impl.h"

status generated_outputs_encode_prompt(const struct recipe *r, const struct tokenizer *tokenizer,
                                       struct token_list *ids)
{
    TRY(generate_encode_prompt(tokenizer, r->generate.prompt, ids));
    if (ids->count >= r->data.sequence_length) {
        return recipe_raise(r, STATUS_RECIPE, "generate.prompt",
                            "%" PRId64 " tokens leave no room for a new token in "
                            "data.sequence_length (%" PRId64 "); shorten it",
                            ids->count, r->data.sequence_length);
    }
    return STATUS_OK;
}

static int64_t compute_prompt_bytes(const struct recipe *r, const struct model_config *config,
                                    enum dtype dtype)
{
    bool has_prompt = r->generate.prompt[0] != '\0';
    return has_prompt
               ? generate_bytes(config, dtype, (int)r->parallel.tensor, r->data.sequence_length)
               : 0;
}

/* Returns the memory of the task that needs most. A task file that cannot be read counts as
 * generate_until, which needs most. */
static int64_t compute_task_bytes(const struct recipe *r, const struct model_config *config,
                                  enum dtype dtype)
{
    int64_t most = 0;
    for (const char *cursor = r->evaluate.tasks; *cursor != '\0';) {
        char path[RECIPE_PATH_BYTES];
        struct task_config c = {0};
        (void)recipe_list_next(&cursor, path, sizeof path);
        if (task_config_read(path, &c) != STATUS_OK) {
            status_clear();
            c.output = TASK_GENERATE_UNTIL;
        }
        int64_t bytes = task_run_bytes(&c, config, dtype, (int)r->parallel.tensor, derive_rows(r),
                                       r->data.sequence_length);
        most = number_max(most, bytes);
        task_config_free(&c);
    }
    return most;
}

int64_t generated_outputs_bytes(const struct recipe *r, const struct model_config *config,
                                enum dtype dtype)
{
    const int64_t bytes[] = {compute_prompt_bytes(r, config, dtype),
                             compute_task_bytes(r, config, dtype),
                             target_scores_bytes(r, config, dtype)};
    int64_t most = 0;
    for (int i = 0; i < COUNT(bytes); i++) {
        most = number_max(most, bytes[i]);
    }
    return most;
}

/* Restarts the limit of the phase before each token: the limit is for a token, not for a text. */
static bool renew_phase(void)
{
    watchdog_renew();
    return false;
}

/* The text stays within data.sequence_length, for which the memory of the kernels is planned. */
static status generate_text(struct session *s, const struct token_list *prompt, char **out)
{
    const struct recipe *r = &s->recipe;
    int64_t room = r->data.sequence_length - prompt->count, rows = derive_rows(r);
    struct generate_options options = generate_options_default();
    options.sampler.temperature = r->generate.temperature;
    options.sampler.seed = (uint64_t)r->seed;
    options.max_new_tokens = number_min(r->generate.max_new_tokens, room);
    options.chunk_tokens = number_min(rows, 256);
    options.tensor_group = s->mesh.tensor;
    options.should_stop = renew_phase;
    struct generate_output output = {0};
    size_t bytes = 0;
    status result =
        generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options, NULL, NULL, &output);
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &options, &output, out, &bytes);
    }
    for (size_t i = 0; result == STATUS_OK && i < bytes; i++) {
        (*out)[i] = (*out)[i] == '\0' ? '?' : (*out)[i]; /* a NUL does not end the text */
    }
    token_list_free(&output.tokens);
    return result;
}

static status generate_from_recipe(struct session *s, char **out)
{
    struct token_list prompt = {0};
    status result = comm_abort_on_error(
        s->mesh.tensor, generated_outputs_encode_prompt(&s->recipe, s->tokenizer, &prompt));
    if (result == STATUS_OK) {
        result = generate_text(s, &prompt, out);
    }
    token_list_free(&prompt);
    return result;
}

status generated_outputs_run_prompt(struct job *job, status *written)
{
    char *text = NULL;
    double start = clock_seconds();
    TRY(sharded_optimizer_wait_all(job->optimizer));
    status result = comm_agree(job->world, generate_from_recipe(&job->session, &text));
    if (result != STATUS_OK) {
        free(text); /* the error may come from another rank */
        return result;
    }
    const struct metric fields[] = {
        metric_text("prompt", job->session.recipe.generate.prompt),
        metric_text("text", text),
        metric_number("seconds", clock_seconds() - start),
    };
    *written = job->metrics == NULL
                   ? STATUS_OK
                   : metrics_write(job->metrics, "sample", job->state.step, fields, COUNT(fields));
    free(text);
    return STATUS_OK;
}

/* ---- tasks ---- */

static status open_tasks(const struct recipe *r, struct task_set *out)
{
    char paths[TASK_SET_MAX][RECIPE_PATH_BYTES];
    char *list[TASK_SET_MAX];
    int count = 0;
    for (const char *cursor = r->evaluate.tasks; *cursor != '\0'; count++) {
        if (count == TASK_SET_MAX) {
            return recipe_raise(r, STATUS_RECIPE, "evaluate.tasks", "has more than %d tasks",
                                TASK_SET_MAX);
        }
        (void)recipe_list_next(&cursor, paths[count], sizeof paths[count]);
        list[count] = paths[count];
    }
    status result = task_set_open(list, count, -1, r->evaluate.task_limit, out);
    return recipe_annotate_error(r, "evaluate.tasks", result, "");
}

/* Checks that the outputs of generate_until leave room for a context. */
static status check_lengths(const struct recipe *r, const struct task_set *set)
{
    for (int i = 0; i < set->count; i++) {
        const struct task_config *c = task_get_config(set->tasks[i]);
        if (c->output == TASK_GENERATE_UNTIL && c->max_new_tokens >= r->data.sequence_length) {
            return recipe_raise(r, STATUS_RECIPE, "evaluate.tasks",
                                "%s generates %" PRId64 " tokens (max_gen_toks), which leave no "
                                "room for a context in data.sequence_length, %" PRId64
                                "; lower max_gen_toks in its generation_kwargs",
                                c->path, c->max_new_tokens, r->data.sequence_length);
        }
    }
    return STATUS_OK;
}

status generated_outputs_open_tasks(const struct recipe *r, struct task_set *out)
{
    const char *metric = r->evaluate.metric;
    TRY(open_tasks(r, out));
    TRY(check_lengths(r, out));
    if (strchr(metric, '/') != NULL && !task_set_has_metric(out, metric)) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                            "'%s' is not a metric of evaluate.tasks; the metrics are TASK/METRIC",
                            metric);
    }
    return STATUS_OK;
}

status generated_outputs_check_tasks(const struct recipe *r)
{
    struct task_set set = {0};
    status result = generated_outputs_open_tasks(r, &set);
    task_set_close(&set);
    return result;
}

/* Logs "step 20: arc/acc 0.2500 +- 0.0612, arc/acc_norm ...", as far as the line has room. */
static void log_tasks(const struct job *job, const struct task_field *fields, int count)
{
    char line[TEXT_LINE_COLUMNS + 1], part[2 * TASK_FIELD_BYTES];
    char value[TEXT_NUMBER_BYTES], error[TEXT_NUMBER_BYTES];
    snprintf(line, sizeof line, "step %" PRId64 ":", job->state.step);
    bool is_first = true;
    for (int i = 0; i + 1 < count; i++) {
        if (fields[i].is_count || strstr(fields[i].name, "_stderr") != NULL) {
            continue;
        }
        snprintf(part, sizeof part, "%s %s %s +- %s", is_first ? "" : ",", fields[i].name,
                 text_from_metric(fields[i].value, value),
                 text_from_metric(fields[i + 1].value, error));
        is_first = false;
        (void)text_append_fitting(line, part);
    }
    log_info("%s", line);
}

status generated_outputs_run_tasks(struct job *job, const struct stop_poll *poll,
                                   struct task_field names[TASK_SET_FIELDS], struct metric *fields,
                                   int *count)
{
    const struct session *s = &job->session;
    const struct task_model model = {
        .kernels = s->kernels,
        .model = s->model,
        .tokenizer = s->tokenizer,
        .mesh = &s->mesh,
        .rows = derive_rows(&s->recipe),
        .max_tokens = s->recipe.data.sequence_length,
        .seed = (uint64_t)s->recipe.seed,
        .poll = poll,
    };
    int found = 0;
    if (job->tasks.count == 0) {
        return STATUS_OK;
    }
    TRY(sharded_optimizer_wait_all(job->optimizer));
    TRY(task_set_run(&job->tasks, &model, NULL, names, &found));
    if (found > 0) {
        log_tasks(job, names, found);
    }
    for (int i = 0; i < found; i++) {
        fields[(*count)++] = names[i].is_count
                                 ? metric_integer(names[i].name, (int64_t)names[i].value)
                                 : metric_number(names[i].name, names[i].value);
    }
    return STATUS_OK;
}

/* ---- generated targets ---- */

static status read_generation(const struct recipe *r, int64_t vocabulary,
                              const struct tokenizer *tokenizer, struct generate_options *out)
{
    return r->evaluate.generate
               ? target_scores_read_options(r, r->data.tokenizer, vocabulary, tokenizer,
                                            derive_decoder_start(r, tokenizer), out)
               : STATUS_OK;
}

status generated_outputs_check_targets(const struct recipe *r, int64_t vocabulary,
                                       const struct tokenizer *tokenizer)
{
    struct generate_options options;
    return read_generation(r, vocabulary, tokenizer, &options);
}

status generated_outputs_prepare_targets(struct job *job)
{
    const struct session *s = &job->session;
    return read_generation(&s->recipe, model_get_config(s->model)->vocabulary, s->tokenizer,
                           &job->generation);
}

static status score_targets(struct job *job, const struct stop_poll *poll, struct loader *loader,
                            struct metric *fields, int *count)
{
    const struct session *s = &job->session;
    const struct target_scores scores = {
        .kernels = s->kernels,
        .model = s->model,
        .tokenizer = s->tokenizer,
        .mesh = &s->mesh,
        .options = job->generation,
        .batch_size = s->recipe.batch.micro_size,
        .poll = poll,
    };
    int found = 0;
    TRY(sharded_optimizer_wait_all(job->optimizer));
    TRY(target_scores_run(&scores, loader, fields + *count, &found));
    *count += found;
    return STATUS_OK;
}

status generated_outputs_score_targets(struct job *job, const struct stop_poll *poll,
                                       struct metric *fields, int *count)
{
    struct loader *loader = NULL;
    struct data_setup data = job_get_data_setup(job);
    if (!job->session.recipe.evaluate.generate) {
        return STATUS_OK;
    }
    TRY(comm_agree(job->world, data_open_validation(&data, job->evaluate_samples, &loader)));
    status result = score_targets(job, poll, loader, fields, count);
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}
