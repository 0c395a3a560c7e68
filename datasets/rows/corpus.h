/* Reads training text for tokenizers, in chunks of bounded size. Any number of threads may read
 * chunks of the same corpus. For JSON Lines, and for tables if columns are given, the text is the
 * field "text" of each row; rows without it are skipped with a warning. A warning also names a file
 * of text that is not UTF-8.
 *
 * A chunk ends at a position that no pattern of pretokenizer.h matches across: between a graphic
 * ASCII character and white space. If there is no such position within 4 MiB, the chunk ends
 * between two characters. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/input/input.h"
#include "base/status.h"
#include "datasets/rows/columns.h"

struct corpus;

/* The files of a corpus. */
struct corpus_source {
    char *const *files;
    int count;
    const struct columns *columns; /* names of the field "text" in rows; NULL: its own name */
};

/* Zero-initialized is an empty chunk. corpus_next reuses the buffer. */
struct corpus_chunk {
    char *text;
    size_t bytes; /* 0: end of the corpus */
    const char *path;
    int64_t offset; /* byte offset of text[0] in that file */
};

/* corpus_check_format - reject a file that is certainly not text, from its first bytes.
 *
 * Errors    STATUS_DATA: the file is compressed, a binary table, or UTF-16 */
status corpus_check_format(const char *path, const char *text, size_t bytes);

/* corpus_warn_rows - warn if a file that is read as plain text is a table by its name, or begins
 * like JSON. `in` is open, and its bytes stay unread.
 *
 * Errors    as input_read */
status corpus_warn_rows(const char *path, struct input *in);

/* corpus_open - create a corpus of these files; the files are opened one by one in corpus_next.
 *
 * Memory    everything in *source is borrowed and must stay valid until corpus_close
 * Errors    STATUS_INTERNAL (out of memory) */
status corpus_open(const struct corpus_source *source, struct corpus **out);

/* corpus_next - read the next chunk. Thread-safe.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA with the file; STATUS_DATA if there is
 *           no text in any file */
status corpus_next(struct corpus *corpus, struct corpus_chunk *chunk);

/* corpus_chunk_free - free the buffer of a chunk. */
void corpus_chunk_free(struct corpus_chunk *chunk);

/* corpus_close - free a corpus and log the number of skipped rows; NULL is allowed. */
void corpus_close(struct corpus *corpus);
