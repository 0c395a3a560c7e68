/* The folder that holds the checkpoints of a run: names, listing, and deletion of old checkpoints.
 *
 * A folder step-00001000 is published and complete. base/staged_folder.h describes tmp-* and
 * trash-*. Only rank 0 calls these functions, while it holds the lock of the run folder. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/staged_folder.h"
#include "base/status.h"

enum { CHECKPOINT_NAME_BYTES = STAGED_FOLDER_NAME_BYTES };

/* checkpoint_directory_step_name - format "step-00001000". */
void checkpoint_directory_step_name(int64_t step, char out[CHECKPOINT_NAME_BYTES]);

/* checkpoint_directory_list - list the steps that have a published folder, newest first.
 *
 * A missing folder has no steps.
 *
 * Memory    the caller frees *steps with free()
 * Errors    STATUS_CREATE, STATUS_PERMISSION; STATUS_INTERNAL out of memory */
status checkpoint_directory_list(const char *folder, int64_t **steps, int *count);

/* checkpoint_directory_retain - delete old and damaged checkpoints.
 *
 * Keeps `newest`, the newest `keep` valid checkpoints (including `newest`) and the step `pinned`.
 * Damaged checkpoints that are older than `newest` are deleted.
 * The steps bad[bad_count] count as damaged without a check. The manifest and the file sizes of the
 * other steps are checked. Failures are logged as W-CKPT-CLEAN. */
void checkpoint_directory_retain(const char *folder, int64_t newest, int64_t keep, int64_t pinned,
                                 const int64_t *bad, int bad_count);

/* checkpoint_directory_archive_newer - move the checkpoints newer than `step` to old-N/.
 *
 * *moved receives their number, and `archive` the name of the new folder.
 *
 * Errors    STATUS_CREATE, STATUS_WRITE, STATUS_PERMISSION */
status checkpoint_directory_archive_newer(const char *folder, int64_t step, int *moved,
                                          char archive[CHECKPOINT_NAME_BYTES]);
