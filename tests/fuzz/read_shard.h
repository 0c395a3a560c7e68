/* Reads all of a shard for a fuzz target. */
#pragma once

#include <stdlib.h>

#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"
#include "tests/fuzz/fuzz.h"

enum { READ_SHARD_TOKENS = 16, READ_SHARD_TEXTS = 8, READ_SHARD_SAMPLES = 256 };

/* Exact arrays, so that the address sanitizer detects each write out of bounds. */
static inline void read_shard_allocate(struct example *e)
{
    enum { ROWS = READ_SHARD_TOKENS * READ_SHARD_TEXTS };
    e->token_capacity = e->prediction_capacity = ROWS;
    e->text_capacity = READ_SHARD_TEXTS;
    e->ids = malloc(ROWS * sizeof *e->ids);
    e->token_type_ids = malloc(ROWS * sizeof *e->token_type_ids);
    e->positions = malloc(ROWS * sizeof *e->positions);
    e->labels = malloc((ROWS + 2) * sizeof *e->labels); /* answer: two labels and the flags */
    e->text_starts = malloc((READ_SHARD_TEXTS + 1) * sizeof *e->text_starts);
    fuzz_require(e->ids && e->token_type_ids && e->positions && e->labels && e->text_starts,
                 "memory for an example");
}

static inline void read_shard_free(struct example *e)
{
    free(e->ids);
    free(e->token_type_ids);
    free(e->positions);
    free(e->labels);
    free(e->text_starts);
}

/* Reads the tokens and loss masks of an SFT example. */
static inline status read_shard_sft(struct shard_set *set, int64_t sample)
{
    struct shard_set_range range;
    TRY(shard_set_range(set, sample, &range));
    int64_t count = range.end - range.first;
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    uint32_t *loss_mask = malloc((size_t)count * sizeof *loss_mask);
    fuzz_require(ids != NULL && loss_mask != NULL, "memory for an example");
    status result = shard_set_read_tokens(set, range.first, count, ids, loss_mask);
    free(ids);
    free(loss_mask);
    return result;
}

static inline status read_shard_sample(struct shard_set *set, enum example_kind kind,
                                       int64_t vocab_size, int64_t sample, struct example *e)
{
    int64_t count = 0;
    if (kind == EXAMPLE_SFT) {
        return read_shard_sft(set, sample);
    }
    if (kind == EXAMPLE_TEXT) {
        TRY(shard_set_read(set, sample, 0, e->ids));
        e->tokens = READ_SHARD_TOKENS + 1;
        TRY(shard_set_read_starts(set, sample, 0, e->positions, &count));
        fuzz_require(count >= 0 && count <= READ_SHARD_TOKENS, "starts lie in the window");
    } else {
        TRY(shard_set_read_example(set, sample, e));
    }
    for (int64_t i = 0; i < e->tokens; i++) {
        fuzz_require(e->ids[i] >= 0 && e->ids[i] < vocab_size, "ids are in the vocabulary");
    }
    return STATUS_OK;
}

static inline status read_shard_samples(const char *path, enum example_kind kind,
                                        int64_t vocab_size)
{
    struct shard_set_options options = {.path = path,
                                        .sequence_tokens = READ_SHARD_TOKENS,
                                        .vocab_size = vocab_size,
                                        .open_limit = 1,
                                        .kind = kind};
    struct shard_set *set = NULL;
    struct example e = {0};
    TRY(shard_set_open(&options, &set));
    read_shard_allocate(&e);
    status result = STATUS_OK;
    int64_t samples = shard_set_samples(set);
    for (int64_t i = 0; i < samples && i < READ_SHARD_SAMPLES && result == STATUS_OK; i++) {
        result = read_shard_sample(set, kind, vocab_size, i, &e);
    }
    read_shard_free(&e);
    KEEP_FIRST(result, shard_set_close(&set));
    return result;
}

/* read_shard - open and verify a shard of Bireme, and read its samples. */
static inline status read_shard(const char *path)
{
    struct shard *shard = NULL;
    TRY(shard_open(path, &shard));
    struct shard_header header = *shard_get_header(shard);
    status result = shard_verify(shard);
    KEEP_FIRST(result, shard_close(&shard));
    return result == STATUS_OK ? read_shard_samples(path, header.kind, header.vocab_size) : result;
}
