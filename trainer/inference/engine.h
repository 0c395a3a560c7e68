/* Continuous batching: sequences in the slots of one key-value cache. A sequence can be added and
 * removed between two passes. Each pass extends all running sequences by one token.
 *
 * The tokens of a sequence depend on its prompt, settings, seed and sample only. On CPUs they have
 * the same bits alone and next to other sequences.
 *
 *     TRY(engine_create(k, m, t, &limits, &e));
 *     TRY(engine_add(e, &request, &slot));
 *     while (engine_get_end(e, slot) == ENGINE_RUNS) {
 *         TRY(engine_read_prompts(e, 1));
 *         TRY(engine_advance(e));
 *     }
 *     engine_remove(e, slot);
 *
 * Source    Yu et al. 2022, "Orca: A Distributed Serving System for Transformer-Based Generative
 *           Models" */
#pragma once

#include "trainer/inference/generate.h"

enum { ENGINE_TOP_MAX = 20 };

enum engine_end {
    ENGINE_RUNS,      /* it has not ended */
    ENGINE_END_TOKEN, /* by the end token */
    ENGINE_STOP,      /* by a stop string */
    ENGINE_LENGTH     /* by max_new_tokens, the maximum length, or engine_stop */
};

/* A token with log-probabilities before temperature, penalty, top-k and top-p. */
struct engine_token {
    int32_t id;
    bool is_prompt; /* a token of the prompt, not a new one */
    double log_probability;
    int top_count;                                /* the most probable tokens, descending */
    int32_t top_ids[ENGINE_TOP_MAX];              /* [top_count] */
    double top_log_probabilities[ENGINE_TOP_MAX]; /* [top_count] */
};

/* Receives each new token, including the end token. */
typedef status (*engine_receive_token)(void *user, const struct engine_token *token);

struct engine_request {
    const struct token_list *prompt;        /* at least one token; copied. An encoder-decoder reads
                                             * it as the source */
    const struct generate_options *options; /* sampler, max_new_tokens, stops, end_token and slide;
                                             * not copied */
    uint64_t sample;                        /* selects the random numbers together with the seed */
    bool has_log_probabilities;             /* compute them for the new tokens, for receive_token */
    bool has_prompt_log_probabilities;      /* compute them for the prompt tokens after the first */
    int top_count; /* number of most probable tokens to list, at most ENGINE_TOP_MAX */
    engine_receive_token receive_token; /* NULL: none */
    generate_stream stream;             /* new bytes of the text; NULL: none */
    void *user;                         /* of both functions */
};

struct engine_limits {
    int64_t slots;         /* sequences at a time */
    int64_t max_tokens;    /* of a sequence with its prompt, or of its window if it slides */
    int64_t source_tokens; /* of the longest source; 0: the model has no encoder */
    int64_t chunk_tokens;  /* maximum rows of a pass that reads a prompt */
    bool use_cache;        /* false: recompute each sequence for each token, to test the cache */
    bool has_prompt_log_probabilities; /* allocate memory for them */
};

struct engine;

/* engine_create - allocate the cache for all slots.
 *
 * Memory    k, m and t must outlive it
 * Order     collective over the tensor-parallel group, as all functions that run passes
 * Errors    STATUS_INTERNAL if memory is exhausted */
status engine_create(struct kernels *k, struct model *m, const struct tokenizer *t,
                     const struct engine_limits *limits, struct engine **out);

/* engine_destroy - free the engine and set *e to NULL. */
void engine_destroy(struct engine **e);

/* engine_add - put a sequence into a free slot.
 *
 * Returns   *slot -1: all slots are in use
 * Errors    STATUS_USAGE if the prompt leaves no position for a new token, or if a source is longer
 *           than planned */
status engine_add(struct engine *e, const struct engine_request *request, int64_t *slot);

/* engine_remove - remove a sequence, even if it has not ended. Its slot is free again. */
void engine_remove(struct engine *e, int64_t slot);

/* engine_stop - end a sequence at its present length and stream the rest of its text. */
status engine_stop(struct engine *e, int64_t slot);

/* engine_read_prompts - read at most `chunks` chunks of the prompts, the oldest first. A sequence
 * with a whole prompt gets its first token.
 *
 * Errors    STATUS_NOT_FINITE; errors of receive_token */
status engine_read_prompts(struct engine *e, int64_t chunks);

/* engine_advance - run one pass: each sequence with a whole prompt gets one token.
 *
 * Errors    as engine_read_prompts */
status engine_advance(struct engine *e);

/* engine_get_end - return how the sequence has ended. */
enum engine_end engine_get_end(const struct engine *e, int64_t slot);

/* engine_is_running - return whether any sequence has not ended. */
bool engine_is_running(const struct engine *e);

/* engine_get_tokens - return the new tokens of a sequence, without prompt and end token.
 *
 * Memory    valid until the next pass */
const int32_t *engine_get_tokens(const struct engine *e, int64_t slot, int64_t *count);
