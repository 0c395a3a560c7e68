#include "datasets/prepare/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/input/input.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_workers.h"
#include "datasets/rows/aligned_lines.h"
#include "datasets/rows/row_file.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shared_examples.h"

enum { READ_VALUES = 4096 };

/* Ignores the pending error of a bad row: the second pass reports it. */
static status ignore_bad_row(void *user, const char *path, int64_t line)
{
    (void)user;
    (void)path;
    (void)line;
    status_clear();
    return STATUS_OK;
}

/* Copies standard input and pipes, so that they can be read again. */
static status keep_streams(const struct prepare_options *o, char *const *paths, int count)
{
    for (int i = 0; i < count; i++) {
        TRY(input_keep(paths[i], o->output));
    }
    return STATUS_OK;
}

/* Calls `use` for the rows of file i of the paths: the inputs or the validation inputs. */
static status read_file(const struct prepare_options *o, char *const *paths, int i,
                        struct jsonl_bad_rows *bad_rows, int64_t *bytes,
                        status (*use)(void *user, struct jsonl_row *row), void *user)
{
    char *const *targets = paths == o->inputs ? o->targets : o->validation_targets;
    return targets != NULL ? aligned_lines_read(paths[i], targets[i], bad_rows, bytes, use, user)
                           : row_file_read(&o->format, paths[i], bad_rows, bytes, use, user);
}

status rows_prescan(const struct prepare_options *o,
                    status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct jsonl_bad_rows bad_rows = {
        .skip = o->skip_bad_rows, .quiet = true, .defer = ignore_bad_row};
    int64_t bytes = 0;
    TRY(keep_streams(o, o->inputs, o->input_count));
    TRY(keep_streams(o, o->validation_inputs, o->validation_input_count));
    TRY(o->targets != NULL ? keep_streams(o, o->targets, o->input_count) : STATUS_OK);
    TRY(o->validation_targets != NULL
            ? keep_streams(o, o->validation_targets, o->validation_input_count)
            : STATUS_OK);
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_file(o, o->inputs, i, &bad_rows, &bytes, use, user));
    }
    for (int i = 0; i < o->validation_input_count; i++) {
        TRY(read_file(o, o->validation_inputs, i, &bad_rows, &bytes, use, user));
    }
    return STATUS_OK;
}

/* Logs the number of examples so far: "1 row", "2 rows". */
static void log_rows(const struct rows_preparation *p)
{
    int letters = (int)strlen(p->unit_name) - (p->report->examples == 1);
    log_progress("%" PRId64 " %.*s", p->report->examples, letters, p->unit_name);
}

/* Calls process_row for the rows of the files. Rows that the reader rejects are counted
 * in bad_rows. */
static status read_sequential(struct rows_preparation *p, char *const *paths, int count,
                              struct jsonl_bad_rows *bad_rows)
{
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result =
            read_file(p->options, paths, i, bad_rows, &p->report->bytes, p->process_row, p->user);
        log_rows(p);
    }
    return result;
}

/* Renders rows with a template before the workers encode them. */
struct row_renderer {
    struct instruction_templates *templates;
    int64_t file; /* number of the current file among all inputs */
    struct row_workers *workers;
};

static status add_rendered(void *user, struct jsonl_row *row)
{
    struct row_renderer *r = user;
    TRY(instruction_templates_render(r->templates, r->file, row));
    return row_workers_add(r->workers, row);
}

/* Encodes the rows of the files in several threads. */
static status read_parallel(struct rows_preparation *p, char *const *paths, int count,
                            struct jsonl_bad_rows *bad_rows)
{
    struct row_workers *workers = NULL;
    TRY(row_workers_open(p, bad_rows, &workers));
    struct jsonl_bad_rows deferred = {
        .skip = bad_rows->skip, .defer = row_workers_defer, .user = workers};
    const struct prepare_options *o = p->options;
    struct row_renderer renderer = {.templates = o->templates, .workers = workers};
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        renderer.file = i + (paths == o->inputs ? 0 : o->input_count);
        result =
            o->templates != NULL
                ? read_file(o, paths, i, &deferred, &p->report->bytes, add_rendered, &renderer)
                : read_file(o, paths, i, &deferred, &p->report->bytes, row_workers_add, workers);
        result = result == STATUS_OK ? row_workers_drain(workers) : result;
        log_rows(p);
    }
    row_workers_close(&workers);
    return result;
}

