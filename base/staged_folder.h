/* Folders that are published atomically: a folder is written under a temporary name in its parent
 * folder, synced, and then renamed. A reader never finds a partial folder under the final name.
 *
 * tmp-NAME.NONCE is being written; trash-NAME is being deleted. A job that is killed may leave
 * folders with these two prefixes. staged_folder_remove_leftovers deletes them. */
#pragma once

#include "base/file.h"
#include "base/status.h"

enum { STAGED_FOLDER_NAME_BYTES = 64 };

struct staged_folder {
    char parent[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];               /* parent/temporary: files are written here */
    char name[STAGED_FOLDER_NAME_BYTES];      /* final name, without the parent */
    char temporary[STAGED_FOLDER_NAME_BYTES]; /* temporary name, without the parent */
};

/* staged_folder_create - create the temporary folder for `output`, and its missing parent folders.
 *
 * Units     bytes: estimate of the bytes that will be written
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE naming needed and free bytes; STATUS_USAGE
 *           for a path that cannot be used; STATUS_PERMISSION */
status staged_folder_create(const char *output, double bytes, struct staged_folder *out);

/* staged_folder_finish - publish the folder if `result` is STATUS_OK, otherwise delete it.
 *
 * result is the status of the code that wrote the files.
 *
 * Errors    result if it is not STATUS_OK, otherwise the errors of staged_folder_publish */
status staged_folder_finish(const struct staged_folder *folder, status result);

/* staged_folder_make - create a temporary folder, which must not exist. Another program could have
 * put a symbolic link there.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status staged_folder_make(const char *path);

/* staged_folder_temporary_name - format "tmp-NAME.NONCE"; NONCE depends on the time and the pid. */
void staged_folder_temporary_name(const char *name, char out[STAGED_FOLDER_NAME_BYTES]);

/* staged_folder_check_space - check that the file system of `folder` has `bytes` free bytes.
 *
 * Errors    STATUS_WRITE naming needed and free bytes */
status staged_folder_check_space(const char *folder, double bytes);

/* staged_folder_publish - sync parent/temporary, rename it to parent/name and sync the parent.
 *
 * If parent/name exists, the two folders are exchanged atomically; then the old one is deleted.
 *
 * Errors    STATUS_WRITE, STATUS_CREATE, STATUS_PERMISSION */
status staged_folder_publish(const char *parent, const char *temporary, const char *name);

/* staged_folder_rename - rename parent/from to parent/to.
 *
 * Errors    STATUS_WRITE, STATUS_PERMISSION */
status staged_folder_rename(const char *parent, const char *from, const char *to);

/* staged_folder_remove - delete a published folder.
 *
 * Renames it to trash-NAME and syncs the parent before the deletion.
 *
 * Errors    STATUS_WRITE, STATUS_PERMISSION */
status staged_folder_remove(const char *parent, const char *name);

/* staged_folder_remove_leftovers - delete tmp-PREFIX* and trash-PREFIX* of a killed job.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; a missing parent is not an error */
status staged_folder_remove_leftovers(const char *parent, const char *prefix);

/* staged_folder_warn - log a failed deletion as W-CKPT-CLEAN and clear the pending error.
 *
 * A folder that remains costs space but damages no published folder, so the work continues. */
void staged_folder_warn(status result);
