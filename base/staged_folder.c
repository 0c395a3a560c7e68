#define _GNU_SOURCE
#include "base/staged_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

static const double space_margin = 1.05;

/* ---- names ---- */

void staged_folder_temporary_name(const char *name, char out[STAGED_FOLDER_NAME_BYTES])
{
    unsigned long nonce =
        (unsigned long)(clock_epoch_seconds() * 1e6) * 31ul + (unsigned long)getpid();
    snprintf(out, STAGED_FOLDER_NAME_BYTES, "tmp-%.31s.%08lx", name, nonce & 0xfffffffful);
}

/* Splits "PARENT/NAME" and fills all fields of *out. */
static status split_path(const char *output, struct staged_folder *out)
{
    char parent[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    REQUIRE(strlen(output) < sizeof name, STATUS_USAGE, "--output: the path is too long");
    snprintf(parent, sizeof parent, "%s", output);
    snprintf(name, sizeof name, "%s", output);
    const char *last = basename(name);
    REQUIRE(strlen(last) < sizeof out->name && last[0] != '.' && last[0] != '/', STATUS_USAGE,
            "--output %s: the last path component must be a name of at most %zu characters", output,
            sizeof out->name - 1);
    snprintf(out->parent, sizeof out->parent, "%s", dirname(parent));
    snprintf(out->name, sizeof out->name, "%s", last);
    staged_folder_temporary_name(out->name, out->temporary);
    return file_join(out->path, out->parent, out->temporary);
}

/* ---- create and finish ---- */

status staged_folder_check_space(const char *folder, double bytes)
{
    struct statvfs file_system;
    REQUIRE(statvfs(folder, &file_system) == 0, STATUS_WRITE,
            "cannot read the free space of %s: %s", folder, strerror(errno));
    double free_bytes = (double)file_system.f_bavail * (double)file_system.f_frsize;
    REQUIRE(free_bytes >= bytes, STATUS_WRITE,
            "%s: the output needs %.0f bytes and %.0f are free; free some space, lower "
            "checkpoint.keep of a run, or write to another folder",
            folder, bytes, free_bytes);
    return STATUS_OK;
}

status staged_folder_create(const char *output, double bytes, struct staged_folder *out)
{
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    TRY(split_path(output, out));
    TRY(file_make_folders(out->parent));
    TRY(staged_folder_check_space(out->parent, space_margin * bytes));
    return staged_folder_make(out->path);
}

status staged_folder_make(const char *path)
{
    REQUIRE(mkdir(path, 0777) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create the folder %s: %s", path, strerror(errno));
    return STATUS_OK;
}

status staged_folder_finish(const struct staged_folder *folder, status result)
{
    if (result == STATUS_OK) {
        result = staged_folder_publish(folder->parent, folder->temporary, folder->name);
    }
    if (result != STATUS_OK) {
        file_discard_tree(folder->path);
    }
    return result;
}

/* ---- publish ---- */

status staged_folder_rename(const char *parent, const char *from, const char *to)
{
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    TRY(file_join(a, parent, from));
    TRY(file_join(b, parent, to));
    REQUIRE(rename(a, b) == 0, status_from_errno(errno, STATUS_WRITE, STATUS_WRITE),
            "cannot rename %s to %s: %s", a, b, strerror(errno));
    return STATUS_OK;
}

/* Exchanges two folders atomically and renames the old one to `trash`. Uses two renames if the file
 * system does not support an exchange. */
static status exchange_folders(const char *parent, const char *temporary, const char *name,
                               const char *trash)
{
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    TRY(file_join(a, parent, temporary));
    TRY(file_join(b, parent, name));
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0) {
        return staged_folder_rename(parent, temporary, trash);
    }
    REQUIRE(errno == EINVAL || errno == ENOSYS,
            status_from_errno(errno, STATUS_WRITE, STATUS_WRITE), "cannot rename %s to %s: %s", a,
            b, strerror(errno));
    TRY(staged_folder_rename(parent, name, trash));
    return staged_folder_rename(parent, temporary, name);
}

static status remove_trash(const char *parent, const char *trash)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, parent, trash));
    return file_remove_tree(path);
}

void staged_folder_warn(status result)
{
    if (result != STATUS_OK) {
        log_warning("CKPT-CLEAN", "%s", status_pending()->text);
        status_clear();
    }
}

status staged_folder_publish(const char *parent, const char *temporary, const char *name)
{
    char path[FILE_PATH_BYTES], trash[STAGED_FOLDER_NAME_BYTES + 8];
    TRY(file_join(path, parent, temporary));
    TRY(file_sync(path));
    TRY(file_join(path, parent, name));
    if (!file_exists(path)) {
        TRY(staged_folder_rename(parent, temporary, name));
        return file_sync(parent);
    }
    snprintf(trash, sizeof trash, "trash-%s", name);
    staged_folder_warn(remove_trash(parent, trash));
    TRY(exchange_folders(parent, temporary, name, trash));
    TRY(file_sync(parent));
    staged_folder_warn(remove_trash(parent, trash));
    return STATUS_OK;
}

/* ---- remove ---- */

status staged_folder_remove(const char *parent, const char *name)
{
    char trash[STAGED_FOLDER_NAME_BYTES + 8];
    snprintf(trash, sizeof trash, "trash-%s", name);
    TRY(remove_trash(parent, trash));
    TRY(staged_folder_rename(parent, name, trash));
    TRY(file_sync(parent));
    return remove_trash(parent, trash);
}

static bool is_leftover(const char *name, const char *prefix)
{
    const char *rest = strncmp(name, "tmp-", 4) == 0     ? name + 4
                       : strncmp(name, "trash-", 6) == 0 ? name + 6
                                                         : NULL;
    return rest != NULL && strncmp(rest, prefix, strlen(prefix)) == 0;
}

status staged_folder_remove_leftovers(const char *parent, const char *prefix)
{
    DIR *dir = opendir(parent);
    REQUIRE(dir != NULL || errno == ENOENT, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot list %s: %s", parent, strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char path[FILE_PATH_BYTES];
        if (is_leftover(e->d_name, prefix)) {
            KEEP_FIRST(result, file_join(path, parent, e->d_name));
            if (result == STATUS_OK) {
                result = file_remove_tree(path);
            }
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return result;
}
