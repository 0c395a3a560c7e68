#include "trainer/train/summary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "datasets/chat/chat.h"
#include "trainer/logging/report/history.h"
#include "trainer/setup/objective_spec.h"

enum { COMMAND_BYTES = 2 * FILE_PATH_BYTES };

/* ---- the table of evaluations ---- */

/* Returns the index of the best value of a series. */
static int64_t find_best(const struct history_series *s, bool greater_is_better)
{
    int64_t best = 0;
    for (int64_t i = 1; i < s->count; i++) {
        if (greater_is_better ? s->values[i] > s->values[best] : s->values[i] < s->values[best]) {
            best = i;
        }
    }
    return best;
}

/* Writes the value of a series at a step; "" if it has none. */
static void format_value(const struct history_series *s, double step, char *text)
{
    text[0] = '\0';
    for (int64_t i = 0; i < s->count; i++) {
        if (s->steps[i] == step) {
            (void)text_from_metric(s->values[i], text);
        }
    }
}

/* Returns whether the table has a row for this series: a number that depends on the weights, of all
 * labels together. */
static bool has_row(const struct job *job, const char *name)
{
    return strchr(name, '.') == NULL && strcmp(name, "seconds") != 0 &&
           strcmp(name, job->objective->unit) != 0;
}

static void log_row(const struct history_series *s, const double steps[3])
{
    char values[3][TEXT_NUMBER_BYTES];
    for (int i = 0; i < 3; i++) {
        format_value(s, steps[i], values[i]);
    }
    log_info("  %-26s %12s %12s %12s", s->name, values[0], values[1], values[2]);
}

/* Returns the step of the best evaluation: the one of the final weights if the run keeps the best,
 * which does not have to be the first one with this value. */
static double find_best_step(const struct job *job, const struct history_series *s)
{
    const struct early_stopping_rule *rule = &job->early_stopping_rule;
    return job->session.recipe.checkpoint.keep_best && job->early_stopping.has_value
               ? (double)job->early_stopping.step
               : s->steps[find_best(s, rule->greater_is_better)];
}

/* Logs the first, best and last evaluation. evaluate.metric selects the best one. */
static void log_evaluations(const struct job *job, const struct history *h)
{
    const struct early_stopping_rule *rule = &job->early_stopping_rule;
    const char *metric = rule->metric != NULL ? rule->metric : "loss";
    const struct history_series *s = history_find(&h->evaluate, metric);
    if (s == NULL || s->count == 0) {
        return;
    }
    const double steps[] = {s->steps[0], find_best_step(job, s), s->steps[s->count - 1]};
    log_info("  %-26s %12s %12s %12s", "validation", "first", "best", "last");
    log_info("  %-26s %12.0f %12.0f %12.0f", "step", steps[0], steps[1], steps[2]);
    for (int i = 0; i < h->evaluate.count; i++) {
        if (has_row(job, h->evaluate.series[i].name)) {
            log_row(&h->evaluate.series[i], steps);
        }
    }
}

/* ---- commands ---- */

static void append_text(char *command, const char *text)
{
    size_t used = strlen(command);
    snprintf(command + used, COMMAND_BYTES - used, "%s", text);
}

/* Appends a word to a command, in quotes if the shell would change it. Cuts a long command. */
static void append_word(char *command, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./=:,+-@%";
    bool quoted = word[0] == '\0' || word[strspn(word, plain)] != '\0';
    append_text(command, command[0] != '\0' ? " " : "");
    append_text(command, quoted ? "'" : "");
    for (; *word != '\0'; word++) {
        append_text(command, *word == '\'' ? "'\\''" : (const char[]){*word, '\0'});
    }
    append_text(command, quoted ? "'" : "");
}

/* Logs how to continue the run. A restart must not contain --resume never. */
static void log_resume_command(const struct job_options *options)
{
    char command[COMMAND_BYTES] = "";
    if (comm_is_launched()) {
        log_info("to continue, start the job again in the same way");
        return;
    }
    append_word(command, "bireme");
    append_word(command, "train");
    append_word(command, options->recipe_path);
    for (int i = 0; i < options->override_count; i++) {
        append_word(command, options->overrides[i]);
    }
    log_info("to continue:");
    log_info("  %s", command);
}

