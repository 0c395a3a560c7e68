/* CSV reader (RFC 4180). The first row names the fields; every further row becomes a JSON object of
 * strings. The row callback is the same as for JSON Lines.
 *
 * Commas separate the fields. A quoted field may contain commas, line ends and doubled quotes.
 * Lines end with LF or CRLF; empty lines are skipped. The text is UTF-8; a byte order mark at the
 * beginning of the file is skipped. */
#pragma once

#include "datasets/rows/jsonl.h"

/* csv_read - call `use` for every row of a file, in order.
 *
 * A row is bad if its field count differs from that of the first row, if it has a quote inside an
 * unquoted field or text after a quoted one, if it is not UTF-8, if the file ends inside quotes, or
 * if `use` rejects it (see jsonl_read).
 *
 * Units     adds the file's size in bytes to *bytes; row->line is the line on which the row begins
 * Memory    the largest row (at most 64 MiB)
 * Errors    as jsonl_read; STATUS_DATA: the first row names a field twice or has an empty name */
status csv_read(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                status (*use)(void *user, struct jsonl_row *row), void *user);
