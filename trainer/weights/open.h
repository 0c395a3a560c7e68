/* Opens a checkpoint for inference or evaluation. */
#pragma once

#include "trainer/setup/session.h"

/* weights_open_checkpoint - open the checkpoint at `path`, or the newest usable one of the run
 * folder `path`, and create a session with its model and tokenizer. One rank may read what many
 * have written. Collective.
 *
 * overrides settings "section.key=value" that replace those of the checkpoint's recipe
 * Units     rows: minimum capacity of a micro-batch in rows; the recipe's micro-batch and its
 *           number of positions are also lower limits
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT; agreed on all ranks */
status weights_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows);

/* weights_require_causal - check that the model predicts next tokens.
 *
 * Errors    STATUS_DATA with the checkpoint and the command to use instead */
status weights_require_causal(const struct session *s, const char *checkpoint);
