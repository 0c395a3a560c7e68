/* Reads a text file or standard input line by line. At most 64 MiB of a line are kept, so an input
 * without newlines cannot exhaust the memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/input/input.h"
#include "base/status.h"

enum { LINE_READER_BYTES_MAX = 64 << 20 };

struct line_reader {
    struct input input;
    char *block; /* bytes read ahead: [block_used, block_bytes) */
    size_t block_used, block_bytes;
    const char *name; /* for messages */
    char *line;       /* line[bytes] is NUL; a line can contain further NUL characters */
    size_t bytes;     /* without the newline */
    size_t capacity;
    int64_t number;   /* line number, from 1 */
    bool has_newline; /* a newline follows the line; false: the input ended */
    bool too_long;    /* the line has more than LINE_READER_BYTES_MAX bytes; line is its start */
};

/* line_reader_open - open a file, which may be compressed (input.h); NULL or "-" is standard input.
 *
 * Memory    path is borrowed until line_reader_close
 * Errors    as input_open; STATUS_INTERNAL out of memory */
status line_reader_open(const char *path, struct line_reader *out);

/* line_reader_open_input - read lines from an open input. The reader takes it; *in is then closed.
 *
 * Errors    STATUS_INTERNAL out of memory; the input stays open */
status line_reader_open_input(struct input *in, struct line_reader *out);

/* line_reader_next - read the next line; *found is false at the end of the input. The rest of a
 * line that is too long is skipped.
 *
 * Memory    r->line is valid until the next call
 * Errors    STATUS_DATA if the input cannot be read, STATUS_INTERNAL if memory runs out; both name
 *           the input and the line */
status line_reader_next(struct line_reader *r, bool *found);

/* line_reader_check_length - raise STATUS_DATA, with name and line, if the line is too long. */
status line_reader_check_length(const struct line_reader *r);

/* line_reader_locate - add "name:number: " to the message of the pending error if its status is
 * STATUS_DATA.
 *
 * Returns   result */
status line_reader_locate(const char *name, int64_t number, status result);

/* line_reader_close - close the file, unless it is standard input, and free the line. */
void line_reader_close(struct line_reader *r);

/* line_reader_visit - callback for one line, without its newline; line[bytes] is NUL. */
typedef status (*line_reader_visit)(void *user, const char *line, size_t bytes);

/* line_reader_read - call visit for each line of a file. If path is NULL or "-", read
 * standard input.
 *
 * Errors    the first error of visit, which stops the reading; "file:line: " is put before the
 *           message of a STATUS_DATA. STATUS_NO_INPUT, STATUS_PERMISSION or STATUS_DATA if the file
 *           cannot be read or a line is too long. */
status line_reader_read(const char *path, line_reader_visit visit, void *user);
