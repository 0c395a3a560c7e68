/* Options of a loader for tests. */
#pragma once

#include "datasets/loader/loader.h"

static struct loader_source test_source; /* of the options that make_loader_options returned last */

/* make_loader_options - return the options of one rank that reads all shards of a pattern. */
static inline struct loader_options make_loader_options(const char *glob, enum example_kind kind,
                                                        int64_t tokens, int64_t vocab_size)
{
    test_source = (struct loader_source){glob, 1};
    return (struct loader_options){.sources = &test_source,
                                   .source_count = 1,
                                   .sequence_tokens = tokens,
                                   .global_sequences = 5,
                                   .micro_sequences = 2,
                                   .ranks = 1,
                                   .seed = 11,
                                   .shuffle = true,
                                   .vocab_size = vocab_size,
                                   .kind = kind};
}
