/* Whole files and folders: read with a size limit, write so that a crash leaves the old or the new
 * content and never a mixture, make folders. Errors name the path and the reason. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FILE_PATH_BYTES 4096

/* file_join - out = folder "/" name.  Errors: STATUS_USAGE if the path is too long. */
status file_join(char out[FILE_PATH_BYTES], const char *folder, const char *name);

/* file_read - the whole file, ended by a NUL that is not counted.
 *
 * Memory    *out is the caller's, for free()
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if it is larger than limit_bytes, is no
 *           regular file or cannot be read */
status file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);

/* file_write - replace or create the file: temporary name, write, fsync, rename, fsync the folder.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; the old file is untouched */
status file_write(const char *path, const void *data, size_t bytes);

/* file_append - put all of data at the end of an open file, or nothing: what was written of it is taken
 * back where it does not fit.
 *
 * Units     *end_bytes: the file's length, which grows by bytes
 * Errors    STATUS_WRITE, naming path */
status file_append(int file, const char *path, int64_t *end_bytes, const void *data, size_t bytes);

/* file_make_folders - like mkdir -p.  Errors: STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status file_make_folders(const char *path);

/* file_sync - fsync a file or a folder.  Errors: STATUS_WRITE */
status file_sync(const char *path);

/* file_remove_tree - like rm -rf; a missing path is fine.  Errors: STATUS_WRITE, STATUS_PERMISSION */
status file_remove_tree(const char *path);

bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* file_size - bytes; -1 where there is no such regular file. */
int64_t file_size(const char *path);
