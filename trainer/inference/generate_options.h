/* The options of text generation, their defaults, and their ranges in commands, files, requests and
 * the library. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "trainer/inference/constraints.h"
#include "trainer/inference/sampler.h"

struct comm;

enum {
    GENERATE_STOPS_MAX = 16,
    GENERATE_BEAMS_MAX = 256,
    GENERATE_SAMPLES_MAX = 4096,
    GENERATE_TOKENS_MAX = 1000000000, /* of the lengths */
    GENERATE_NGRAM_MAX = 1000000,
};

#define GENERATE_TEMPERATURE_MAX 1e3
#define GENERATE_TOP_P_MIN 1e-9
#define GENERATE_REPETITION_PENALTY_MIN 1e-3
#define GENERATE_REPETITION_PENALTY_MAX 1e3
#define GENERATE_LENGTH_PENALTY_MAX 10 /* the minimum is its negative */

struct generate_options {
    struct sampler_settings sampler;
    struct constraints constraints;
    int64_t max_new_tokens;
    int64_t num_beams;       /* 1: no beam search. Beam search does not sample */
    int64_t num_samples;     /* sequences per prompt; with beams the best ones, at most num_beams */
    int64_t first_sequence;  /* index of the first sequence; selects its random numbers */
    int64_t sequence_stride; /* index of the next sequence minus index of this one; 0: 1 */
    double length_penalty;   /* beams are ranked by log-probability / tokens^length_penalty */
    bool early_stopping;     /* beam search ends as soon as num_beams hypotheses have ended */
    int32_t decoder_start;   /* start token of an encoder-decoder */
    bool whole_text;         /* the output is a separate text, not the continuation of the prompt */
    const char *stops[GENERATE_STOPS_MAX]; /* the output ends before the one that begins first */
    int stop_count;
    const int32_t *end_token; /* end-of-sequence token; NULL: the tokenizer's */
    /* Called before each token; true, on any rank of tensor_group, ends all sequences. NULL: none
     */
    bool (*should_stop)(void);
    /* Continue past the model's positions on the last half of them, encoded again as a new text;
     * false: stop there. Beam search always stops there. */
    bool slide;
    const char *no_slide_option; /* sets slide to false; named in a message; NULL: none */
    bool use_cache; /* false: recompute the whole sequence for each token, to test the cache */
    int64_t chunk_tokens; /* maximum rows of a forward pass; 0: 256 */
    /* ranks that share the model; they generate the same tokens. NULL: one rank */
    struct comm *tensor_group;
};

/* generate_options_default - return the options without any settings: one sequence for each prompt,
 * sampled at temperature 1 with the key-value cache, and no number of new tokens. */
struct generate_options generate_options_default(void);
