/* A shard: one HDF5 file of tokens, divided into documents. Readers read windows at random
 * positions. The writer appends.
 *
 *   /tokens     uint16 (vocabulary <= 65,536) or uint32 (n,), chunks of 16 KiB, Fletcher32
 *   /documents  uint64 (d + 1,): document i is tokens[documents[i] : documents[i + 1]]
 *   attributes on /, 64-bit integers and strings of fixed size:
 *     format "bireme-tokens", format_version 1, vocab_size, tokenizer_sha256, eos_id (-1: none),
 *     tokens, documents
 *     tokens_sha256, documents_sha256: hashes of the bytes of the two datasets, as stored. Shards
 *     of other programs need not have them. They detect damage that Fletcher32 cannot detect
 *     (swapped or zeroed chunks)
 *
 * A document has at least one token. The starts in /documents begin with 0, increase strictly and
 * end with `tokens`. Objectives that need more values per example use additional datasets, the
 * columns of example.h.
 *
 * Calls     Reading: shard_open, shard_check_tokenizer, the functions shard_read*, shard_close.
 *           Writing: shard_writer_create; for each document shard_writer_append_tokens,
 *           shard_writer_append_values and shard_writer_end_document; shard_writer_close, or
 *           shard_writer_abandon after an error */
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
    int64_t longest_tokens; /* length of the longest example; 0 for text */
    int label_count;        /* number of label names; 0: the kind has no labels */
    int token_bytes;        /* 2 or 4 */
    bool join_encoding;     /* sft: prompt and completion of a row were encoded as one text */
    char tokenizer_sha256[HASH_TEXT_BYTES];
    char tokens_sha256[HASH_TEXT_BYTES];    /* "": not stored */
    char documents_sha256[HASH_TEXT_BYTES]; /* "": not stored */
    char labels_sha256[HASH_TEXT_BYTES];    /* of the label names, in order; "": none */
    /* over documents and columns; "": windows of text */
    char examples_sha256[HASH_TEXT_BYTES];
};

struct shard; /* a shard that is open for reading */

/* shard_open - open a shard, and check its header and the shapes of its datasets.
 *
 * Memory    a file handle, one chunk of /tokens and one of /documents
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: truncated, not a shard, empty,
 *           external or virtual storage, other filters, wrong types, inconsistent sizes, or the
 *           oldest format of HDF5 (superblock below 2), in which metadata has no checksums */
status shard_open(const char *path, struct shard **out);

/* shard_close - close the shard and set *shard to NULL; NULL is allowed. Always
 * returns STATUS_OK. */
status shard_close(struct shard **shard);

/* Called by shard_for_each_part with an open shard. */
typedef status shard_visit(struct shard *shard, void *context);

/* shard_for_each_part - call visit for each shard "SET-0000I-of-0000N.h5" of a folder, as `prepare`
 * names its shards.
 *
 * Errors    of shard_open and visit; the first error ends the loop */
status shard_for_each_part(const char *folder, const char *set, int shards, shard_visit *visit,
                           void *context);

/* shard_get_header - return the header. It is valid until the shard is closed. */
const struct shard_header *shard_get_header(const struct shard *shard);

/* shard_path - return the path of the file. It is valid until the shard is closed. */
const char *shard_path(const struct shard *shard);

/* shard_labels - return the label names as a JSON array (labels.h); NULL if there are none.
 *
 * Memory    owned by the shard */
const char *shard_labels(const struct shard *shard);

/* shard_check_tokenizer - check that the shard was made with this tokenizer, and that a model with
 * vocab_size ids has all of its ids. If tokenizer_sha256 is NULL, vocab_size must be the shard's.
 *
 * Errors    STATUS_DATA with both values */
status shard_check_tokenizer(const struct shard *shard, int64_t vocab_size,
                             const char *tokenizer_sha256);

/* shard_read - read tokens [first, first + count) as int32.
 *
 * Errors    STATUS_DATA with file and index: a wrong checksum, an id >= vocab_size */
status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out);

/* shard_read_documents - read entries [first, first + count) of /documents (documents + 1 entries).
 *
 * Errors    as shard_read; STATUS_DATA if the entries do not increase or exceed the tokens */
status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out);

/* shard_read_column - read values [first, first + count) of a column of the shard's
 * kind (example.h).
 *
 * Errors    as shard_read */
status shard_read_column(struct shard *shard, int column, int64_t first, int64_t count,
                         uint32_t *out);

/* shard_find_document - find the index of the document that contains token `position`. */
status shard_find_document(struct shard *shard, int64_t position, int64_t *out_document);

/* shard_verify - read the whole file, and check the checksums, all ids, all documents and the
 * SHA-256 of each dataset.
 *
 * Memory    a few chunks
 * Errors    STATUS_DATA */
status shard_verify(struct shard *shard);

/* shard_inspect - verify the whole file and print a summary to standard output: a JSON document if
 * json is true, otherwise lines for people.
 *
 * Errors    as shard_open and shard_verify; STATUS_WRITE if standard output cannot be written */
status shard_inspect(const char *path, bool json);

struct shard_writer; /* a shard that is being written */

/* shard_writer_create - start to write a shard. The file appears at path only when
 * shard_writer_close returns.
 *
 * header provides kind, vocab_size, eos_id, join_encoding and tokenizer_sha256; the writer computes
 * the counts. Equal calls give equal bytes.
 *
 * Memory    one chunk of each dataset, independent of the size of the shard
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status shard_writer_create(const char *path, const struct shard_header *header,
                           struct shard_writer **out);

/* shard_writer_write_labels - write the attribute `labels`, a JSON array of names. */
status shard_writer_write_labels(struct shard_writer *w, const char *labels);

/* shard_writer_append_tokens - append tokens to the current document.
 *
 * Errors    STATUS_DATA: an id outside of the vocabulary; STATUS_WRITE */
status shard_writer_append_tokens(struct shard_writer *w, const int32_t *ids, int64_t count);

/* shard_writer_append_values - append values to a column. The values of a document must be appended
 * before shard_writer_end_document. */
status shard_writer_append_values(struct shard_writer *w, int column, const uint32_t *values,
                                  int64_t count);

/* shard_writer_end_document - end the current document; the next token starts another one. An empty
 * document is not written. */
status shard_writer_end_document(struct shard_writer *w);

/* shard_writer_tokens - return the number of tokens appended so far. */
int64_t shard_writer_tokens(const struct shard_writer *w);

/* shard_writer_close - end the last document, flush, sync, rename the file to path, and set *w
 * to NULL.
 *
 * Errors    STATUS_DATA: no token was appended; STATUS_WRITE. No file is then left at path. */
status shard_writer_close(struct shard_writer **w);

/* shard_writer_abandon - remove the unfinished file and set *w to NULL; NULL is allowed. */
status shard_writer_abandon(struct shard_writer **w);
