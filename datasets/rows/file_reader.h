/* Reads an input in blocks and counts the bytes, for progress lines and error messages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/input/input.h"
#include "base/status.h"

struct file_reader {
    struct input input;
    const char *path; /* for messages */
    int64_t bytes;    /* bytes read so far, decompressed */
};

/* file_reader_open - open a file for reading; "-" is standard input (input.h).
 *
 * Memory    path is borrowed and must stay valid until file_reader_close
 * Errors    as input_open */
status file_reader_open(const char *path, struct file_reader *out);

/* file_reader_read - read at most max_bytes bytes.
 *
 * Units     *got: bytes read; 0 at the end of the file
 * Errors    as input_read */
status file_reader_read(struct file_reader *r, char *out, size_t max_bytes, size_t *got);

/* file_reader_close - close the file. Does nothing after the first call. */
void file_reader_close(struct file_reader *r);
