/* Text generation with a decoder, or with an encoder-decoder: batched prompts and a key-value
 * cache; sampling, greedy decoding or beam search.
 *
 * The prompt of an encoder-decoder is its source. The encoder reads it once, and the decoder
 * continues the start token. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"
#include "trainer/inference/generate_options.h"
#include "trainer/model/model.h"

struct generate_output {
    struct token_list tokens; /* new tokens, without the prompt and the end token */
    double log_probability;   /* sum over the new tokens, with the repetition penalty; set by beam
                               * search only */
    bool ended;               /* by the end token or a stop string, not by the length limit */
    bool stopped;             /* by a stop string; set by generate_decode */
};

/* Receives new bytes of the output as they become available. Each call passes whole UTF-8
 * characters that cannot become part of a stop string. */
typedef void (*generate_stream)(void *user, const char *text, size_t bytes);

/* generate_start_list - return the tokens that a decoder continues after its encoder has read a
 * source.
 *
 * Memory    a view of the options */
static inline struct token_list generate_start_list(const struct generate_options *options)
{
    return (struct token_list){(int32_t *)&options->decoder_start, 1, 1};
}

/* generate_encode_prompt - encode a text with the tokenizer's beginning token. An empty text starts
 * a new document.
 *
 * Memory    appends to *ids, which the caller frees with token_list_free()
 * Errors    STATUS_USAGE for an empty text without an end-of-text token */
status generate_encode_prompt(const struct tokenizer *t, const char *text, struct token_list *ids);

/* generate_bytes - return the memory of generate_run for one sequence, on the host and the device.
 *
 * Units     tokens: of the sequence; ranks: that share the model */
int64_t generate_bytes(const struct model_config *config, enum dtype dtype, int ranks,
                       int64_t tokens);

/* generate_pair_bytes - return generate_bytes for a source and its target. */
int64_t generate_pair_bytes(const struct model_config *config, enum dtype dtype, int ranks,
                            int64_t source_tokens, int64_t tokens);

/* generate_run - generate num_samples sequences for each prompt.
 *
 * Shapes    prompts [prompt_count], at least one token each; out [prompt_count * num_samples]
 * Memory    the caller frees the tokens of each output with token_list_free()
 * Order     stream may be set only for one sequence of one prompt; NULL: no streaming. Collective
 *           over the tensor group
 * Errors    STATUS_USAGE if a prompt leaves no position for a new token, or if a source has more
 *           tokens than the model has positions; STATUS_DATA if an encoder-decoder has no start
 *           token in its vocabulary */
status generate_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                    const struct token_list *prompts, int64_t prompt_count,
                    const struct generate_options *options, generate_stream stream, void *user,
                    struct generate_output *out);

/* generate_run_sorted - call generate_run with batches of prompts of similar lengths. The outputs
 * have the order of the prompts.
 *
 * Shapes, memory, order and errors are the same as for generate_run. There is no streaming */
status generate_run_sorted(struct kernels *k, struct model *m, const struct tokenizer *t,
                           const struct token_list *prompts, int64_t prompt_count,
                           int64_t batch_size, const struct generate_options *options,
                           struct generate_output *out);

/* generate_clean_text - copy a text as valid UTF-8: bytes that are not valid become U+FFFD, and a
 * NUL becomes a space.
 *
 * Memory    the caller frees *out with free(); it is terminated with NUL */
status generate_clean_text(const char *text, size_t bytes, char **out);

/* generate_find_stop - return the offset of the stop string that begins first; `bytes` if there is
 * none. */
size_t generate_find_stop(const struct generate_options *o, const char *text, size_t bytes);

/* generate_decode - decode an output to bytes and cut it before the first stop string.
 *
 * Memory    the caller frees *out with free() */
status generate_decode(const struct tokenizer *t, const struct generate_options *options,
                       struct generate_output *output, char **out, size_t *bytes);
