/* A token spool: encoded documents, divided into sentences, in temporary files.
 *
 * Calls     token_spool_open. Writing: token_spool_write_tokens and token_spool_end_document for
 *           each document, then token_spool_finish. After it the other functions may be called.
 *           token_spool_close at the end */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct token_spool;

/* token_spool_open - create the files of a spool in a folder.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_INTERNAL */
status token_spool_open(const char *folder, struct token_spool **out);

/* token_spool_close - close the files and set *spool to NULL; NULL is allowed. The files remain in
 * the folder. */
void token_spool_close(struct token_spool **spool);

/* token_spool_write_tokens - append ids to the current document. ENCODER_SENTENCE_END ends a
 * sentence. `spool` is a struct token_spool; the function fits struct encoder_sink.
 *
 * Errors    STATUS_WRITE */
status token_spool_write_tokens(void *spool, const int32_t *ids, int64_t count);

/* token_spool_end_document - end the current document; does nothing if it has no sentences. The
 * function fits struct encoder_sink.
 *
 * Errors    STATUS_WRITE */
status token_spool_end_document(void *spool);

/* token_spool_finish - end writing. The functions below may be called only after this one.
 *
 * Errors    STATUS_WRITE */
status token_spool_finish(struct token_spool *s);

/* token_spool_document_count - return the number of documents. */
int64_t token_spool_document_count(const struct token_spool *s);

/* token_spool_sentence_count - return the number of sentences of all documents. */
int64_t token_spool_sentence_count(const struct token_spool *s);

/* token_spool_read_document - read the range of a document's sentences, [*first, *end).
 *
 * Errors    STATUS_DATA */
status token_spool_read_document(const struct token_spool *s, int64_t document, int64_t *first,
                                 int64_t *end);

/* token_spool_read_sentence_starts - read the index of the first token of `count` sentences.
 *
 * There is one more entry than sentences: the last entry is the number of tokens.
 *
 * Errors    STATUS_DATA */
status token_spool_read_sentence_starts(const struct token_spool *s, int64_t first, int64_t count,
                                        int64_t *starts);

/* token_spool_read_tokens - read tokens [first, first + count).
 *
 * Errors    STATUS_DATA */
status token_spool_read_tokens(const struct token_spool *s, int64_t first, int64_t count,
                               int32_t *ids);

/* token_spool_divide_document - divide the only document into two. The second one gets about
 * `fraction` of the tokens.
 *
 * Errors    STATUS_DATA if there is only one sentence; STATUS_WRITE */
status token_spool_divide_document(struct token_spool *s, double fraction);
