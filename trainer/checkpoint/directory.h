/* The folder that holds a run's checkpoints: names, listing, publishing, keeping the newest.
 *
 * step-00001000 is published and whole; tmp-* is being written; trash-* is being deleted. Everything
 * here is done by rank 0 alone, under the run folder's lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"

enum { CHECKPOINT_NAME_BYTES = 64 };

/* checkpoint_folder_name - "step-00001000". */
void checkpoint_folder_name(int64_t step, char out[CHECKPOINT_NAME_BYTES]);

/* checkpoint_folder_list - the steps that have a published folder, newest first.
 *
 * Memory    *steps is the caller's, for free(); a missing folder holds none */
status checkpoint_folder_list(const char *folder, int64_t **steps, int *count);

/* checkpoint_folder_clean - remove tmp-PREFIX* and trash-PREFIX* that a killed job left. */
status checkpoint_folder_clean(const char *folder, const char *prefix);

/* checkpoint_folder_space - is there room for `bytes`?
 *
 * Errors    STATUS_WRITE naming needed and free bytes */
status checkpoint_folder_space(const char *folder, double bytes);

/* checkpoint_folder_publish - sync the temporary folder, give it its name, sync the parent. What bore
 * the name before is exchanged in the same instant and removed.
 *
 * Errors    STATUS_WRITE, STATUS_CREATE, STATUS_PERMISSION */
status checkpoint_folder_publish(const char *parent, const char *temporary, const char *name);

/* checkpoint_folder_retain - keep the newest `keep` whole ones and that of the step `besides`, remove older ones and
 * damaged ones that are older than `newest`, which itself is never removed. Failures are warnings W-CKPT-CLEAN.
 *
 * bad       steps known to be damaged, besides those whose manifest or sizes do not hold */
void checkpoint_folder_retain(const char *folder, int64_t newest, int64_t keep, int64_t besides,
                              const int64_t *bad, int bad_count);

/* checkpoint_folder_set_aside - move checkpoints newer than step into old-N/, out of resume's sight.
 *
 * *moved    how many; the folder's name in where[CHECKPOINT_NAME_BYTES] */
status checkpoint_folder_set_aside(const char *folder, int64_t step, int *moved,
                                   char where[CHECKPOINT_NAME_BYTES]);
