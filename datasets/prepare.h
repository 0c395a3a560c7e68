/* Text in, shards out, in a stream: memory does not depend on the size of the input. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

enum prepare_documents { PREPARE_FILE, PREPARE_PARAGRAPH, PREPARE_LINE };

struct prepare_options {
    const struct tokenizer *tokenizer;
    char *const
        *inputs; /* .txt (any name), .jsonl (field "text"), Megatron .bin/.idx, llm.c .bin */
    int input_count;
    const char *output; /* folder: train-00000-of-00004.h5, validation-... */
    enum prepare_documents documents;
    double validation_fraction; /* [0, 1) */
    bool shuffle_split;
    uint64_t split_seed;
    int64_t shard_tokens; /* tokens of a shard at most */
    int workers;          /* encoding threads; 0: all cores */
    bool skip_bad_rows;
};

struct prepare_report {
    int64_t documents, train_tokens, validation_tokens, bytes, bad_rows;
    int train_shards, validation_shards;
    double seconds;
};

/* prepare_clm - documents, each followed by the end token where the tokenizer has one, into shards.
 *
 * Errors    STATUS_NO_INPUT, STATUS_DATA (file, line or byte, reason), STATUS_CREATE, STATUS_WRITE;
 *           on failure nothing that looks whole is left in the output folder */
status prepare_clm(const struct prepare_options *options, struct prepare_report *out);
