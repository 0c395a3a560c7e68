/* All shards of one data source as one list of samples.
 *
 * A sample is a window of T + 1 tokens; sample j of a shard starts at its token j T, so a shard of n
 * tokens has floor((n - 1) / T) samples and up to T tokens at its end are in none. Shards follow each
 * other in the order of their names. Only a few are open at once, so that memory does not grow with
 * their number. */
#pragma once

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "datasets/shard/example.h"

struct shard_set;

struct shard_set_options {
    const char *path;             /* a shard, or a glob of shards */
    int64_t sequence_tokens;      /* T */
    int64_t vocab_size;           /* every shard must agree */
    const char *tokenizer_sha256; /* likewise; NULL: not checked */
    const char *labels_sha256;    /* likewise (shard.h) */
    int open_limit;               /* shards that may be open at once, >= 1 */
    /* EXAMPLE_TEXT: samples are windows; else a sample is an example: of up to T tokens (sentence pairs, ours or
     * NVIDIA's; texts of a task), or a pair whose prompt has up to T tokens with either answer. */
    enum example_kind kind;
};

/* shard_set_open - find the shards and check the header of each; read small sets whole.
 *
 * Of a set that `bireme prepare` wrote (name-00000-of-00004.h5) all members must be there. Sets of up to
 * SHARD_SET_VERIFY_TOKENS are verified in full here, before any work; larger ones window by window as they
 * are read.
 * Errors    STATUS_NO_INPUT: the glob matches nothing; STATUS_DATA: a bad shard, another tokenizer,
 *           a set that is incomplete, no sample of T + 1 tokens; each with file, place and reason */
status shard_set_open(const struct shard_set_options *options, struct shard_set **out);
status shard_set_close(struct shard_set **set);

/* shard_set_count - the files that a path or pattern means; 0 where there are none, or they cannot be looked for. */
int shard_set_count(const char *path);

/* shard_set_labels - the names of labels (labels.h) of the first shard that the path means; *out is the caller's, for
 * free(); NULL: it has none.  Errors: as shard_set_open */
status shard_set_labels(const char *path, char **out);

#define SHARD_SET_VERIFY_TOKENS (INT64_C(64) << 20)

int64_t shard_set_samples(const struct shard_set *set);
int64_t shard_set_tokens(const struct shard_set *set);

/* shard_set_read - tokens[T + 1] of a sample, moved on by `shift` tokens, 0 .. T - 1, as far as its shard
 * goes. */
status shard_set_read(struct shard_set *set, int64_t sample, int64_t shift, int32_t *tokens);

/* shard_set_starts - where documents begin inside of a sample: offsets 1 .. T, rising.
 *
 * Memory    offsets[T]; *count of them are set */
status shard_set_starts(struct shard_set *set, int64_t sample, int64_t shift, int32_t *offsets,
                        int64_t *count);

/* shard_set_example - an example of a set of them; out has room for T tokens, or 2 T of a preference pair. */
status shard_set_example(struct shard_set *set, int64_t sample, struct example *out);

/* Where an example lies among the tokens of the set, and in which of its shards. */
struct shard_set_range {
    int64_t first, end;
    int shard;
};
status shard_set_range(struct shard_set *set, int64_t example, struct shard_set_range *out);

/* shard_set_at - `count` tokens and loss masks of sft from token `first` of the set on, in one shard; ids or
 * marks may be NULL. */
status shard_set_at(struct shard_set *set, int64_t first, int64_t count, int32_t *ids,
                    uint32_t *marks);

/* shard_set_locate - "FILE tokens A to B", to name a sample in a message. */
void shard_set_locate(const struct shard_set *set, int64_t sample, int64_t shift, char *text,
                      int bytes);

/* shard_set_locate_token - "FILE token A", by a token's place in the set. */
void shard_set_locate_token(const struct shard_set *set, int64_t token, char *text, int bytes);

/* shard_set_number - the place of "00002" in a path that ends in -00002-of-00004.h5, and 4 in *of; NULL
 * for other names. */
const char *shard_set_number(const char *path, int *of);

/* shard_set_hash - add what decides content and order to a running hash: names without folders,
 * headers, SHA-256 of the tokens. */
status shard_set_hash(const struct shard_set *set, struct hash *hash);
