/* The lines of a file or of standard input, with errors that say which line it was. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* A line without its newline, NUL-terminated behind its `bytes` bytes. */
typedef status (*lines_visit)(void *user, const char *line, size_t bytes);

/* lines_read - give each line of the file to visit. path NULL or "-": standard input.
 *
 * Errors    those of visit, which end the work, a STATUS_DATA with "file:line: " in front; STATUS_NO_INPUT,
 *           STATUS_PERMISSION, STATUS_DATA where the file cannot be read */
status lines_read(const char *path, lines_visit visit, void *user);
