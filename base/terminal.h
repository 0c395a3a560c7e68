/* The terminal: its width, wrapped text, and the colors of "error:" and "warning:". */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

/* terminal_flush - write the buffered text of standard output. `written` is true if
 * all earlier writes succeeded.
 *
 * Errors    STATUS_WRITE with the reason */
status terminal_flush(bool written);

/* Bytes that terminal_paint adds to a line at most. */
#define TERMINAL_PAINT_BYTES 16

/* terminal_has_colors - return whether an open file is a terminal that shows colors: NO_COLOR is
 * not set, and TERM is set and not "dumb". It is external only for tests. */
bool terminal_has_colors(int descriptor);

/* terminal_paint - copy a line; if `descriptor` has colors, "error:" at its start becomes red and
 * "warning:" yellow.
 *
 * Memory    out[bytes] always ends with a NUL
 * Returns   out */
char *terminal_paint(int descriptor, const char *line, char *out, size_t bytes);

/* Width of text in columns; terminal_columns returns a value in this range. */
enum { TERMINAL_COLUMNS_MIN = 40, TERMINAL_COLUMNS_DEFAULT = 80, TERMINAL_COLUMNS_MAX = 120 };

/* terminal_columns - return the width of text on the open file `descriptor`.
 *
 * It is the width of the terminal. If the file is not a terminal with a known width, it is the
 * environment variable COLUMNS, or TERMINAL_COLUMNS_DEFAULT. */
int terminal_columns(int descriptor);

/* terminal_print_wrapped - print a text and a newline, in lines of at most `columns`.
 *
 * A word that does not fit into a line is broken after a '|' if it contains one.
 *
 * Units     column: columns before the text in its first line; indent: of the other lines */
void terminal_print_wrapped(FILE *file, const char *text, int column, int indent, int columns);

/* terminal_print_paragraphs - print a text of several paragraphs and lists.
 *
 * Source lines are joined. A paragraph ends at an empty line. A line that begins with exactly two
 * spaces is an item of a list, "  NAME  text"; the lines of its text begin in the same column. */
void terminal_print_paragraphs(FILE *file, const char *text, int columns);
