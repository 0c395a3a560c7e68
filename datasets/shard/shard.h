/* What one HDF5 file of tokens holds: read windows of it at random, write it in a stream.
 *
 *   /tokens     uint16 (vocabulary <= 65,536) or uint32 (n,), chunks of 16 KiB, Fletcher32
 *   /documents  uint64 (d + 1,): document i is tokens[documents[i] : documents[i + 1]]
 *   attributes on /: format "bireme-tokens", format_version 1, vocab_size, tokenizer_sha256, eos_id
 *               (-1: none), tokens, documents: 64-bit integers and texts of fixed size
 *   tokens_sha256, documents_sha256: of the bytes of the two datasets, as stored. May be missing in
 *               shards of other programs; they see what Fletcher32 cannot (swapped or zeroed chunks).
 *
 * Documents hold at least one token: the starts begin with 0, rise strictly and end with `tokens`.
 * Objectives with more per example add datasets beside these: example.h describes them all. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "datasets/shard/example.h"

struct shard_header {
    enum example_kind kind;
    int64_t vocab_size;
    int64_t eos_id; /* -1: none */
    int64_t tokens;
    int64_t documents;
    int64_t longest; /* tokens of the longest example; 0 for text */
    int labels;      /* names of labels; 0: the kind has none */
    int token_bytes; /* 2 or 4 */
    char tokenizer_sha256[HASH_TEXT_BYTES];
    char tokens_sha256[HASH_TEXT_BYTES];    /* "": not stored */
    char documents_sha256[HASH_TEXT_BYTES]; /* likewise */
    char labels_sha256[HASH_TEXT_BYTES];    /* of their names, in their order; "": none */
    char examples_sha256
        [HASH_TEXT_BYTES]; /* over those of all else that examples have; "": windows of text */
};

struct shard; /* open for reading */

/* shard_open - check the header and the datasets' shapes against each other.
 *
 * Memory    a file handle, one chunk of /tokens and one of /documents
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: truncated, foreign, empty, external or
 *           virtual storage, other filters, wrong types, sizes that contradict each other; HDF5's oldest
 *           format (superblock below 2), whose structure has no checksums */
status shard_open(const char *path, struct shard **out);
status shard_close(struct shard **shard);
const struct shard_header *shard_header_of(const struct shard *shard);
const char *shard_path(const struct shard *shard);

/* shard_labels - the names of labels as a JSON array (labels.h), the shard's own; NULL: there are none. */
const char *shard_labels(const struct shard *shard);

/* shard_expect - the shard must be of this tokenizer.
 *
 * tokenizer_sha256 may be NULL, and then only vocab_size is compared.
 * Errors    STATUS_DATA with both values */
status shard_expect(const struct shard *shard, int64_t vocab_size, const char *tokenizer_sha256);

/* shard_read - tokens [first, first + count) as int32.
 *
 * Errors    STATUS_DATA: a checksum that does not fit, an id >= vocab_size (file, index) */
status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out);

/* shard_read_documents - starts [first, first + count) of /documents (there are documents + 1).
 *
 * Errors    STATUS_DATA also where they do not rise or leave the tokens */
status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out);

/* shard_read_column - values [first, first + count) of a column of the shard's kind (example.h). */
status shard_read_column(struct shard *shard, int column, int64_t first, int64_t count,
                         uint32_t *out);

/* shard_document_at - the document that holds token `position`: its index, by a search. */
status shard_document_at(struct shard *shard, int64_t position, int64_t *out_document);

/* shard_verify - read the whole file: checksums, every id, every document, both SHA-256.
 *
 * Memory    a few chunks
 * Errors    STATUS_DATA */
status shard_verify(struct shard *shard);

/* shard_inspect - verify the whole file and print what it holds to standard output.
 *
 * json: one JSON document instead of lines for people
 * Errors    as shard_open and shard_verify; STATUS_WRITE if standard output is lost */
status shard_inspect(const char *path, bool json);

struct shard_writer;

/* shard_writer_create - a new file, which appears at path only when shard_writer_close returns.
 *
 * header gives kind, vocab_size, eos_id, tokenizer_sha256; counts are filled in. Equal calls give equal
 * bytes.
 * Memory    one chunk of tokens and one of documents, whatever the shard's size
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status shard_writer_create(const char *path, const struct shard_header *header,
                           struct shard_writer **out);

/* shard_writer_labels - the attribute `labels`, a JSON array of names. */
status shard_writer_labels(struct shard_writer *w, const char *labels);

/* shard_writer_append - more tokens of the document that is being written.
 *
 * Errors    STATUS_DATA: an id outside of the vocabulary; STATUS_WRITE */
status shard_writer_append(struct shard_writer *w, const int32_t *ids, int64_t count);

/* shard_writer_values - more values of a column: those of each document before it ends. */
status shard_writer_values(struct shard_writer *w, int column, const uint32_t *values,
                           int64_t count);

/* shard_writer_end_document - the next token begins another; nothing happens in an empty one. */
status shard_writer_end_document(struct shard_writer *w);

int64_t shard_writer_tokens(const struct shard_writer *w);

/* shard_writer_close - end the last document, flush, sync, rename to path.
 *
 * Errors    STATUS_DATA: no token was written; STATUS_WRITE. Then nothing is left at path. */
status shard_writer_close(struct shard_writer **w);
status shard_writer_abandon(struct shard_writer **w); /* remove what was written */
