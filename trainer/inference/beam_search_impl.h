/* Beam search. Private to trainer/inference: generate_run calls it. */
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

/* beam_search_run - generate the best num_samples hypotheses of one prompt.
 *
 * Shapes    out [num_samples]
 * Memory    the caller frees the tokens of each output with token_list_free()
 * Order     collective over the tensor group */
status beam_search_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                       const struct token_list *prompt, const struct generate_options *options,
                       struct generate_output *out);
