#include "datasets/rows/row_file.h"

#include "base/input/input.h"
#include "datasets/rows/csv.h"
#include "datasets/rows/squad.h"

/* The callback of the caller, which receives the renamed rows. */
struct renamed_rows {
    const struct columns *columns;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
};

static status use_renamed_row(void *user, struct jsonl_row *row)
{
    const struct renamed_rows *r = user;
    TRY(columns_rename(r->columns, row->value));
    return r->use(r->user, row);
}

bool row_file_is_table(const char *path)
{
    return input_has_suffix(path, ".csv") || input_has_suffix(path, ".tsv");
}

status row_file_read(const struct row_format *format, const char *path, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct file_reader r;
    TRY(file_reader_open(path, &r));
    status result = row_file_read_open(format, &r, path, bad, bytes, use, user);
    file_reader_close(&r);
    return result;
}

status row_file_read_open(const struct row_format *format, struct file_reader *r, const char *path,
                          struct jsonl_bad_rows *bad, int64_t *bytes,
                          status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct renamed_rows renamed = {&format->columns, use, user};
    bool is_json = !row_file_is_table(path);
    if (is_json && !jsonl_has_extension(path) && input_is_stream(path)) {
        TRY(input_looks_like_json(&r->input, &is_json));
    }
    bool is_squad = false;
    if (is_json && format->has_squad && !jsonl_has_extension(path)) {
        TRY(squad_detect(&r->input, &is_squad));
    }
    if (is_squad) {
        return squad_read_open(r, bad, bytes, use_renamed_row, &renamed);
    }
    return is_json ? jsonl_read_open(r, bad, bytes, use_renamed_row, &renamed)
                   : csv_read_open(r, format->delimiter, bad, bytes, use_renamed_row, &renamed);
}
