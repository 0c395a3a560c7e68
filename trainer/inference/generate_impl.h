/* Shared by generate.c and beam_search.c. Private to trainer/inference. */
#pragma once

#include "trainer/inference/generate.h"

/* generate_has_source - return whether the model is an encoder-decoder. */
bool generate_has_source(const struct model *m);

/* generate_chunk_tokens - return the maximum rows of a forward pass. */
int64_t generate_chunk_tokens(const struct generate_options *options);

/* generate_should_stop - return whether options->should_stop ends all sequences.
 *
 * Order     collective over the tensor group */
status generate_should_stop(const struct generate_options *options, bool *out);
