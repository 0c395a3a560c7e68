/* Corruption of texts for the objective denoise: which tokens of a window become the target, and
 * what replaces them in the source.
 *
 * DENOISE_SPAN_CORRUPTION (T5): round(n * density) of n tokens are noise, in round(noise / mean
 *     span) spans. The lengths of the spans, and of the texts between them, are uniform random
 *     compositions of their sums. A window begins with text and ends with noise. A sentinel
 *     replaces each span in the source; the target has the sentinels followed by their spans.
 * DENOISE_BART: sentences change places, then ceil(n * density) tokens are noise, in spans with
 *     Poisson lengths at random places. A mask replaces each span, zero-length spans included. The
 *     target is the whole window.
 * DENOISE_UL2: each window has one of seven denoisers: R (density 0.15, spans 3 and 8), S (the last
 *     25 % are noise) and X (0.5 with spans 3, 8 and 64; 0.15 with 64). The source begins with the
 *     mode token of the denoiser, if the tokenizer has it.
 * DENOISE_PREFIX_LM: the source is a prefix of random length, the target the rest.
 *
 * The end token follows each source and target. With DENOISE_BART, the beginning token precedes
 * them, if the tokenizer has one. With has_language, the language token of the text precedes them
 * instead, or follows the end token (mBART).
 *
 * The result is a pure function of (seed, epoch, example). It is the same for any number of ranks
 * and after any resume, and different in each epoch. The lengths do not depend on the text.
 *
 * Source: Raffel et al. 2020, arXiv:1910.10683, and its preprocessors.py; Lewis et al. 2020,
 * arXiv:1910.13461, and fairseq's denoising_dataset.py; Tay et al. 2022, arXiv:2205.05131. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

enum denoise_kind {
    DENOISE_NONE = 0,
    DENOISE_SPAN_CORRUPTION,
    DENOISE_BART,
    DENOISE_UL2,
    DENOISE_PREFIX_LM
};

/* Replacement of a span with DENOISE_BART. */
enum denoise_replacement {
    DENOISE_ONE_MASK = 0, /* text infilling */
    DENOISE_MASKS,        /* a mask for each token: token masking */
    DENOISE_NOTHING       /* token deletion */
};

enum { DENOISE_SENTINELS_MAX = 256, DENOISE_MODES = 3, DENOISE_SOURCES_MAX = 64 };

struct denoise {
    enum denoise_kind kind;
    double density;     /* share of the tokens that are noise, in (0, 1) */
    double mean_span;   /* mean length of a span; with DENOISE_BART of the Poisson distribution */
    bool single_tokens; /* DENOISE_BART: each span has one token */
    enum denoise_replacement replacement; /* DENOISE_BART */
    double permuted_sentences;            /* DENOISE_BART: share of the sentences that move */
    double rotation;                      /* DENOISE_BART: probability that the source is rotated */
    int32_t bos, eos, mask;               /* -1: none */
    int32_t modes[DENOISE_MODES];         /* DENOISE_UL2: [NLU], [S2S] and [NLG]; -1: none */
    int32_t sentinels[DENOISE_SENTINELS_MAX];
    int sentinel_count;
    int64_t unnamed_from; /* sentinels are ids from this one on; 0: they are tokens <extra_id_N> */
    bool has_language;    /* each source and target has the token of its language */
    bool language_first;  /* before the text; false: after the end token */
    int32_t languages[DENOISE_SOURCES_MAX]; /* of the texts of each source of the data */
    const uint8_t *sentence_ends;           /* [vocabulary]: 1 for tokens that end a sentence */
};

/* denoise_find_tokens - find the special tokens of the corruption in a tokenizer: <extra_id_0>, ...
 * of T5. Without them, the sentinels are the last ids of the vocabulary that the tokenizer does not
 * have, from the last one down.
 *
 * Shapes    sentence_ends [vocabulary], or NULL if d->kind is not DENOISE_BART; not copied
 * Errors    STATUS_INTERNAL (out of memory) */
status denoise_find_tokens(struct denoise *d, const struct tokenizer *tokenizer, int64_t vocabulary,
                           uint8_t *sentence_ends);

/* denoise_window_tokens - return the length of a window, so that neither its source nor its target
 * has more than `tokens` tokens. */
int64_t denoise_window_tokens(const struct denoise *d, int64_t tokens);

/* denoise_check - check that the corruption of a window is possible.
 *
 * Errors    STATUS_RECIPE: too few sentinels, a missing mask or end token, too short windows */
status denoise_check(const struct denoise *d, int64_t tokens);

/* denoise_key - return the random key of an example. */
uint64_t denoise_key(uint64_t seed, int64_t epoch, uint64_t example);

/* denoise_lengths - compute the lengths of source and target.
 *
 * Shapes    scratch [4 window] */
void denoise_lengths(const struct denoise *d, uint64_t key, int64_t window, int32_t *scratch,
                     int64_t *source, int64_t *target);

/* denoise_apply - write the source, then the target, to ids. `language` is the language token of
 * the text; not used without has_language.
 *
 * Shapes    text [window]; scratch [4 window]; ids [*source + *target] */
void denoise_apply(const struct denoise *d, uint64_t key, int32_t language, const int32_t *text,
                   int64_t window, int32_t *scratch, int32_t *ids, int64_t *source,
                   int64_t *target);