static status read_split(struct rows_preparation *p, char *const *paths, int count)
{
    struct jsonl_bad_rows bad_rows = {.skip = p->options->skip_bad_rows,
                                      .count = p->report->bad_rows};
    status result =
        (p->encode_row != NULL ? read_parallel : read_sequential)(p, paths, count, &bad_rows);
    p->report->bad_rows = bad_rows.count;
    return result;
}

static status read_all(struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    bool has_validation_inputs = o->validation_input_count > 0;
    p->split.input = has_validation_inputs ? PREPARE_SPLIT_TRAIN : PREPARE_SPLIT_BY_FRACTION;
    TRY(read_split(p, o->inputs, o->input_count));
    p->split.input = PREPARE_SPLIT_VALIDATION;
    TRY(has_validation_inputs ? read_split(p, o->validation_inputs, o->validation_input_count)
                              : STATUS_OK);
    REQUIRE(p->report->examples > 0, STATUS_DATA, "the inputs contain no %s that can be used",
            p->unit_name);
    return prepare_output_finish(p->output, p->report);
}

/* Fills the label names: the names of the options, otherwise the sorted names of all rows. */
static status determine_labels(const struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    if (o->labels != NULL) {
        TRY(labels_parse(o->labels, p->labels));
    } else {
        TRY(rows_prescan(o, p->collect_labels, p->labels));
        REQUIRE(p->labels->count < LABELS_MAX, STATUS_DATA,
                "the inputs have %d labels or more; use --objective regress to learn numbers",
                LABELS_MAX);
        TRY(labels_sort(p->labels));
    }
    p->report->label_count = p->labels->count;
    return STATUS_OK;
}

/* Counts a row in its stratum. */
static status count_row(void *user, struct jsonl_row *row)
{
    struct rows_preparation *p = user;
    int stratum = 0;
    TRY(p->find_stratum != NULL ? p->find_stratum(p->user, row->value, &stratum) : STATUS_OK);
    p->split.strata[stratum].rows++;
    return STATUS_OK;
}

/* Requires that two rows have the same label, if there are several rows. A label with only one
 * row occurs only in the training set. */
static status check_strata(const struct row_split *split)
{
    int64_t rows = 0, largest = 0;
    for (int i = 0; i < split->count; i++) {
        rows += split->strata[i].rows;
        largest = number_max(largest, split->strata[i].rows);
    }
    REQUIRE(largest > 1 || rows < 2, STATUS_DATA,
            "no two of the %" PRId64 " rows have the same label, so the validation set is empty; "
            "check the columns (--columns text=NAME,label=NAME), use --objective regress for "
            "numbers, or --split last",
            rows);
    return STATUS_OK;
}

/* Plans the random split in a pass over all rows. */
static status plan_split(struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    if (o->validation_fraction <= 0.0 || !o->shuffle_split || p->chooses_split) {
        return STATUS_OK;
    }
    TRY(row_split_open(&p->split, p->find_stratum != NULL ? p->labels->count : 1, o->split_seed));
    TRY(rows_prescan(o, count_row, p));
    row_split_plan(&p->split, o->validation_fraction);
    return check_strata(&p->split);
}

/* ---- counts of labels ---- */

/* Returns the column with the labels of this kind. */
static int get_label_column(enum example_kind kind)
{
    return kind == EXAMPLE_CLASSIFY_TOKENS ? EXAMPLE_TOKEN_LABEL
           : kind == EXAMPLE_CHOOSE        ? EXAMPLE_TEXTS_LABEL
                                           : EXAMPLE_TASK_LABEL;
}

struct label_counter {
    int64_t labels;
    int64_t *counts;
};

