/* Pairs of a source and a target, for the objectives seq2seq and sft. */
#pragma once

#include "datasets/prepare/rows.h"
#include "datasets/tokenizer/text_pair.h"

/* seq2seq_check_options - check that the tokenizer has an end token and the language tokens of the
 * options, and that an example fits into sequence_tokens.
 *
 * Errors    STATUS_DATA, STATUS_USAGE */
status seq2seq_check_options(const struct prepare_options *options);

/* seq2seq_encode_pair - make the example of two texts.
 *
 * Errors    STATUS_DATA: a text is longer than sequence_tokens, or cannot be encoded */
status seq2seq_encode_pair(const struct prepare_options *options, const struct text *source,
                           const struct text *target, struct rows_example *out);

/* seq2seq_finish_pair - complete the example of out->text.ids. The first source_tokens of them are
 * the source.
 *
 * Errors    STATUS_DATA: a side is longer than sequence_tokens */
status seq2seq_finish_pair(const struct prepare_options *options, int64_t source_tokens,
                           struct rows_example *out);
