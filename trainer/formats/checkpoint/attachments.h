/* Copies of the tokenizer's files in memory. They are read when a run begins, so that later changes
 * of the tokenizer's folder do not affect the checkpoints of this run. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct checkpoint_attachment {
    char *name;
    char *data;
    size_t bytes;
};

struct checkpoint_attachments {
    struct checkpoint_attachment *files;
    int count;
};

/* checkpoint_attachments_read - read files of a folder.
 *
 * `names` is a list that ends with NULL; names without a file are skipped. With NULL, all files
 * that are not hidden are read. Entries that are not regular files are skipped.
 *
 * Memory    the caller always releases *out with checkpoint_attachments_destroy
 * Errors    as file_read; STATUS_NO_INPUT, STATUS_PERMISSION naming the folder */
status checkpoint_attachments_read(const char *folder, const char *const *names,
                                   struct checkpoint_attachments *out);

/* checkpoint_attachments_destroy - free all files. */
void checkpoint_attachments_destroy(struct checkpoint_attachments *attachments);
