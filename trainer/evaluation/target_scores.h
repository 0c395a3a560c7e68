/* Scores of generated targets: an encoder-decoder generates the target of each source of a
 * validation set. The generated texts are compared with the targets of the set (text_scores.h).
 *
 * The texts and the settings are the same as in `bireme translate`: a reference is the decoded
 * target, without special tokens. If the tokenizer has language tokens, each target is generated in
 * the language of its reference.
 *
 * The samples of a global batch are distributed over the data-parallel ranks. The scores do not
 * depend on the layout: the sums are exact, and on CPUs a generated target does not depend on its
 * batch. */
#pragma once

#include "comm/mesh.h"
#include "datasets/loader/loader.h"
#include "trainer/evaluation/text_scores.h"
#include "trainer/inference/generate.h"
#include "trainer/inference/stop_poll.h"
#include "trainer/logging/metrics.h"
#include "trainer/recipe/recipe.h"

struct target_scores {
    struct kernels *kernels;
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct mesh *mesh;
    struct generate_options options; /* from target_scores_read_options */
    int64_t batch_size;              /* sources of a batch */
    const struct stop_poll *poll;    /* NULL: it cannot be stopped */
};

/* target_scores_read_options - set the options of generation from evaluate.generation_*. Missing
 * settings come from generation_config.json in the folder of the tokenizer.
 *
 * Units     vocabulary: of the model; tokenizer NULL: no warnings are logged; decoder_start: start
 *           token, which the file can replace; -1: the language token of each target
 * Errors    as generation_config_complete; STATUS_RECIPE if there are more beams than tokens,
 *           STATUS_DATA if generation_config.json sets them */
status target_scores_read_options(const struct recipe *recipe, const char *tokenizer_folder,
                                  int64_t vocabulary, const struct tokenizer *tokenizer,
                                  int32_t decoder_start, struct generate_options *out);

/* target_scores_bytes - return the planned host and device memory of target_scores_run. */
int64_t target_scores_bytes(const struct recipe *recipe, const struct model_config *config,
                            enum dtype dtype);

/* target_scores_run - generate the targets of all samples of a limited loader, and write the scores
 * to fields[TEXT_METRICS].
 *
 * Order     collective
 * Returns   *count: number of fields; 0 if poll has stopped the generation
 * Errors    STATUS_NOT_FINITE; STATUS_DATA from the loader; agreed on all ranks */
status target_scores_run(const struct target_scores *t, struct loader *loader,
                         struct metric *fields, int *count);
