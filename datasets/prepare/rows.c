/* What all preparations of rows have in common: the order of the inputs, their sides, the bad rows. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "datasets/rows/csv.h"
#include "datasets/prepare/input.h"

static status read_file(const char *path, struct jsonl_bad *bad, int64_t *bytes,
                        status (*use)(void *user, struct jsonl_row *row), void *user)
{
    size_t length = strlen(path);
    bool csv = length > 4 && strcmp(path + length - 4, ".csv") == 0;
    return (csv ? csv_read : jsonl_read)(path, bad, bytes, use, user);
}

status rows_survey(const struct prepare_options *o,
                   status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct jsonl_bad bad = {.skip = true, .quiet = true};
    int64_t bytes = 0;
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_file(o->inputs[i], &bad, &bytes, use, user));
    }
    for (int i = 0; i < o->validation_input_count; i++) {
        TRY(read_file(o->validation_inputs[i], &bad, &bytes, use, user));
    }
    return STATUS_OK;
}

/* The files' rows to `use`, and those that the reader cannot read to `bad`. */
static status read_files(const struct row_preparation *p, char *const *paths, int count,
                         struct jsonl_bad *bad)
{
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = read_file(paths[i], bad, &p->report->bytes, p->use, p->user);
        log_progress("%lld %s", (long long)p->report->examples, p->what);
    }
    return result;
}

/* The same by several threads. */
static status read_parallel(const struct row_preparation *p, char *const *paths, int count,
                            struct jsonl_bad *bad)
{
    struct crew *crew = NULL;
    TRY(crew_open(p, bad, &crew));
    struct jsonl_bad kept = {.keep = crew_keep, .user = crew};
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = read_file(paths[i], &kept, &p->report->bytes, crew_row, crew);
        result = result == STATUS_OK ? crew_drain(crew) : result;
        log_progress("%lld %s", (long long)p->report->examples, p->what);
    }
    crew_close(&crew);
    return result;
}

static status read_side(const struct row_preparation *p, char *const *paths, int count)
{
    struct jsonl_bad bad = {.skip = p->options->skip_bad_rows, .count = p->report->bad_rows};
    status result = (p->encode != NULL ? read_parallel : read_files)(p, paths, count, &bad);
    p->report->bad_rows = bad.count;
    return result;
}

static status read_all(const struct row_preparation *p)
{
    const struct prepare_options *o = p->options;
    bool given = o->validation_input_count > 0;
    *p->side = given ? OUTPUT_TRAIN : OUTPUT_AS_SPLIT;
    TRY(read_side(p, o->inputs, o->input_count));
    *p->side = OUTPUT_VALIDATION;
    TRY(given ? read_side(p, o->validation_inputs, o->validation_input_count) : STATUS_OK);
    REQUIRE(p->report->examples > 0, STATUS_DATA, "the inputs hold no %s that can be used",
            p->what);
    return output_finish(*p->output, p->report);
}

/* The names that the options give, else those of all rows, in order. */
static status find_labels(const struct row_preparation *p)
{
    const struct prepare_options *o = p->options;
    if (o->labels != NULL) {
        TRY(labels_parse(o->labels, p->labels));
    } else {
        TRY(rows_survey(o, p->collect, p->labels));
        REQUIRE(p->labels->count < LABELS_MAX, STATUS_DATA,
                "the inputs have %d labels or more; numbers to be learned are for --objective "
                "regress",
                LABELS_MAX);
        TRY(labels_sort(p->labels));
    }
    p->report->labels = p->labels->count;
    return STATUS_OK;
}

status rows_prepare(const struct row_preparation *p)
{
    const struct prepare_options *o = p->options;
    double began = clock_seconds();
    status result = STATUS_OK;
    TRY(prepare_check(o));
    REQUIRE(o->validation_fraction <= 0.0 || o->validation_input_count == 0, STATUS_USAGE,
            "give either a validation fraction or validation inputs");
    TRY(p->labels != NULL ? find_labels(p) : STATUS_OK);
    TRY_GOTO(result, done, output_open(o, p->kind, p->output));
    TRY_GOTO(result, done, p->labels != NULL ? output_labels(*p->output, p->labels) : STATUS_OK);
    TRY_GOTO(result, done, read_all(p));
    p->report->seconds = clock_seconds() - began;
done:
    output_close(p->output);
    return result;
}
