/* Fuzz target: CSV. The strict reader and the one that skips bad rows agree. */
#include "datasets/rows/csv.h"
#include "tests/fuzz/read_rows.h"

/* Reads a table with the delimiter of its first line. */
static status read_table(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                         status (*use)(void *user, struct jsonl_row *row), void *user)
{
    return csv_read(path, '\0', bad, bytes, use, user);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return read_rows(read_table, fuzz_write_file("rows.csv", data, bytes));
}
