/* Reads a file or standard input line by line. Error messages name the file and the line. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* line_reader_visit - callback for one line, without its newline; line[bytes] is NUL. */
typedef status (*line_reader_visit)(void *user, const char *line, size_t bytes);

/* line_reader_read - call visit for each line of a file. If path is NULL or "-", read standard
 * input.
 *
 * Errors    the first error of visit, which stops the reading; "file:line: " is put before the
 *           message of a STATUS_DATA. STATUS_NO_INPUT, STATUS_PERMISSION or STATUS_DATA if the file
 *           cannot be read. */
status line_reader_read(const char *path, line_reader_visit visit, void *user);
