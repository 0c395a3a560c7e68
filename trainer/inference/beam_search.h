/* Beam search: the best continuations of one prompt. generate_run calls beam_search_run; the server
 * advances a search between the passes of its engine:
 *
 *     TRY(beam_search_create(k, m, t, &prompt, &options, &b));
 *     for (bool done = false; !done;) {
 *         TRY(beam_search_advance(b, &done));
 *     }
 *     beam_search_take(b, outputs);
 *     beam_search_destroy(&b);
 *
 * All functions that run passes are collective over the tensor group. */
#pragma once

#include "trainer/inference/generate.h"

struct beam_search;

/* beam_search_create - begin a search with options->num_beams beams. No pass runs.
 *
 * Memory    allocates two caches for num_beams sequences. The prompt is copied; k, m, t and options
 *           must outlive the search. The caller calls beam_search_destroy
 * Errors    STATUS_INTERNAL if memory is exhausted */
status beam_search_create(struct kernels *k, struct model *m, const struct tokenizer *t,
                          const struct token_list *prompt, const struct generate_options *options,
                          struct beam_search **out);

/* beam_search_advance - extend all beams by one token. The first call reads the prompt.
 *
 * Returns   *done: the search has ended
 * Errors    STATUS_USAGE if there are more beams than tokens in the vocabulary;
 *           STATUS_NOT_FINITE */
status beam_search_advance(struct beam_search *b, bool *done);

/* beam_search_stop - end the search at once. The running beams are ranked too. */
status beam_search_stop(struct beam_search *b);

/* beam_search_take - move the best options->num_samples hypotheses of an ended search to out.
 *
 * Shapes    out [num_samples]
 * Memory    the caller frees the tokens of each output with token_list_free() */
void beam_search_take(struct beam_search *b, struct generate_output *out);

/* beam_search_destroy - free a search and set *b to NULL. */
void beam_search_destroy(struct beam_search **b);

/* beam_search_run - generate the best num_samples hypotheses of one prompt.
 *
 * Shapes, memory and errors are the same as for the functions above */
status beam_search_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                       const struct token_list *prompt, const struct generate_options *options,
                       struct generate_output *out);
