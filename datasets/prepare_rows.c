/* What all preparations of JSON Lines rows have in common: the order of the inputs, their sides, the bad rows. */
#include "base/clock.h"
#include "base/log.h"
#include "datasets/prepare_impl.h"

static status read_files(const struct row_preparation *p, char *const *paths, int count)
{
    struct jsonl_bad bad = {p->options->skip_bad_rows, p->report->bad_rows};
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = jsonl_read(paths[i], &bad, &p->report->bytes, p->use, p->user);
        log_progress("%lld %s", (long long)p->report->examples, p->what);
    }
    p->report->bad_rows = bad.count;
    return result;
}

static status read_all(const struct row_preparation *p)
{
    const struct prepare_options *o = p->options;
    bool given = o->validation_input_count > 0;
    *p->side = given ? OUTPUT_TRAIN : OUTPUT_AS_SPLIT;
    TRY(read_files(p, o->inputs, o->input_count));
    *p->side = OUTPUT_VALIDATION;
    TRY(given ? read_files(p, o->validation_inputs, o->validation_input_count) : STATUS_OK);
    REQUIRE(p->report->examples > 0, STATUS_DATA, "the inputs hold no %s that can be used",
            p->what);
    return output_finish(*p->output, p->report);
}

status rows_prepare(const struct row_preparation *p)
{
    const struct prepare_options *o = p->options;
    double began = clock_seconds();
    status result = STATUS_OK;
    TRY(prepare_check(o));
    REQUIRE(o->validation_fraction <= 0.0 || o->validation_input_count == 0, STATUS_USAGE,
            "give either a validation fraction or validation inputs");
    TRY_GOTO(result, done, output_open(o, p->kind, p->output));
    TRY_GOTO(result, done, read_all(p));
    p->report->seconds = clock_seconds() - began;
done:
    output_close(p->output);
    return result;
}
