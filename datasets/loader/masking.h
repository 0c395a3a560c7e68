/* Masked language modelling: which tokens of an example are to be predicted, and what stands in their place.
 *
 * Of n tokens (with [CLS] and [SEP]) round(n * probability), at least one and at most `most`, are drawn without
 * replacement from those that are not special. Of the drawn ones 80 % become [MASK], 10 % a token drawn from the
 * whole vocabulary, 10 % stay. With whole words, words are drawn, as long as all of their pieces fit; a word's
 * pieces meet their fates one by one.
 *
 * A pure function of (seed, epoch, example): the same at any number of ranks and after any resume, another one in
 * each epoch.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, and its create_pretraining_data.py; the masking of each epoch
 *           anew: Liu et al. 2019, arXiv:1907.11692 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

enum masking_kind { MASKING_BEGINS, MASKING_CONTINUES, MASKING_NEVER };

struct masking {
    double probability; /* 0.15 */
    int64_t most;       /* predictions of an example */
    bool whole_words;
    int32_t mask_id;
    int64_t vocab_size;
    const uint8_t *kinds; /* [vocab_size] enum masking_kind */
};

/* masking_kinds - what each token of the vocabulary is to masking; kinds[vocab_size] is the caller's. */
void masking_kinds(const struct tokenizer *tokenizer, uint8_t *kinds);

/* masking_apply - mask ids[count] in place; returns the number of predictions.
 *
 * Shapes    positions, labels [masking.most]: rising places in ids, and the ids that were there; scratch [2 count]
 * Units     example: any number that names the example among all of the epoch */
int64_t masking_apply(const struct masking *masking, uint64_t seed, int64_t epoch, uint64_t example,
                      int32_t *ids, int64_t count, int32_t *positions, int32_t *labels,
                      int32_t *scratch);
