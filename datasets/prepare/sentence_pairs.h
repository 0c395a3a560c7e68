/* Makes pre-training examples of encoders from a token spool. */
#pragma once

#include "base/status.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/token_spool.h"

/* sentence_pairs_write - make all sentence pairs of a spool and write them to the output. For a
 * RoBERTa tokenizer the examples are whole sentences without pairs.
 *
 * Memory    the largest document
 * Errors    STATUS_DATA if the spool has no sentences; as token_spool and prepare_output */
status sentence_pairs_write(const struct prepare_options *options, struct token_spool *spool,
                            struct prepare_output *output);
