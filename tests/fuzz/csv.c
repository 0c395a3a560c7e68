/* Fuzz target: tables. The strict reader and the one that skips bad rows agree. The first byte
 * selects the delimiter: from the first line, or a tab, which has other rules for quotes. */
#include "datasets/rows/row_file.h"
#include "tests/fuzz/read_rows.h"

static struct row_format format;

static status read_table(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                         status (*use)(void *user, struct jsonl_row *row), void *user)
{
    return row_file_read(&format, path, bad, bytes, use, user);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    bool has_tabs = bytes > 0 && *data == '\t';
    format.delimiter = has_tabs ? '\t' : '\0';
    return read_rows(read_table, fuzz_write_file("rows.csv", data + has_tabs, bytes - has_tabs));
}
