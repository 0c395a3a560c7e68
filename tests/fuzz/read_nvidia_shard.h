/* Reads all of an NVIDIA shard for a fuzz target. */
#pragma once

#include <stdlib.h>

#include "datasets/shard/nvidia_shard.h"
#include "tests/fuzz/fuzz.h"

enum { READ_NVIDIA_TOKENS = 64, READ_NVIDIA_VOCABULARY = 200, READ_NVIDIA_ROWS = 256 };

static inline status read_nvidia_rows(struct nvidia_shard *shard)
{
    struct example e = {.token_capacity = READ_NVIDIA_TOKENS, .prediction_capacity = 8};
    int32_t *memory = malloc((2 * READ_NVIDIA_TOKENS + 16) * sizeof *memory);
    fuzz_require(memory != NULL, "memory for an example");
    e.ids = memory;
    e.token_type_ids = memory + READ_NVIDIA_TOKENS;
    e.positions = memory + 2 * READ_NVIDIA_TOKENS;
    e.labels = e.positions + 8;
    status result = STATUS_OK;
    int64_t rows = nvidia_shard_examples(shard);
    for (int64_t i = 0; i < rows && i < READ_NVIDIA_ROWS && result == STATUS_OK; i++) {
        result = nvidia_shard_read(shard, i, READ_NVIDIA_VOCABULARY, &e);
    }
    free(memory);
    return result;
}

/* read_nvidia_shard - open a shard and read its rows. */
static inline status read_nvidia_shard(const char *path)
{
    struct nvidia_shard *shard = NULL;
    TRY(nvidia_shard_open(path, &shard));
    status result = read_nvidia_rows(shard);
    nvidia_shard_close(&shard);
    return result;
}
