#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status file_join(char out[FILE_PATH_BYTES], const char *folder, const char *name)
{
    size_t length = strlen(folder);
    const char *slash = length > 0 && folder[length - 1] == '/' ? "" : "/";
    int used = snprintf(out, FILE_PATH_BYTES, "%s%s%s", folder, slash, name);
    REQUIRE(used >= 0 && used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s/%s", folder,
            name);
    return STATUS_OK;
}

bool file_is_safe_name(const char *name, int max_slashes)
{
    int slashes = 0;
    for (const char *c = name; *c != '\0'; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        bool allowed = (*c >= '0' && *c <= '9') || strchr("._-@/", *c) != NULL;
        bool at_start = c == name || c[-1] == '/';
        slashes += *c == '/';
        if (!(letter || allowed) || (at_start && (*c == '.' || *c == '/'))) {
            return false;
        }
    }
    size_t length = strlen(name);
    return length > 0 && length < FILE_NAME_BYTES && name[length - 1] != '/' &&
           slashes <= max_slashes;
}

static status read_all(int file, const char *path, char *text, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t bytes_read = read(file, text + done, bytes - done);
        if (bytes_read < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(bytes_read >= 0, STATUS_DATA, "cannot read %s: %s", path, strerror(errno));
        REQUIRE(bytes_read > 0, STATUS_DATA, "%s was truncated while it was read", path);
        done += (size_t)bytes_read;
    }
    return STATUS_OK;
}

status file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes)
{
    *out = NULL;
    int file =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not block on a pipe without a writer */
    REQUIRE(file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA), "cannot open %s: %s",
            path, strerror(errno));
    status result = STATUS_OK;
    char *text = NULL;
    struct stat about;
    REQUIRE_GOTO(result, done, fstat(file, &about) == 0, STATUS_DATA, "cannot read %s: %s", path,
                 strerror(errno));
    REQUIRE_GOTO(result, done, S_ISREG(about.st_mode), STATUS_DATA, "%s is %s", path,
                 S_ISDIR(about.st_mode) ? "a folder" : "not a regular file");
    REQUIRE_GOTO(result, done, (uint64_t)about.st_size <= limit_bytes, STATUS_DATA,
                 "%s has %" PRId64 " bytes, at most %zu are accepted", path, (int64_t)about.st_size,
                 limit_bytes);
    size_t bytes = (size_t)about.st_size;
    text = malloc(bytes + 1);
    REQUIRE_GOTO(result, done, text != NULL, STATUS_INTERNAL, "out of memory for %s: %zu bytes",
                 path, bytes);
    TRY_GOTO(result, done, read_all(file, path, text, bytes));
    text[bytes] = '\0';
    *out = text;
    text = NULL;
    if (out_bytes != NULL) {
        *out_bytes = bytes;
    }
done:
    free(text);
    close(file);
    return result;
}

static status write_all(int file, const char *path, const char *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t written = write(file, data + done, bytes - done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(written > 0, STATUS_WRITE, "cannot write %s: %s", path, strerror(errno));
        done += (size_t)written;
    }
    REQUIRE(fsync(file) == 0, STATUS_WRITE, "cannot write %s: %s", path, strerror(errno));
    return STATUS_OK;
}

static status sync_parent_folder(const char *path)
{
    char folder[FILE_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        return file_sync(".");
    }
    slash[slash == folder ? 1 : 0] = '\0';
    return file_sync(folder);
}