/* Adds the labels of an open shard to the counts. Tokens without a label do not count. */
static status count_shard(struct shard *shard, void *context)
{
    const struct label_counter *counter = context;
    const struct shard_header *h = shard_get_header(shard);
    int column = get_label_column(h->kind);
    bool per_token = example_get_format(h->kind)->column[column].per_token;
    uint32_t values[READ_VALUES];
    int64_t end = per_token ? h->tokens : h->documents;
    for (int64_t first = 0, count; first < end; first += count) {
        count = number_min(end - first, READ_VALUES);
        TRY(shard_read_column(shard, column, first, count, values));
        for (int64_t i = 0; i < count; i++) {
            if (values[i] < (uint32_t)counter->labels) {
                counter->counts[values[i]]++;
            }
        }
    }
    return STATUS_OK;
}

/* Counts the labels of the shards that were written. */
static status count_labels(const struct rows_preparation *p)
{
    const struct prepare_options *options = p->options;
    const struct prepare_report *report = p->report;
    const struct labels *labels = p->labels;
    struct prepare_label_counts *c = options->label_counts;
    TRY(ALLOCATE(c->names, labels->count, "label names"));
    TRY(ALLOCATE(c->train, labels->count, "label counts"));
    TRY(ALLOCATE(c->validation, labels->count, "label counts"));
    for (; c->count < labels->count; c->count++) {
        TRY(memory_copy_text(&c->names[c->count], labels->names[c->count], "a label name"));
    }
    struct label_counter train = {c->count, c->train}, validation = {c->count, c->validation};
    TRY(shard_for_each_part(options->output, "train", report->train_shards, count_shard, &train));
    return shard_for_each_part(options->output, "validation", report->validation_shards,
                               count_shard, &validation);
}

/* Counts the validation examples that are training examples too. The shards are complete, so an
 * error is only a warning. */
static void count_shared_examples(const struct rows_preparation *p)
{
    struct prepare_report *r = p->report;
    if (shared_examples_count(p->options->output, r->train_shards, r->validation_shards,
                              r->validation_examples, &r->shared_examples) != STATUS_OK) {
        struct status_note note;
        status_take(&note);
        r->shared_examples = 0;
        log_warning("SAME-DATA",
                    "the validation set was not compared with the training set: %.1500s",
                    note.text);
    }
}

status rows_prepare(struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    double start = clock_seconds();
    status result = STATUS_OK;
    TRY(prepare_options_check(o));
    REQUIRE(o->validation_fraction <= 0.0 || o->validation_input_count == 0, STATUS_USAGE,
            "give either a validation fraction or validation inputs, not both");
    TRY(prepare_output_open(o, p->kind, &p->output)); /* the lock is held while rows are counted */
    TRY_GOTO(result, done, p->labels != NULL ? determine_labels(p) : STATUS_OK);
    TRY_GOTO(result, done, plan_split(p));
    TRY_GOTO(result, done,
             p->labels != NULL ? prepare_output_set_labels(p->output, p->labels) : STATUS_OK);
    TRY_GOTO(result, done, read_all(p));
    if (p->labels != NULL && o->label_counts != NULL) {
        TRY_GOTO(result, done, count_labels(p));
    }
    count_shared_examples(p);
    p->report->seconds = clock_seconds() - start;
done:
    prepare_output_close(&p->output);
    row_split_close(&p->split);
    return result;
}

void rows_count_example(struct prepare_report *report, int64_t tokens, int64_t truncated)
{
    report->longest_tokens = number_max(report->longest_tokens, tokens);
    report->overlong_rows += truncated > 0;
    report->truncated_tokens += truncated;
    report->most_truncated = number_max(report->most_truncated, truncated);
    report->examples++;
}

void prepare_label_counts_free(struct prepare_label_counts *counts)
{
    for (int i = 0; i < counts->count; i++) {
        free(counts->names[i]);
    }
    free(counts->names);
    free(counts->train);
    free(counts->validation);
    *counts = (struct prepare_label_counts){0};
}
