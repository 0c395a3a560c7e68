/* JSON Lines reader: one JSON object per line. It calls a function for each row.
 *
 * Every prepare command reports unusable rows ("bad rows") through struct jsonl_bad_rows. Lines of
 * white space are skipped. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/status.h"
#include "datasets/rows/file_reader.h"

/* The message about a row that is too long. */
#define JSONL_TOO_LONG "the row is longer than 64 MiB; check that each line holds one object"

struct jsonl_row {
    const char *path;
    int64_t line;  /* from 1 */
    json_t *value; /* an object; a callback that keeps the reference sets this to NULL */
    size_t bytes;  /* size of the row in the file */
    bool fatal;    /* set by the callback: a STATUS_DATA error is not a bad row and ends the read */
};

/* How to handle rows that cannot be used, and their count. */
struct jsonl_bad_rows {
    bool skip; /* count them and continue, instead of stopping at the first one */
    int64_t count;
    bool has_good_row; /* a row was used before */
    bool quiet;        /* log no warnings about rows */
    /* If not NULL: called for each bad row, instead of the handling above. It takes the pending
     * error, to report it later. `skip` still decides whether reading continues after a line that
     * is too long. */
    status (*defer)(void *user, const char *path, int64_t line);
    void *user; /* argument of defer */
};

/* jsonl_report_bad_row - skip or reject a row; the pending STATUS_DATA error is the reason.
 *
 * With bad->skip it logs a warning (for the first ten rows), increments bad->count and
 * returns STATUS_OK.
 *
 * Errors    STATUS_DATA: file, line, reason, and after a good row the option that skips bad rows */
status jsonl_report_bad_row(struct jsonl_bad_rows *bad, const char *path, int64_t line);

/* jsonl_read - call `use` for every row of a file, in order.
 *
 * A row is bad if it is not a JSON object or if `use` raises STATUS_DATA. The message of `use`
 * holds only the reason; this function adds the file and the line. Any other error, and STATUS_DATA
 * with row->fatal, ends the read and is returned unchanged.
 *
 * Units     adds the file's size in bytes to *bytes
 * Memory    the largest row (at most 64 MiB) and its parsed form
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: file, line, reason, and the option
 *           that skips bad rows */
status jsonl_read(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                  status (*use)(void *user, struct jsonl_row *row), void *user);

/* jsonl_read_open - call `use` for every row of an open file, as jsonl_read does. The caller closes
 * the file. */
status jsonl_read_open(struct file_reader *r, struct jsonl_bad_rows *bad, int64_t *bytes,
                       status (*use)(void *user, struct jsonl_row *row), void *user);

/* jsonl_has_extension - return whether the name ends in .jsonl or .ndjson (input_has_suffix). */
bool jsonl_has_extension(const char *path);

/* jsonl_parse - parse one line as a JSON object.
 *
 * Memory    *out is NULL or a new reference, also after an error
 * Errors    STATUS_DATA: the reason why the line is not a row */
status jsonl_parse(const char *text, size_t bytes, json_t **out);

/* jsonl_get_string - get a required string field of a row.
 *
 * Memory    *text belongs to the row
 * Errors    STATUS_DATA: the field is missing (with the fields of the row) or not a string */
status jsonl_get_string(const json_t *row, const char *field, const char **text, size_t *bytes);
