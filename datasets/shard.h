/* What one HDF5 file of tokens holds: read windows of it at random, write it in a stream.
 *
 *   /tokens     uint16 (vocabulary <= 65,536) or uint32 (n,), chunks of 64 KiB, Fletcher32
 *   /documents  uint64 (d + 1,): document i is tokens[documents[i] : documents[i + 1]]
 *   attributes on /: format "bireme-tokens", format_version 1, vocab_size, tokenizer_sha256, eos_id,
 *               tokens, documents
 *
 * Objectives with more per example add datasets beside these; they are described here when they come. */
#pragma once

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

struct shard_header {
    int64_t vocab_size;
    int64_t eos_id; /* -1: none */
    int64_t tokens;
    int64_t documents;
    int token_bytes; /* 2 or 4 */
    char tokenizer_sha256[HASH_TEXT_BYTES];
};

struct shard; /* open for reading */

/* shard_open - check the header and the datasets' shapes against each other.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: truncated, foreign, empty, external or
 *           virtual storage, other filters, wrong types, sizes that contradict each other */
status shard_open(const char *path, struct shard **out);
status shard_close(struct shard **shard);
const struct shard_header *shard_header_of(const struct shard *shard);
const char *shard_path(const struct shard *shard);

/* shard_read - tokens [first, first + count) as int32.
 *
 * Errors    STATUS_DATA: a checksum that does not fit, an id >= vocab_size (file, index) */
status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out);

/* shard_read_documents - starts [first, first + count) of /documents (there are documents + 1).
 *
 * Errors    STATUS_DATA also where they do not rise or leave the tokens */
status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out);

/* shard_document_at - the document that holds token `position`: its index, by binary search. */
status shard_document_at(struct shard *shard, int64_t position, int64_t *out_document);

struct shard_writer;

/* shard_writer_create - a new file at path, complete only when shard_writer_close returns.
 *
 * header gives vocab_size, eos_id, tokenizer_sha256; counts are filled in.
 * Memory    one chunk of tokens and one of documents, whatever the shard's size */
status shard_writer_create(const char *path, const struct shard_header *header,
                           struct shard_writer **out);
status shard_writer_append(struct shard_writer *w, const int32_t *ids, int64_t count);
status shard_writer_end_document(struct shard_writer *w);
status shard_writer_close(struct shard_writer **w);   /* flush, sync, rename to path */
status shard_writer_abandon(struct shard_writer **w); /* remove what was written */
