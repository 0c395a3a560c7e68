#include "datasets/rows/row_file.h"

#include <string.h>

#include "datasets/rows/csv.h"

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
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".csv") == 0 || strcmp(dot, ".tsv") == 0);
}

status row_file_read(const struct row_format *format, const char *path, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct renamed_rows renamed = {&format->columns, use, user};
    return row_file_is_table(path)
               ? csv_read(path, format->delimiter, bad, bytes, use_renamed_row, &renamed)
               : jsonl_read(path, bad, bytes, use_renamed_row, &renamed);
}
