/* What `bireme inspect` is made of: one file for runs and their checkpoints, one for folders of shards. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

/* inspect_print - one JSON document, given up. */
status inspect_print(json_t *document);

/* inspect_has_file - whether a folder holds something of this name. */
bool inspect_has_file(const char *folder, const char *name);

/* inspect_has_shards - whether a folder holds files *.h5. */
bool inspect_has_shards(const char *folder);

/* inspect_shards - verify every shard of a folder, tell each and each set's totals.
 *
 * Errors    STATUS_DATA: one is damaged or missing, or they are of different tokenizers */
status inspect_shards(const char *folder, bool json);

/* inspect_run - a run folder, or a folder of checkpoints: where training stands, each checkpoint verified.
 *
 * Errors    STATUS_CHECKPOINT if one is damaged */
status inspect_run(const char *folder, bool json);
