/* Whole files and folders: read a file with a size limit, replace a file atomically, create and
 * remove folders. After a crash a replaced file has either its old or its new content. Error
 * messages name the path and the reason. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FILE_PATH_BYTES 4096
#define FILE_NAME_BYTES 256 /* of a name from a foreign file */

/* file_join - write the path folder "/" name to out.
 *
 * Errors    STATUS_USAGE if the path is too long */
status file_join(char out[FILE_PATH_BYTES], const char *folder, const char *name);

/* file_is_safe_name - return whether a name from a foreign file can be the name of a file or of an
 * HDF5 dataset inside its folder. A safe name has at most 255 bytes. Its characters are letters,
 * digits, "._-@" and at most max_slashes '/'. No component is empty or begins with a dot. Check
 * every name from a manifest or an index of weights with this function before use. */
bool file_is_safe_name(const char *name, int max_slashes);

/* file_read - read a whole file and append a NUL. *out_bytes does not include the NUL.
 *
 * Memory    the caller frees *out with free(); out_bytes may be NULL
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if the file is larger than limit_bytes,
 *           is not a regular file or cannot be read */
status file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);

/* file_write - create or replace a file: write a temporary file, fsync, rename, fsync the folder.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; the old file is then unchanged */
status file_write(const char *path, const void *data, size_t bytes);

/* file_append - append all of data to an open file, or nothing. A partial write is truncated again.
 *
 * Units     *end_bytes: length of the file; increased by bytes on success
 * Errors    STATUS_WRITE, naming path */
status file_append(int file, const char *path, int64_t *end_bytes, const void *data, size_t bytes);

/* file_require_own_link - check a folder in which files will be written. If its path is a symbolic
 * link, the link and the folder that contains it must belong to the effective user. Otherwise
 * another user selects where the files are written. Any other path passes.
 *
 * Errors    STATUS_PERMISSION naming the path */
status file_require_own_link(const char *path);

/* file_open_output - open a file for writing and create it if it is missing. `flags` are further
 * flags of open(2), such as O_APPEND. The folder can come from a foreign source, so symbolic links
 * and pipes are refused.
 *
 * Memory    the caller closes *out
 * Errors    STATUS_CREATE, STATUS_PERMISSION; STATUS_WRITE if the file cannot be truncated */
status file_open_output(const char *path, int flags, int *out);

/* file_make_folders - create a folder and its parents, as mkdir -p does.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status file_make_folders(const char *path);

/* file_sync - fsync a file or a folder.
 *
 * Errors    STATUS_WRITE */
status file_sync(const char *path);

/* file_remove_tree - remove a folder and its content, as rm -rf does. A missing path is no error.
 *
 * Errors    STATUS_WRITE, STATUS_PERMISSION */
status file_remove_tree(const char *path);

/* file_discard_tree - remove a folder as in file_remove_tree, after an error or at the end of a
 * command. The pending note of this thread remains, and an error of the removal is ignored. */
void file_discard_tree(const char *path);

/* file_exists - return whether the path exists. A symbolic link to a missing file exists. */
bool file_exists(const char *path);

/* file_is_folder - return whether the path is a folder, or a symbolic link to one. */
bool file_is_folder(const char *path);

/* file_is_lock_unsupported - return whether this errno of flock means that the file system has no
 * locks: ENOLCK (NFS without a lock service), EOPNOTSUPP, ENOSYS or EINVAL. */
bool file_is_lock_unsupported(int error);

/* file_is_at_path - return whether the open file or folder still has this path, and was not
 * removed, renamed or replaced. */
bool file_is_at_path(int file, const char *path);

/* file_require_present - check that the open file still has this path, and was not removed, renamed
 * or replaced.
 *
 * Errors    STATUS_WRITE */
status file_require_present(int file, const char *path);

/* file_size - return the size in bytes; -1 if the path is not a regular file. */
int64_t file_size(const char *path);
