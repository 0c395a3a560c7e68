/* Opens a checkpoint for inference or evaluation. */
#pragma once

#include "trainer/setup/session.h"

/* weights_open_checkpoint - open the checkpoint at `path`, or the newest usable one of the run
 * folder `path`, and create a session with its model and tokenizer.
 *
 * Another number of ranks may have written the checkpoint. `overrides` are settings
 * "section.key=value" that replace settings of its recipe. s->checkpoint is the opened folder.
 *
 * Units     rows: minimum capacity of a micro-batch in rows; the recipe's micro-batch and its
 *           number of positions are also lower limits
 * Order     collective
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT; the same on all ranks */
status weights_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows);

/* weights_check_tokenizer - compare a tokenizer with the tokenizer in the folder of the initial
 * weights. It is the tokenizer of the recipe or, if the recipe has none, the tokenizer of the data
 * (SHA-256; "": unknown).
 *
 * If they differ but give the tokens the same ids, or with model.ignore_mismatched_tokenizer, it
 * only logs W-TOKENIZER. A folder without a readable tokenizer is not compared.
 *
 * Errors    STATUS_RECIPE if the ids mean other tokens; STATUS_DATA if the data has another
 *           tokenizer and the recipe has none */
status weights_check_tokenizer(const struct recipe *recipe, const struct tokenizer *tokenizer,
                               const char *data_sha256, const char *checkpoint);

/* weights_require_single_stack - check that the model of a session is no encoder-decoder.
 *
 * Errors    STATUS_UNAVAILABLE with the checkpoint and the commands to use instead */
status weights_require_single_stack(const struct session *s, const char *checkpoint);

/* weights_require_tokenizer - check that a session has a tokenizer. `user` needs it, for example
 * "chat" or "a task".
 *
 * Errors    STATUS_DATA with the checkpoint and the remedy */
status weights_require_tokenizer(const struct session *s, const char *checkpoint, const char *user);

/* weights_require_causal - check that the model predicts next tokens.
 *
 * Errors    STATUS_DATA with the checkpoint and the command to use instead */
status weights_require_causal(const struct session *s, const char *checkpoint);

/* weights_require_generator - check that the model generates text: as weights_require_causal, but
 * encoder-decoders do too. */
status weights_require_generator(const struct session *s, const char *checkpoint);

/* weights_require_seq2seq - check that the model is an encoder-decoder.
 *
 * Errors    STATUS_DATA with the checkpoint and the command to use instead */
status weights_require_seq2seq(const struct session *s, const char *checkpoint);
