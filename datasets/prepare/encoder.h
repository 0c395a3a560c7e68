/* Encodes chunks of text in worker threads and passes the ids to a sink in the original order.
 *
 *   chunk  a part of a document, at most ENCODER_CHUNK_BYTES
 *   sink   two functions that receive the ids of each document
 *
 * Calls     encoder_open, encoder_add_chunk for each chunk, encoder_drain, encoder_close. The sink
 *           is called in the thread of the caller */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

enum { ENCODER_CHUNK_BYTES = 256 << 10 }; /* maximum size of a chunk */

enum { ENCODER_SENTENCE_END = -1 }; /* among the ids: end of a sentence */

/* Destination of encoded documents: the shards (output.h) or a token spool (token_spool.h). */
struct encoder_sink {
    void *user; /* argument of both functions */
    status (*write_tokens)(void *user, const int32_t *ids, int64_t count);
    status (*end_document)(void *user);
    /* Ids contain ENCODER_SENTENCE_END after each sentence, and no begin or end tokens. */
    bool marks_sentences;
};

struct encoder;

/* Source location of a chunk, for messages, and its sentence rule. */
struct encoder_origin {
    const char *path; /* valid until encoder_drain */
    int64_t position; /* byte offset, or line number from 1 */
    bool is_line;     /* position is a line number */
    /* Sentences end after punctuation too, not only at newlines. */
    bool split_at_punctuation;
};

/* encoder_open - start the worker threads.
 *
 * Units     workers: number of threads; 0: one per core
 * Errors    STATUS_INTERNAL (out of memory, threads) */
status encoder_open(const struct tokenizer *tokenizer, int workers, struct encoder_sink sink,
                    struct encoder **out);

/* encoder_add_chunk - queue a chunk of the current document.
 *
 * Memory    text is copied; bytes <= ENCODER_CHUNK_BYTES
 * Errors    STATUS_DATA if the text cannot be encoded; as the sink. The error may belong to an
 *           earlier chunk */
status encoder_add_chunk(struct encoder *e, const char *text, size_t bytes, bool ends_document,
                         struct encoder_origin origin);

/* encoder_drain - wait until the sink has received all queued chunks.
 *
 * Errors    as encoder_add_chunk */
status encoder_drain(struct encoder *e);

/* encoder_close - stop the threads and set *encoder to NULL; NULL is allowed. */
void encoder_close(struct encoder **encoder);
