/* A shard set: all shards of one data source as one list of samples.
 *
 *   window  T + 1 consecutive tokens of a shard of text. Window j of a shard starts at token j T.
 *           Therefore a shard of n tokens has floor((n - 1) / T) windows, and up to T tokens at its
 *           end belong to no window.
 *   sample  The unit that is counted and read: a window of text. For other kinds (example.h) it is
 *           one example.
 *
 * The shards are ordered by name, and the samples are numbered over all shards. Only a few shards
 * are open at the same time, so that memory does not grow with their number.
 *
 * Calls     shard_set_open; shard_set_read for text, shard_set_read_example for other kinds;
 *           shard_set_close */
#pragma once

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "datasets/shard/example.h"
#include "datasets/shard/shard.h"

struct shard_set;

/* Required encoding of the prompts and completions of sft shards (shard_header.join_encoding). */
enum shard_join { SHARD_JOIN_ANY, SHARD_JOIN_TRUE, SHARD_JOIN_FALSE };

struct shard_set_options {
    const char *path;             /* a shard, or a glob pattern */
    int64_t sequence_tokens;      /* T */
    int64_t vocab_size;           /* every shard must have this vocabulary size */
    const char *tokenizer_sha256; /* every shard must have this hash; NULL: not checked */
    const char *labels_sha256; /* every shard must have this hash; NULL: hash of the first shard */
    enum shard_join join_encoding;
    int open_limit; /* shards that may be open at the same time, >= 1 */
    /* EXAMPLE_TEXT: samples are windows. Otherwise a sample is an example with at most T tokens in
     * a sentence pair (of Bireme or NVIDIA) or a text of a task, in the prompt with either response
     * of a preference pair, or in each of source and target. */
    enum example_kind kind;
};

/* shard_set_open - find the shards, check the header of each, and verify small sets completely.
 *
 * If a name has the form of `bireme prepare` (name-00000-of-00004.h5), all files of that
 * preparation must exist. Sets of up to SHARD_SET_VERIFY_TOKENS tokens are verified completely.
 * Larger sets are verified window by window as they are read.
 *
 * Errors    STATUS_NO_INPUT: no file matches; STATUS_DATA with file, position and reason: a damaged
 *           shard, another tokenizer, an incomplete set, no sample of T + 1 tokens */
status shard_set_open(const struct shard_set_options *options, struct shard_set **out);

/* shard_set_close - close all shards and set *set to NULL; NULL is allowed. */
status shard_set_close(struct shard_set **set);

/* shard_set_count_files - return the number of files that match a path or pattern; 0 if there are
 * none or the folder cannot be read. */
int shard_set_count_files(const char *path);

/* shard_set_read_text_pairs - check whether every example of the first shard that matches the path
 * has two segments, and set *out. *out is false for kinds other than classify and regress.
 *
 * Errors    as shard_set_open */
status shard_set_read_text_pairs(const char *path, bool *out);

/* shard_set_read_labels - read the label names (labels.h) of the first shard that matches the path.
 *
 * Memory    the caller frees *out with free(); NULL if the shard has no labels
 * Errors    as shard_set_open */
status shard_set_read_labels(const char *path, char **out);

#define SHARD_SET_VERIFY_TOKENS (INT64_C(64) << 20)

/* shard_set_count - return the number of shards. */
int shard_set_count(const struct shard_set *set);

/* shard_set_path - return the path of a shard, index < shard_set_count. */
const char *shard_set_path(const struct shard_set *set, int index);

/* shard_set_header - return the header of a shard, index < shard_set_count. Shards of NVIDIA
 * have empty hashes. */
const struct shard_header *shard_set_header(const struct shard_set *set, int index);

/* shard_set_samples - return the number of samples. */
int64_t shard_set_samples(const struct shard_set *set);

/* shard_set_tokens - return the number of tokens in all shards. */
int64_t shard_set_tokens(const struct shard_set *set);

/* shard_set_read - read the T + 1 tokens of a sample. The window starts `shift` tokens later, 0 ..
 * T - 1, but never extends beyond the end of its shard.
 *
 * Errors    as shard_read */
status shard_set_read(struct shard_set *set, int64_t sample, int64_t shift, int32_t *tokens);

/* shard_set_read_starts - find the document starts in a sample: increasing offsets 1 .. T.
 *
 * Shapes    offsets[T]; *count of them are set */
status shard_set_read_starts(struct shard_set *set, int64_t sample, int64_t shift, int32_t *offsets,
                             int64_t *count);

/* shard_set_read_example - read an example. out must have capacity for T tokens, or 2 T for a
 * preference pair or an example of the kind seq2seq. */
status shard_set_read_example(struct shard_set *set, int64_t sample, struct example *out);

/* shard_set_read_lengths - read the numbers of tokens of an example of the kind seq2seq. */
status shard_set_read_lengths(struct shard_set *set, int64_t sample, int64_t *source,
                              int64_t *target);

/* The range of tokens [first, end) of an example in the set, and the index of its shard. */
struct shard_set_range {
    int64_t first, end;
    int shard;
};

/* shard_set_range - find the token range of an example. */
status shard_set_range(struct shard_set *set, int64_t example, struct shard_set_range *out);

/* shard_set_read_tokens - read `count` tokens and SFT loss masks, starting at token `first` of the
 * set. The range must lie in one shard.
 *
 * Memory    ids and loss_mask [count]; either may be NULL */
status shard_set_read_tokens(struct shard_set *set, int64_t first, int64_t count, int32_t *ids,
                             uint32_t *loss_mask);

/* shard_set_locate - write the location of a sample for messages: "FILE tokens A to B". */
void shard_set_locate(const struct shard_set *set, int64_t sample, int64_t shift, char *text,
                      int bytes);

/* shard_set_locate_token - write the location of token `token` of the set: "FILE token A". */
void shard_set_locate_token(const struct shard_set *set, int64_t token, char *text, int bytes);

/* shard_set_parse_number - return a pointer to "00002" in a path that ends in -00002-of-00004.h5,
 * and set *of to 4. Returns NULL for other names. */
const char *shard_set_parse_number(const char *path, int *of);

/* shard_set_hash - add the content and the order of the set to a hash: file names without folders,
 * headers, SHA-256 of the tokens. */
status shard_set_hash(const struct shard_set *set, struct hash *hash);
