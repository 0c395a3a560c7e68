/* Reads texts for a model: each line of a file is a text, or a column of each row if columns are
 * given (row_file.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "datasets/rows/jsonl.h"

struct text_lines {
    const char *path;    /* NULL or "-": standard input */
    const char *columns; /* "FIELD=COLUMN,...", as columns_parse; NULL: each line is a text */
    const char *field;   /* field of a row with the text */
    const char *second;  /* optional field of a row with a second text; NULL: there is none */
    const char *list;    /* field of a row with a list of texts, which follow the text, each after a
                            tab; NULL: there is none */
    bool splits_tabs;    /* a line can contain several texts, so *.tsv gives no warning */
};

/* text_lines_visit - callback for one text; text[bytes] is NUL. `second` is the second text of a
 * row; NULL: the row has none, or the text is a line. */
typedef status (*text_lines_visit)(void *user, const char *text, size_t bytes, const char *second);

/* text_lines_read - call visit for each line or row.
 *
 * Without columns, a warning names a file that is a table by its name, or that begins with a JSON
 * object. The bytes of a line are not checked.
 *
 * Errors    the first error of visit, which stops the reading; "file:line: " is put before the
 *           message of a STATUS_DATA. STATUS_USAGE for `columns`; STATUS_DATA for a row that is
 *           invalid, lacks a field, or has a NUL character in it; as line_reader_read */
status text_lines_read(const struct text_lines *source, text_lines_visit visit, void *user);

/* text_lines_read_rows - call use for each row of a file.
 *
 * `path` and `columns` have the same meaning as in struct text_lines. If columns is NULL, the
 * fields keep their names.
 *
 * Errors    the first error of use, which stops the reading; "file:line: " is put before the
 *           message of a STATUS_DATA; STATUS_USAGE for `columns`; as row_file_read */
status text_lines_read_rows(const char *path, const char *columns,
                            status (*use)(void *user, struct jsonl_row *row), void *user);
