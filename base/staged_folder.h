/* A folder that appears when it is whole: written beside its place under a temporary name, synced, renamed. */
#pragma once

#include "base/file.h"
#include "base/status.h"
#include "trainer/checkpoint/directory.h"

struct checkpoint_output {
    char parent[FILE_PATH_BYTES], path[FILE_PATH_BYTES]; /* files are written under path */
    char name[CHECKPOINT_NAME_BYTES], temporary[CHECKPOINT_NAME_BYTES];
};

/* checkpoint_output_create - the temporary folder for `output`, with the folders above it.
 *
 * bytes     that will be written, as far as is known
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE naming needed and free bytes; STATUS_PERMISSION */
status checkpoint_output_create(const char *output, double bytes, struct checkpoint_output *out);

/* checkpoint_output_finish - give the folder its name where result, which the writing came to, is STATUS_OK, else
 * remove it.
 *
 * Errors    result, else those of checkpoint_folder_publish */
status checkpoint_output_finish(const struct checkpoint_output *folder, status result);
