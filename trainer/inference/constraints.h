/* Constraints of generated tokens: minimum length, n-grams that must not repeat, excluded token
 * sequences, and forced first and last tokens. The rules and their order are the same as in the
 * logits processors of transformers.
 *
 * Ids after the last id of the tokenizer are always excluded, because they have no text. A model
 * has such ids if model.vocab_size is larger than the tokenizer. T5's sentinels are examples. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CONSTRAINTS_BAD_WORDS_MAX = 64, CONSTRAINTS_BAD_TOKENS_MAX = 256 };

/* All zero: no constraints. */
struct constraints {
    int64_t min_new_tokens;       /* the end token is excluded before this number of new tokens */
    int64_t no_repeat_ngram_size; /* no n-gram of this size occurs twice; 0: no limit */
    bool has_first, has_last;
    int32_t first_token, last_token; /* the first new token, and the token at the length limit */
    int bad_words;                   /* token sequences that must not occur */
    int bad_lengths[CONSTRAINTS_BAD_WORDS_MAX];     /* [bad_words] their tokens */
    int32_t bad_tokens[CONSTRAINTS_BAD_TOKENS_MAX]; /* one after the other */
};

/* A sequence of tokens to continue. */
struct constraints_sequence {
    const int32_t *ids;           /* [count] prompt and new tokens */
    int64_t count, prompt_tokens; /* of an encoder-decoder, the prompt is the start token */
    int64_t limit;                /* maximum tokens with prompt */
    int32_t end_token;            /* -1: none */
    int64_t tokenizer_ids;        /* number of ids of the tokenizer */
};

/* constraints_are_active - return whether constraints_apply can change logits [vocabulary]. */
bool constraints_are_active(const struct constraints *c, int64_t tokenizer_ids, int64_t vocabulary);

/* constraints_apply - set the logits of excluded tokens to the most negative number, and the logit
 * of a forced token to 0.
 *
 * Shapes    logits [vocabulary], or log-probabilities in beam search */
void constraints_apply(const struct constraints *c, const struct constraints_sequence *s,
                       float *logits, int64_t vocabulary);
