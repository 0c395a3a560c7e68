/* The files of a small folder, kept in memory: a tokenizer as it was when a run began, whatever becomes of its folder
 * while the run lasts. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct checkpoint_file {
    char *name, *bytes;
    size_t count;
};

struct checkpoint_files {
    struct checkpoint_file *files;
    int count;
};

/* checkpoint_files_read - those of these names that are there, up to a NULL; names NULL: all that are not hidden. Folders and
 * what is special are no files.
 *
 * Memory    out is for checkpoint_files_destroy in any case
 * Errors    those of file_read; STATUS_NO_INPUT, STATUS_PERMISSION naming the folder */
status checkpoint_files_read(const char *folder, const char *const *names,
                             struct checkpoint_files *out);
void checkpoint_files_destroy(struct checkpoint_files *files);
