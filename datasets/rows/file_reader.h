/* Reads an input file in blocks and counts the bytes, for progress lines and error messages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct file_reader {
    int file; /* file descriptor; -1 after file_reader_close */
    const char *path;
    int64_t bytes; /* bytes read so far */
};

/* file_reader_open - open a file for reading.
 *
 * Memory    path is borrowed and must stay valid until file_reader_close
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if path is a folder */
status file_reader_open(const char *path, struct file_reader *out);

/* file_reader_read - read at most max_bytes bytes.
 *
 * Units     *got: bytes read; 0 at the end of the file
 * Errors    STATUS_DATA, with the path and the byte offset */
status file_reader_read(struct file_reader *r, char *out, size_t max_bytes, size_t *got);

/* file_reader_close - close the file. Does nothing after the first call. */
void file_reader_close(struct file_reader *r);
