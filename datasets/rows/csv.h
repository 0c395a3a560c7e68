/* Reader of tables: CSV (RFC 4180), and the same with semicolons or bars, or lines of fields that
 * are separated by tabs. The first row names the fields; every further row becomes a JSON object of
 * strings. The row callback is the same as for JSON Lines.
 *
 * A quoted field may contain delimiters, line ends and doubled quotes. Between tabs, a quote is an
 * ordinary character, as in the files of GLUE: a single one would otherwise join lines. Lines end
 * with LF or CRLF; empty lines are skipped. The text is UTF-8; a byte order mark at the beginning
 * of the file is skipped. */
#pragma once

#include "datasets/rows/file_reader.h"
#include "datasets/rows/jsonl.h"

/* csv_read_open - call `use` for every row of an open file, in order. The caller closes the file.
 *
 * delimiter '\0': a tab if the name ends in .tsv, otherwise the most frequent one of comma,
 * semicolon and tab in the first line, outside of quotes.
 *
 * A row is bad if its field count differs from the first row, if it is not UTF-8, or if `use`
 * rejects it (see jsonl_read). Where fields can be quoted, three more rows are bad: with a quote
 * inside an unquoted field, with text after a quoted field, and without an end of its quotes.
 *
 * Units     adds the file's size in bytes to *bytes; row->line is the line on which the row begins
 * Memory    the largest row (at most 64 MiB)
 * Errors    as jsonl_read; STATUS_DATA: the first row names a field twice or has an empty name */
status csv_read_open(struct file_reader *r, char delimiter, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user);

/* A table that is read block by block. */
struct csv;

/* csv_open - begin to read an open file; see csv_read_open.
 *
 * Memory    r, bad and user are borrowed until csv_close
 * Errors    STATUS_INTERNAL (out of memory) */
status csv_open(struct file_reader *r, char delimiter, struct jsonl_bad_rows *bad,
                status (*use)(void *user, struct jsonl_row *row), void *user, struct csv **out);

/* csv_read_block - read a block of the file, and call `use` for the rows that end in it. *more is
 * false after the last one.
 *
 * Errors    as csv_read_open */
status csv_read_block(struct csv *c, bool *more);

/* csv_close - free the table and set *c to NULL; NULL is allowed. The file stays open. */
void csv_close(struct csv **c);
