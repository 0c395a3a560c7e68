/* Masking for masked language modeling: which tokens of an example are predicted, and which tokens
 * replace them.
 *
 * An example has n tokens, with [CLS] and [SEP]. round(n * probability) of them are drawn without
 * replacement, at least one and at most max_predictions. Special tokens are never drawn. 80 % of
 * the drawn tokens become [MASK], 10 % become a token drawn from the whole vocabulary, and 10 %
 * stay. With whole-word masking, words are drawn, and a word with too many tokens is skipped. The
 * replacement is drawn for each token separately.
 *
 * The result is a pure function of (seed, epoch, example). It is the same for any number of ranks
 * and after any resume, and different in each epoch.
 *
 * Source: Devlin et al. 2018, arXiv:1810.04805, and its create_pretraining_data.py; new masks in
 * each epoch: Liu et al. 2019, arXiv:1907.11692. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

/* Tokens that begin a word, that continue a word, and that are never masked. */
enum masking_kind { MASKING_BEGINS, MASKING_CONTINUES, MASKING_NEVER };

struct masking {
    double probability;      /* usually 0.15 */
    int64_t max_predictions; /* per example */
    bool whole_words;
    int32_t mask_id;
    int64_t vocab_size;
    const uint8_t *token_kinds; /* [vocab_size] enum masking_kind */
};

/* masking_classify_tokens - write the masking kind of each token to kinds[vocab_size]. */
void masking_classify_tokens(const struct tokenizer *tokenizer, uint8_t *kinds);

/* masking_apply - mask ids[count] in place and return the number of predictions.
 *
 * Shapes    positions, labels [max_predictions]: increasing indices in ids, and the original ids
 *           there; scratch [2 count]
 * Units     example: a number that identifies the example within the epoch */
int64_t masking_apply(const struct masking *masking, uint64_t seed, int64_t epoch, uint64_t example,
                      int32_t *ids, int64_t count, int32_t *positions, int32_t *labels,
                      int32_t *scratch);
