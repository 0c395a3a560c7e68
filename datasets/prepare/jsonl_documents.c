/* JSON Lines as plain documents: the text in the field "text". */
#include "datasets/rows/jsonl.h"
#include "datasets/prepare/input.h"

static status use_row(void *user, struct jsonl_row *row)
{
    struct input *in = user;
    const char *text;
    size_t bytes;
    TRY(jsonl_text(row->value, "text", &text, &bytes));
    row->blameless = true; /* what the encoder tells from here on may be of an earlier row */
    cutter_begin(in->cutter, (struct origin){row->path, row->line, true});
    TRY(cutter_write(in->cutter, text, bytes));
    return cutter_end(in->cutter);
}

status prepare_jsonl(struct input *in, const char *path)
{
    struct jsonl_bad bad = {.skip = in->options->skip_bad_rows, .count = in->report->bad_rows};
    status result = jsonl_read(path, &bad, &in->report->bytes, use_row, in);
    in->report->bad_rows = bad.count;
    return result;
}
