/* Text files in pieces of bounded size, for the trainers: any number of threads may ask for the
 * next piece. Of JSON Lines it is the field "text" of each row; rows without one are told and left out.
 *
 * A piece ends where no pattern of pretokenise.h has a word across: after a byte that is neither
 * blank nor part of a longer character and before a blank one. Where four megabytes have no such
 * place, the piece ends between two characters. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct corpus;

struct corpus_piece { /* zero-initialised: no piece yet; the buffer is used again */
    char *text;
    size_t bytes; /* 0: the end */
    const char *path;
    int64_t offset; /* of text[0] in that file */
};

/* corpus_check - what a file begins with may certainly be no text.
 *
 * Errors    STATUS_DATA: it is packed, a table, or in UTF-16 */
status corpus_check(const char *path, const char *text, size_t bytes);

status corpus_open(char *const *files, int count, struct corpus **out);
/* corpus_next - Errors: STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA naming the file */
status corpus_next(struct corpus *corpus, struct corpus_piece *piece);
void corpus_piece_free(struct corpus_piece *piece);
void corpus_close(struct corpus *corpus);
