/* CSV as RFC 4180 describes it: the first row names the fields; each further row becomes an object of texts, to a
 * function that takes rows of JSON Lines as well.
 *
 * Fields are separated by commas; one that is quoted may hold commas, line ends and quotes (doubled). Lines end with
 * LF or CRLF; empty ones are no rows. UTF-8, a byte order mark is skipped. */
#pragma once

#include "datasets/rows/jsonl.h"

/* csv_read - every row of the file to `use`, in order; row->line is the one that it begins in.
 *
 * A row with another number of fields than the first, with a quote inside of an unquoted field or text behind a
 * quoted one, that is not UTF-8 or ends inside of quotes is a bad row, as is one that `use` refuses (jsonl_read).
 * Memory    the largest row (64 MiB are accepted)
 * Errors    as jsonl_read; STATUS_DATA: the first row names a field twice or not at all */
status csv_read(const char *path, struct jsonl_bad *bad, int64_t *bytes,
                status (*use)(void *user, struct jsonl_row *row), void *user);
