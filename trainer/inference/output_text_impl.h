/* The text of new tokens: stop strings, and the bytes that can be streamed. Private to
 * trainer/inference. */
#pragma once

#include "trainer/inference/generate.h"

/* output_text_join - decode new tokens: as a whole text, or as the continuation of one.
 *
 * Memory    the caller frees *out with free() */
status output_text_join(const struct tokenizer *t, const struct generate_options *o,
                        const int32_t *ids, int64_t count, char **out, size_t *bytes);

/* output_text_decode - decode new tokens. *ready receives the bytes that further tokens cannot
 * change and that cannot become part of a stop string; *has_stop whether a stop string ends the
 * text there.
 *
 * Memory    the caller frees *out with free() */
status output_text_decode(const struct tokenizer *t, const struct generate_options *o,
                          const int32_t *ids, int64_t count, bool is_last, char **out,
                          size_t *ready, bool *has_stop);
