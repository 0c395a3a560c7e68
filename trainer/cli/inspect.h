/* Parts of `bireme inspect`: inspect_run.c handles runs and their checkpoints, inspect_shards.c
 * handles folders of shards. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

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

/* inspect_shards - verify every shard of a folder and print each shard and the totals of each set.
 *
 * Errors    STATUS_DATA if a shard is damaged or missing, or if the tokenizers differ */
status inspect_shards(const char *folder, bool json);

/* inspect_run - print the state of a run folder or of a folder of checkpoints. Verifies each
 * checkpoint.
 *
 * Errors    STATUS_CHECKPOINT if a checkpoint is damaged */
status inspect_run(const char *folder, bool json);
