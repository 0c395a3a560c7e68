/* Fuzz target: tables. The strict reader and the one that skips bad rows agree. The first byte
 * selects the delimiter: that of the first line, or a tab, which has other rules for quotes. */
#include "datasets/rows/csv.h"
#include "tests/fuzz/read_rows.h"

static char delimiter;

static status read_table(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                         status (*use)(void *user, struct jsonl_row *row), void *user)
{
    return csv_read(path, delimiter, bad, bytes, use, user);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    bool has_tabs = bytes > 0 && *data == '\t';
    delimiter = has_tabs ? '\t' : '\0';
    return read_rows(read_table, fuzz_write_file("rows.csv", data + has_tabs, bytes - has_tabs));
}
