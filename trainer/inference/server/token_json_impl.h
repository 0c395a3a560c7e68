/* Log-probabilities of tokens as JSON, in the two forms of the OpenAI API. */
#pragma once

#include <jansson.h>

#include "trainer/inference/engine.h"

/* token_json_completion - create the object "logprobs" of a completion. Token top_count -1 has no
 * log-probability.
 *
 * Units     *text_offset: characters before the first token; receives those before the next one */
json_t *token_json_completion(const struct tokenizer *t, const struct engine_token *tokens,
                              int64_t count, int64_t *text_offset);

/* token_json_chat - create the object "logprobs" of a chat completion. */
json_t *token_json_chat(const struct tokenizer *t, const struct engine_token *tokens,
                        int64_t count);
