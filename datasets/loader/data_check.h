/* Compares the shards of a training and a validation loader. */
#pragma once

#include "base/status.h"
#include "datasets/loader/loader.h"

/* data_check_compare - compare all shards of the training data and of the validation data. A NULL
 * loader of validation data means that there is none.
 *
 * Logs W-JOIN-ENCODING if prompts and completions are encoded in two ways, and W-SAME-DATA if a
 * shard of the validation data has the tokens of a training shard. Call it once per run.
 *
 * Errors    STATUS_DATA: two shards were made with different tokenizers */
status data_check_compare(const struct loader *train, const struct loader *validation);

/* data_check_tokenizer - return the SHA-256 of the tokenizer that made the first shard; "": the
 * shard does not store it. The text belongs to the loader. */
const char *data_check_tokenizer(const struct loader *l);
