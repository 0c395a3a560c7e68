/* The shards of a set, and the functions that the files of shard_set.h share. */
#pragma once

#include "datasets/shard/nvidia_shard.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"

/* A shard of the set. */
struct shard_set_member {
    char *path;
    struct shard_header header;
    int64_t first_sample;        /* number of its first sample in the set */
    int64_t first_token;         /* number of its first token in the set */
    struct shard *shard;         /* NULL: not open */
    struct nvidia_shard *nvidia; /* used instead of shard if is_nvidia */
    bool is_nvidia;
    uint64_t last_read; /* value of set->reads at the last read; the oldest is closed first */
};

struct shard_set {
    struct shard_set_member *members;
    int count;
    int open_count, open_limit;
    uint64_t reads; /* reads so far */
    int64_t sequence_tokens, vocab_size;
    enum example_kind kind;
    int64_t samples, tokens;
};

/* shard_set_open_member - open a shard, unless it is open. If too many shards are open, close the
 * one that was read least recently.
 *
 * Errors    as shard_open; STATUS_DATA if the file was replaced */
status shard_set_open_member(struct shard_set *set, struct shard_set_member *m);

/* shard_set_check_complete - check that no file of a preparation is missing on disk, and that no
 * two preparations are mixed. Otherwise training would silently use other data. A glob may select
 * only some of the files.
 *
 * Errors    STATUS_DATA */
status shard_set_check_complete(const struct shard_set *set);

/* shard_set_check_members - open every shard, check it and number its samples and tokens.
 *
 * Errors    STATUS_DATA if a shard does not fit the options; as shard_open and shard_verify */
status shard_set_check_members(struct shard_set *set, const struct shard_set_options *options);

/* shard_set_check_pair - check that prompt and responses of a preference pair are not empty, and
 * that the prompt with either response has at most set->sequence_tokens tokens.
 *
 * Errors    STATUS_DATA */
status shard_set_check_pair(const struct shard_set *set, const struct shard_set_member *m,
                            int64_t index, int64_t tokens, int64_t prompt, int64_t chosen);

/* shard_set_check_source_and_target - check that source and target are not empty and have at most
 * set->sequence_tokens tokens each.
 *
 * Errors    STATUS_DATA */
status shard_set_check_source_and_target(const struct shard_set *set,
                                         const struct shard_set_member *m, int64_t index,
                                         int64_t tokens, int64_t source);
