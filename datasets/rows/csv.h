/* Reader of tables: CSV (RFC 4180), and the same with tabs or semicolons. The first row names the
 * fields; every further row becomes a JSON object of strings. The row callback is the same as for
 * JSON Lines.
 *
 * A quoted field may contain delimiters, line ends and doubled quotes. Between tabs, a quote inside
 * an unquoted field is an ordinary character.
 * Lines end with LF or CRLF; empty lines are skipped. The text is UTF-8; a byte order mark at the
 * beginning of the file is skipped. */
#pragma once

#include "datasets/rows/file_reader.h"
#include "datasets/rows/jsonl.h"

/* csv_read - call `use` for every row of a file, in order.
 *
 * delimiter '\0': a tab if the name ends in .tsv, otherwise the most frequent one of comma,
 * semicolon and tab in the first line, outside of quotes.
 *
 * A row is bad if its field count differs from that of the first row, if it has a quote inside an
 * unquoted field or text after a quoted one, if it is not UTF-8, if the file ends inside quotes, or
 * if `use` rejects it (see jsonl_read).
 *
 * Units     adds the file's size in bytes to *bytes; row->line is the line on which the row begins
 * Memory    the largest row (at most 64 MiB)
 * Errors    as jsonl_read; STATUS_DATA: the first row names a field twice or has an empty name */
status csv_read(const char *path, char delimiter, struct jsonl_bad_rows *bad, int64_t *bytes,
                status (*use)(void *user, struct jsonl_row *row), void *user);

/* csv_read_open - like csv_read, for an open file; the caller closes it. */
status csv_read_open(struct file_reader *r, char delimiter, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user);