/* Returns whether the tokenizer has a chat template. */
static bool has_chat_template(const struct recipe *r)
{
    char path[FILE_PATH_BYTES];
    return file_join(path, r->data.tokenizer, CHAT_FILE) == STATUS_OK && file_exists(path);
}

/* Returns the command that uses a model of this objective, and its arguments after --checkpoint. */
static const char *get_query(const struct recipe *r, const char **arguments)
{
    switch (r->objective) {
    case OBJECTIVE_CLM:
        *arguments = " --prompt 'TEXT'";
        break;
    case OBJECTIVE_SFT:
    case OBJECTIVE_DPO:
        *arguments = has_chat_template(r) ? "" : " --prompt 'TEXT'";
        return has_chat_template(r) ? "chat" : objective_spec_command(r);
    case OBJECTIVE_MLM:
        *arguments = r->model.architecture == ARCHITECTURE_ROBERTA ? " 'TEXT with <mask>'"
                                                                   : " 'TEXT with [MASK]'";
        break;
    case OBJECTIVE_ANSWER:
        *arguments = " --question 'TEXT' FILE";
        break;
    case OBJECTIVE_DENOISE:
        *arguments = " --data 'FILE.h5'";
        break;
    case OBJECTIVE_EMBED:
        *arguments = " --similarity FILE";
        break;
    default:
        *arguments = " FILE";
        break;
    }
    return objective_spec_command(r);
}

static void log_next_commands(const struct recipe *r)
{
    char folder[FILE_PATH_BYTES], checkpoint[COMMAND_BYTES] = "", run[COMMAND_BYTES] = "";
    const char *arguments, *query = get_query(r, &arguments);
    snprintf(folder, sizeof folder, "%s/final", r->run_dir);
    append_word(checkpoint, folder);
    append_word(run, r->run_dir);
    log_info("next:");
    if (r->data.tokenizer[0] != '\0') {
        log_info("  bireme %s --checkpoint %s%s", query, checkpoint, arguments);
    }
    if (r->log.report) {
        log_info("  bireme inspect %s --plot", run);
    } else {
        log_info("  bireme report %s --output report.html", run);
    }
}

/* ---- the summary ---- */

static void log_places(const struct job *job, bool stopped)
{
    const struct recipe *r = &job->session.recipe;
    char folder[FILE_PATH_BYTES];
    if (!stopped) {
        log_info("  %-26s %s/final", "weights", r->run_dir);
    } else if (checkpoint_step_path(job->checkpoint, job->state.step, folder, sizeof folder) ==
               STATUS_OK) {
        log_info("  %-26s %s", "checkpoint", folder);
    }
    if (r->log.report) {
        log_info("  %-26s %s/report.html", "curves", r->run_dir);
    }
}

static void log_totals(const struct job *job, const struct history *h)
{
    char duration[TEXT_NUMBER_BYTES];
    const json_t *seconds = json_object_get(h->end, "train_seconds");
    log_info("%" PRId64 " of %" PRId64 " steps, %" PRId64 " tokens, %s", job->state.step,
             job->total_steps, job->state.tokens,
             text_from_duration(json_number_value(seconds), duration));
}

void summary_log(const struct job *job, const struct job_options *options, bool stopped)
{
    struct history h;
    struct status_note pending;
    if (job->metrics == NULL) {
        return; /* another rank, or nothing was trained */
    }
    status_take(&pending);
    if (history_read(job->session.recipe.run_dir, &h) == STATUS_OK) {
        log_totals(job, &h);
        log_evaluations(job, &h);
    }
    history_free(&h);
    log_places(job, stopped);
    if (stopped) {
        log_resume_command(options);
    } else {
        job_log_time_limit(job);
        log_next_commands(&job->session.recipe);
    }
    status_clear();
    (void)status_restore(&pending);
}
