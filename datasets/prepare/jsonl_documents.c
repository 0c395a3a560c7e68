#include "datasets/prepare/jsonl_documents.h"

#include "datasets/rows/jsonl.h"

static status add_row(void *user, struct jsonl_row *row)
{
    struct prepare_input *in = user;
    const char *text;
    size_t bytes;
    TRY(jsonl_get_string(row->value, "text", &text, &bytes));
    row->fatal = true; /* errors from here on may be those of earlier rows */
    splitter_begin_document(in->splitter, (struct encoder_origin){row->path, row->line, true});
    TRY(splitter_write(in->splitter, text, bytes));
    return splitter_end_document(in->splitter);
}

status jsonl_documents_read(struct prepare_input *in, const char *path)
{
    struct jsonl_bad_rows bad_rows = {.skip = in->options->skip_bad_rows,
                                      .count = in->report->bad_rows};
    status result = jsonl_read(path, &bad_rows, &in->report->bytes, add_row, in);
    in->report->bad_rows = bad_rows.count;
    return result;
}
