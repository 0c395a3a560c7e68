/* Parts of `bireme inspect`: inspect_run.c handles runs and their checkpoints, inspect_shards.c
 * handles folders of shards, inspect_sample.c prints one sample. */
#pragma once

#include <glob.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* inspect_print_json - print an indented JSON document on standard output.
 *
 * Memory    takes ownership of document
 * Errors    STATUS_WRITE if the write fails, also if document is NULL */
status inspect_print_json(json_t *document);

/* inspect_has_file - return whether the folder contains a file or folder of this name. */
bool inspect_has_file(const char *folder, const char *name);

/* inspect_has_shards - return whether the folder contains *.h5 files. */
bool inspect_has_shards(const char *folder);

/* inspect_list_shards - find the *.h5 files of a folder, sorted by name.
 *
 * Memory    the caller releases *found with globfree */
status inspect_list_shards(const char *folder, glob_t *found);

/* inspect_shards - verify every shard of a folder and print each shard and the totals of each set.
 *
 * Errors    STATUS_PERMISSION if a shard cannot be read; STATUS_DATA if a shard is damaged or
 *           missing, or if the tokenizers differ */
status inspect_shards(const char *folder, bool json);

/* inspect_sample - print the text, the tokens and the loss mask of an example or document.
 *
 * Units     path: a shard or a folder of shards; index: from 0, over the shards of the folder in
 *           the order of their names; tokenizer: its folder, or NULL to look for it next to the
 *           shard
 * Errors    STATUS_USAGE if there is no sample with this index; errors of shard_open and
 *           tokenizer_open; STATUS_DATA if it is another tokenizer */
status inspect_sample(const char *path, int64_t index, const char *tokenizer, bool json);

/* inspect_training_sample - print a sample as training reads it: a window of text with its document
 * boundaries, or a pack of SFT examples.
 *
 * Units     number: of the sample in the order of training, from 0; tokenizer: its folder; NULL:
 *           the tokenizer of the recipe
 * Errors    STATUS_UNAVAILABLE for other objectives; errors of recipe_read and data_open_train */
status inspect_training_sample(const char *recipe, int64_t number, const char *tokenizer,
                               bool json);

/* inspect_run - print the state of a run folder or of a folder of checkpoints. Verifies each
 * checkpoint. With `settings` or `json`, also prints the settings of the run.
 *
 * Errors    STATUS_CHECKPOINT if a checkpoint is damaged */
status inspect_run(const char *folder, bool json, bool settings);
