/* Inputs as streams of bytes: files, standard input, and compressed data.
 *
 * gzip, zstd, xz and bzip2 are recognized by their first bytes, not by the name, and decompressed
 * in blocks. The memory does not depend on the size of the data: at most 1 GiB for xz and 128 MiB
 * for zstd, if the data was compressed with windows of this size. All checksums are verified. zlib
 * reads gzip, because libarchive does not verify its checksum; libarchive reads the others. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

struct input_decoder;

enum { INPUT_PEEK_BYTES = 1024 };

struct input {
    int file;                      /* descriptor; -1: closed */
    const char *name;              /* for messages: the path, or "standard input" */
    struct input_decoder *decoder; /* NULL: not compressed */
    unsigned char head[8];         /* first bytes, which were read to recognize the format */
    size_t head_bytes, head_used;
    bool recognized;               /* the first bytes have been read */
    char peeked[INPUT_PEEK_BYTES]; /* decompressed bytes that input_read returns first */
    size_t peeked_bytes, peeked_used;
};

/* input_open - open a file; NULL or "-" is standard input. Nothing is read yet.
 *
 * Memory    path is borrowed until input_close
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if path is a folder */
status input_open(const char *path, struct input *out);

/* input_read - read at most max_bytes bytes of the decompressed data. Standard input returns the
 * bytes that are available, so that a person can type lines.
 *
 * Units     *got: bytes read; 0 at the end
 * Errors    STATUS_DATA: the file cannot be read, or its compressed data is damaged or truncated;
 *           STATUS_UNAVAILABLE if libarchive was built without the format */
status input_read(struct input *in, void *out, size_t max_bytes, size_t *got);

/* input_looks_like_json - set *out to whether the data begins with a JSON object or a list. A byte
 * order mark and a few bytes of white space may come first. The bytes stay unread.
 *
 * Errors    as input_read */
status input_looks_like_json(struct input *in, bool *out);

/* input_peek - return the first INPUT_PEEK_BYTES bytes, or all if there are fewer. They stay
 * unread. Call it before input_read.
 *
 * Memory    *text belongs to the input and is valid until the next call
 * Errors    as input_read */
status input_peek(struct input *in, const char **text, size_t *bytes);

/* input_close - close the file, unless it is standard input. Does nothing after the first call. */
void input_close(struct input *in);

/* input_keep - copy an input that can be read only once (standard input or a pipe) to an unlinked
 * temporary file in a folder. Later calls of input_open with the same path read the copy from its
 * start. Does nothing for files, and after the first call. Not thread-safe.
 *
 * Errors    as input_open; STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE for the copy */
status input_keep(const char *path, const char *folder);

/* input_is_stream - return whether the path is standard input, a pipe or a socket. */
bool input_is_stream(const char *path);

/* input_has_suffix - return whether a name ends in the suffix, before .gz, .zst, .xz or .bz2. */
bool input_has_suffix(const char *path, const char *suffix);
