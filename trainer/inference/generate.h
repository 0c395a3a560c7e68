/* Text from a causal model: prompts in batches, with a key-value cache; sampled, greedy or by beams. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"
#include "trainer/model/model.h"
#include "trainer/inference/sampler.h"

enum { GENERATE_STOPS_MAX = 16 };

struct generate_options {
    struct sampler_settings sampler;
    int64_t max_new_tokens;
    int64_t num_beams;     /* 1: none. Beams do not sample */
    int64_t num_samples;   /* texts per prompt; beams: the best, at most num_beams */
    int64_t first_text;    /* number of the first text, for the draws */
    double length_penalty; /* beams: log-probability / tokens^penalty ranks them */
    const char *stops[GENERATE_STOPS_MAX]; /* a text ends before any of these */
    int stop_count;
    const int32_t *end;    /* the token that ends a text; NULL: the tokenizer's own */
    bool (*stopped)(void); /* asked before each token: end all texts now; NULL: never */
    bool use_cache;        /* false: recompute the whole text for each token, to check the cache */
};

struct generate_text {
    struct token_list tokens; /* the new tokens, without the prompt and the end token */
    double log_probability;   /* of the new tokens, beams only */
    bool ended;               /* by the end token or a stop text */
};

/* New bytes of a text as they come: whole UTF-8 characters, nothing that may become a stop text. */
typedef void (*generate_stream)(void *user, const char *text, size_t bytes);

/* generate_run - num_samples texts for each prompt; out [prompts * num_samples], each to be freed.
 *
 * Shapes    prompts: ids of each, at least one
 * Order     stream (or NULL) is called for the only text of the only prompt
 * Errors    STATUS_USAGE if a prompt leaves no room in the model's positions */
status generate_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                    const struct token_list *prompts, int64_t prompt_count,
                    const struct generate_options *options, generate_stream stream, void *user,
                    struct generate_text *out);

/* generate_decode - the bytes of a text, cut before the first stop text; *out for free(). */
status generate_decode(const struct tokenizer *t, const struct generate_options *options,
                       const struct generate_text *text, char **out, size_t *bytes);