status file_write(const char *path, const void *data, size_t bytes)
{
    char temporary[FILE_PATH_BYTES];
    int used = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    REQUIRE(used >= 0 && used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s", path);
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int file = open(temporary, flags, 0666);
    if (file < 0 && errno == EEXIST &&
        unlink(temporary) == 0) { /* left by a killed job, or a link */
        file = open(temporary, flags, 0666);
    }
    REQUIRE(file >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", temporary, strerror(errno));
    status result = write_all(file, path, data, bytes);
    if (close(file) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", path, strerror(errno));
    }
    if (result == STATUS_OK && rename(temporary, path) != 0) {
        result = RAISE_STATUS(status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                              "cannot create %s: %s", path, strerror(errno));
    }
    if (result != STATUS_OK) {
        unlink(temporary);
        return result;
    }
    return sync_parent_folder(path);
}

status file_append(int file, const char *path, int64_t *end_bytes, const void *data, size_t bytes)
{
    ssize_t written;
    do {
        written = write(file, data, bytes);
    } while (written < 0 && errno == EINTR);
    if (written == (ssize_t)bytes) {
        *end_bytes += written;
        return STATUS_OK;
    }
    int error = written < 0 ? errno : ENOSPC;
    int truncate_error = written <= 0 ? 0 : ftruncate(file, (off_t)*end_bytes);
    RAISE(STATUS_WRITE, "cannot write %s: %s%s", path, strerror(error),
          truncate_error == 0 ? "" : " (the last record is incomplete)");
}

status file_require_own_link(const char *path)
{
    struct stat link, folder;
    char copy[FILE_PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", path);
    if (lstat(path, &link) != 0 || !S_ISLNK(link.st_mode)) {
        return STATUS_OK;
    }
    REQUIRE(stat(dirname(copy), &folder) == 0,
            status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot read the folder of %s: %s", path, strerror(errno));
    REQUIRE(link.st_uid == geteuid() && folder.st_uid == geteuid(), STATUS_PERMISSION,
            "%s is a symbolic link, and the link or its folder belongs to another user; remove the "
            "link or choose another folder",
            path);
    return STATUS_OK;
}

status file_open_output(const char *path, int flags, int *out)
{
    struct stat about;
    int required = O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    *out = open(path, (flags & ~O_TRUNC) | required, 0666);
    REQUIRE(*out >= 0 || errno != ELOOP, STATUS_CREATE,
            "%s is a symbolic link; remove it or choose another folder", path);
    REQUIRE(*out >= 0 || errno != ENXIO, STATUS_CREATE, "%s is not a regular file; remove it",
            path);
    REQUIRE(*out >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE), "cannot open %s: %s",
            path, strerror(errno));
    bool known = fstat(*out, &about) == 0;
    bool regular = known && S_ISREG(about.st_mode);
    bool truncated = !regular || (flags & O_TRUNC) == 0 || ftruncate(*out, 0) == 0;
    if (truncated && (regular || (known && S_ISCHR(about.st_mode)))) {
        return STATUS_OK;
    }
    int error = errno;
    close(*out);
    *out = -1;
    REQUIRE(!known || regular, STATUS_CREATE, "%s is not a regular file; remove it", path);
    RAISE(STATUS_WRITE, "cannot %s %s: %s", known ? "truncate" : "open", path, strerror(error));
}

/* Creates the folder `prefix`, a beginning of the path. *is_lost: another process has removed it or
 * its parent since this process found it. */
static status make_folder(const char *prefix, const char *path, bool may_be_lost, bool *is_lost)
{
    struct stat about;
    bool created = mkdir(prefix, 0777) == 0 || errno == EEXIST;
    bool is_found = created && stat(prefix, &about) == 0;
    *is_lost = may_be_lost && !is_found && errno == ENOENT;
    if (*is_lost) {
        return STATUS_OK;
    }
    REQUIRE(created, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create the folder %s: %s", prefix, strerror(errno));
    REQUIRE(is_found && S_ISDIR(about.st_mode), STATUS_CREATE,
            "cannot create the folder %s: %s is not a folder", path, prefix);
    return STATUS_OK;
}

/* Starts again if another process removes an empty folder of the path, as a `bireme prepare` that
 * fails does. */
status file_make_folders(const char *path)
{
    char prefix[FILE_PATH_BYTES];
    int used = snprintf(prefix, sizeof prefix, "%s", path), attempts_left = 100;
    REQUIRE(used > 0 && used < FILE_PATH_BYTES, STATUS_USAGE, "the path '%s' is empty or too long",
            path);
    for (char *c = prefix + 1;; c++) {
        if (*c != '/' && *c != '\0') {
            continue;
        }
        char separator = *c;
        bool is_lost = false;
        *c = '\0';
        TRY(make_folder(prefix, path, attempts_left > 0, &is_lost));
        *c = separator;
        if (is_lost) {
            attempts_left--;
            c = prefix;
        } else if (separator == '\0') {
            return STATUS_OK;
        }
    }
}

status file_sync(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0, STATUS_WRITE, "cannot open %s to sync it: %s", path, strerror(errno));
    int failed = fsync(file);
    int error = errno;
    close(file);
    REQUIRE(failed == 0, STATUS_WRITE, "cannot sync %s: %s", path, strerror(error));
    return STATUS_OK;
}

static int remove_entry(const char *path, const struct stat *about, int flag, struct FTW *walk)
{
    (void)about;
    (void)flag;
    (void)walk;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

status file_remove_tree(const char *path)
{
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    int error = nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (error < 0) {
        error = errno;
    }
    REQUIRE(error == 0 || error == ENOENT, status_from_errno(error, STATUS_WRITE, STATUS_WRITE),
            "cannot remove %s: %s", path, strerror(error));
    return STATUS_OK;
}

void file_discard_tree(const char *path)
{
    struct status_note first;
    status_take(&first);
    (void)file_remove_tree(path);
    status_clear();
    (void)status_restore(&first);
}

bool file_exists(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

bool file_is_lock_unsupported(int error)
{
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

bool file_is_at_path(int file, const char *path)
{
    struct stat opened, named;
    return fstat(file, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

status file_require_present(int file, const char *path)
{
    REQUIRE(file_is_at_path(file, path), STATUS_WRITE,
            "%s was removed or replaced during the run; start again with a run_dir that nothing "
            "else changes",
            path);
    return STATUS_OK;
}

int64_t file_size(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) ? (int64_t)about.st_size : -1;
}
