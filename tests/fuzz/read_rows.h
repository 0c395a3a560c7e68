/* Reads a file of rows for a fuzz target. */
#pragma once

#include "datasets/rows/jsonl.h"
#include "tests/fuzz/fuzz.h"

const struct fuzz_limits fuzz_limits = {.bytes = 2 << 20, .factor = 200};

typedef status row_reader(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                          status (*use)(void *user, struct jsonl_row *row), void *user);

static inline status count_row(void *user, struct jsonl_row *row)
{
    int64_t *count = user;
    fuzz_require(json_is_object(row->value) && row->line > 0, "a row is an object");
    ++*count;
    return STATUS_OK;
}

/* read_rows - read a file twice: with bad rows skipped, and without. */
static inline status read_rows(row_reader *read, const char *path)
{
    struct jsonl_bad_rows skip = {.skip = true, .quiet = true}, strict = {.quiet = true};
    int64_t skip_bytes = 0, strict_bytes = 0, rows = 0, strict_rows = 0;
    status skipped = read(path, &skip, &skip_bytes, count_row, &rows);
    if (skipped != STATUS_OK) {
        return skipped;
    }
    status result = read(path, &strict, &strict_bytes, count_row, &strict_rows);
    fuzz_require((result == STATUS_OK) == (skip.count == 0), "bad rows are found in both modes");
    fuzz_require(result != STATUS_OK || rows == strict_rows, "both modes read the same rows");
    return result;
}
