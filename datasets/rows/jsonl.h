/* JSON Lines: one object a line, each to a function; and the rows that cannot be used, which every objective's
 * preparation reports in the same way. Lines of blanks alone are no rows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/status.h"

struct jsonl_row {
    const char *path;
    int64_t line;   /* from 1 */
    json_t *value;  /* an object; who keeps it leaves NULL here */
    size_t bytes;   /* in the file */
    bool blameless; /* set by the function: the error that it returns is not this row's own */
};

/* What to do with rows that cannot be used, and how many there were. */
struct jsonl_bad {
    bool skip; /* count them and go on, instead of stopping at the first */
    int64_t count;
    bool quiet; /* without a warning */
    status (*keep)(void *user, const char *path,
                   int64_t line); /* not NULL: takes the pending reason */
    void *user;                   /* instead, for another turn */
};

/* jsonl_refuse - the pending STATUS_DATA is the reason why a row cannot be used: one more in the count, or the end.
 *
 * Errors    STATUS_DATA: file, line, reason, and the flag that skips */
status jsonl_refuse(struct jsonl_bad *bad, const char *path, int64_t line);

/* jsonl_read - every row of the file to `use`, in order.
 *
 * A row that is no JSON object, or for which `use` raises STATUS_DATA (the reason alone: the file and the line are
 * added here), is a bad row: with bad->skip it is warned of (the first ten are) and counted, without it the reading
 * ends. Any other error ends the reading as it is, as does STATUS_DATA with row->blameless.
 * Units     *bytes: of the file; added to it
 * Memory    the largest row (64 MiB are accepted) and what it is as JSON
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: file, line, reason, and the flag that skips */
status jsonl_read(const char *path, struct jsonl_bad *bad, int64_t *bytes,
                  status (*use)(void *user, struct jsonl_row *row), void *user);

/* jsonl_named - whether a file is JSON Lines by its name: *.jsonl, *.ndjson. */
bool jsonl_named(const char *path);

/* jsonl_parse - one line.
 *
 * Errors    STATUS_DATA: why it is no row */
status jsonl_parse(const char *text, size_t bytes, json_t **out);

/* jsonl_text - a field that must be a text; it belongs to the row.
 *
 * Errors    STATUS_DATA: "no field ...", "... is no text" */
status jsonl_text(const json_t *row, const char *field, const char **text, size_t *bytes);
