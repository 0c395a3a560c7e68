/* Reads rows of a file in any of the supported formats. The name selects the format, without the
 * suffix of a compression: *.csv and *.tsv are tables with the names of the columns in the first
 * row (csv.h), every other file is JSON Lines (jsonl.h). Standard input and pipes without such a
 * name are JSON Lines if they begin with an object, otherwise tables. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/rows/columns.h"
#include "datasets/rows/jsonl.h"

/* How to read rows. All zeros: the defaults. */
struct row_format {
    struct columns columns;
    char delimiter; /* of tables; '\0': as csv_read_open determines */
    bool has_squad; /* read SQuAD's own JSON (squad.h) too, recognized by its beginning */
};

/* row_file_is_table - return whether the name ends in .csv or .tsv. */
bool row_file_is_table(const char *path);

/* row_file_read - call `use` for every row of a file, in order, after columns_rename.
 *
 * Errors    as jsonl_read and csv_read_open; a row without one of the columns is a bad row */
status row_file_read(const struct row_format *format, const char *path, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user);

/* row_file_read_open - call `use` for every row of an open file, as row_file_read does. The caller
 * closes the file. */
status row_file_read_open(const struct row_format *format, struct file_reader *r, const char *path,
                          struct jsonl_bad_rows *bad, int64_t *bytes,
                          status (*use)(void *user, struct jsonl_row *row), void *user);
