#include "datasets/prepare/rows.h"
#include "datasets/prepare/prepare.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "datasets/prepare/row_workers.h"
#include "datasets/rows/csv.h"

static status read_file(const char *path, struct jsonl_bad_rows *bad_rows, int64_t *bytes,
                        status (*use)(void *user, struct jsonl_row *row), void *user)
{
    size_t length = strlen(path);
    bool csv = length > 4 && strcmp(path + length - 4, ".csv") == 0;
    return (csv ? csv_read : jsonl_read)(path, bad_rows, bytes, use, user);
}

status rows_prescan(const struct prepare_options *o,
                    status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct jsonl_bad_rows bad_rows = {.skip = true, .quiet = true};
    int64_t bytes = 0;
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_file(o->inputs[i], &bad_rows, &bytes, use, user));
    }
    for (int i = 0; i < o->validation_input_count; i++) {
        TRY(read_file(o->validation_inputs[i], &bad_rows, &bytes, use, user));
    }
    return STATUS_OK;
}

/* Calls process_row for the rows of the files. Rows that the reader rejects are counted in
 * bad_rows. */
static status read_sequential(const struct rows_preparation *p, char *const *paths, int count,
                              struct jsonl_bad_rows *bad_rows)
{
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = read_file(paths[i], bad_rows, &p->report->bytes, p->process_row, p->user);
        log_progress("%" PRId64 " %s", p->report->examples, p->unit_name);
    }
    return result;
}

/* Encodes the rows of the files in several threads. */
static status read_parallel(const struct rows_preparation *p, char *const *paths, int count,
                            struct jsonl_bad_rows *bad_rows)
{
    struct row_workers *workers = NULL;
    TRY(row_workers_open(p, bad_rows, &workers));
    struct jsonl_bad_rows deferred = {
        .skip = bad_rows->skip, .defer = row_workers_defer, .user = workers};
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = read_file(paths[i], &deferred, &p->report->bytes, row_workers_add, workers);
        result = result == STATUS_OK ? row_workers_drain(workers) : result;
        log_progress("%" PRId64 " %s", p->report->examples, p->unit_name);
    }
    row_workers_close(&workers);
    return result;
}

static status read_split(const struct rows_preparation *p, char *const *paths, int count)
{
    struct jsonl_bad_rows bad_rows = {.skip = p->options->skip_bad_rows,
                                      .count = p->report->bad_rows};
    status result =
        (p->encode_row != NULL ? read_parallel : read_sequential)(p, paths, count, &bad_rows);
    p->report->bad_rows = bad_rows.count;
    return result;
}

static status read_all(const struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    bool has_validation_inputs = o->validation_input_count > 0;
    *p->split = has_validation_inputs ? PREPARE_SPLIT_TRAIN : PREPARE_SPLIT_BY_FRACTION;
    TRY(read_split(p, o->inputs, o->input_count));
    *p->split = PREPARE_SPLIT_VALIDATION;
    TRY(has_validation_inputs ? read_split(p, o->validation_inputs, o->validation_input_count)
                              : STATUS_OK);
    REQUIRE(p->report->examples > 0, STATUS_DATA, "the inputs contain no %s that can be used",
            p->unit_name);
    return prepare_output_finish(*p->output, p->report);
}

/* Fills the label names: those of the options, otherwise the sorted names of all rows. */
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

status rows_prepare(const struct rows_preparation *p)
{
    const struct prepare_options *o = p->options;
    double start = clock_seconds();
    status result = STATUS_OK;
    TRY(prepare_options_check(o));
    REQUIRE(o->validation_fraction <= 0.0 || o->validation_input_count == 0, STATUS_USAGE,
            "give either a validation fraction or validation inputs, not both");
    TRY(p->labels != NULL ? determine_labels(p) : STATUS_OK);
    TRY_GOTO(result, done, prepare_output_open(o, p->kind, p->output));
    TRY_GOTO(result, done,
             p->labels != NULL ? prepare_output_set_labels(*p->output, p->labels) : STATUS_OK);
    TRY_GOTO(result, done, read_all(p));
    p->report->seconds = clock_seconds() - start;
done:
    prepare_output_close(p->output);
    return result;
}

void rows_count_example(struct prepare_report *report, int64_t tokens, int64_t truncated)
{
    report->longest_tokens = tokens > report->longest_tokens ? tokens : report->longest_tokens;
    report->overlong_rows += truncated > 0;
    report->truncated_tokens += truncated;
    report->examples++;
}
