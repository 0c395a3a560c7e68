#define _GNU_SOURCE
#include "trainer/checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "trainer/checkpoint/checkpoint_impl.h"

void checkpoint_folder_name(int64_t step, char out[CHECKPOINT_NAME_BYTES])
{
    snprintf(out, CHECKPOINT_NAME_BYTES, "step-%08" PRId64, step);
}

/* The step of a published folder's name; -1 for any other name. */
static int64_t step_of(const char *name)
{
    char again[CHECKPOINT_NAME_BYTES];
    int64_t step = -1;
    if (sscanf(name, "step-%18" SCNd64, &step) != 1 || step < 0) {
        return -1;
    }
    checkpoint_folder_name(step, again);
    return strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static status open_folder(const char *folder, DIR **out)
{
    *out = opendir(folder);
    REQUIRE(*out != NULL || errno == ENOENT, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot list %s: %s", folder, strerror(errno));
    return STATUS_OK;
}

status checkpoint_folder_list(const char *folder, int64_t **steps, int *count)
{
    *steps = NULL;
    *count = 0;
    DIR *dir = NULL;
    TRY(open_folder(folder, &dir));
    status result = STATUS_OK;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int64_t step = step_of(e->d_name);
        if (step < 0) {
            continue;
        }
        int64_t *more = realloc(*steps, (size_t)(*count + 1) * sizeof **steps);
        REQUIRE_GOTO(result, done, more != NULL, STATUS_INTERNAL, "out of memory listing %s",
                     folder);
        *steps = more;
        (*steps)[(*count)++] = step;
    }
    if (*count > 1) {
        qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    }
done:
    if (dir != NULL) {
        closedir(dir);
    }
    if (result != STATUS_OK) {
        free(*steps);
        *steps = NULL;
        *count = 0;
    }
    return result;
}

static bool is_leftover(const char *name, const char *prefix)
{
    const char *rest = strncmp(name, "tmp-", 4) == 0     ? name + 4
                       : strncmp(name, "trash-", 6) == 0 ? name + 6
                                                         : NULL;
    return rest != NULL && strncmp(rest, prefix, strlen(prefix)) == 0;
}

status checkpoint_folder_clean(const char *folder, const char *prefix)
{
    DIR *dir = NULL;
    TRY(open_folder(folder, &dir));
    status result = STATUS_OK;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char path[FILE_PATH_BYTES];
        if (is_leftover(e->d_name, prefix)) {
            KEEP_FIRST(result, file_join(path, folder, e->d_name));
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

status checkpoint_folder_space(const char *folder, double bytes)
{
    struct statvfs about;
    REQUIRE(statvfs(folder, &about) == 0, STATUS_WRITE, "cannot ask %s for its free space: %s",
            folder, strerror(errno));
    double free_bytes = (double)about.f_bavail * (double)about.f_frsize;
    REQUIRE(free_bytes >= bytes, STATUS_WRITE,
            "%s: a checkpoint needs %.0f bytes and %.0f are free; make room, lower a run's "
            "checkpoint.keep, or write to another place",
            folder, bytes, free_bytes);
    return STATUS_OK;
}

static status rename_in(const char *parent, const char *from, const char *to)
{
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    TRY(file_join(a, parent, from));
    TRY(file_join(b, parent, to));
    REQUIRE(rename(a, b) == 0, status_from_errno(errno, STATUS_WRITE, STATUS_WRITE),
            "cannot rename %s to %s: %s", a, b, strerror(errno));
    return STATUS_OK;
}

/* Two names change places in one instant; where the file system cannot, in two steps. */
static status exchange(const char *parent, const char *temporary, const char *name,
                       const char *trash)
{
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    TRY(file_join(a, parent, temporary));
    TRY(file_join(b, parent, name));
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0) {
        return rename_in(parent, temporary, trash);
    }
    REQUIRE(errno == EINVAL || errno == ENOSYS,
            status_from_errno(errno, STATUS_WRITE, STATUS_WRITE), "cannot rename %s to %s: %s", a,
            b, strerror(errno));
    TRY(rename_in(parent, name, trash));
    return rename_in(parent, temporary, name);
}

static status remove_trash(const char *parent, const char *trash)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, parent, trash));
    return file_remove_tree(path);
}

/* What could not be removed is told and left: it costs space, never a checkpoint. */
static void warn_instead(status result)
{
    if (result != STATUS_OK) {
        log_warning("CKPT-CLEAN", "%s", status_pending()->text);
        status_clear();
    }
}

status checkpoint_folder_publish(const char *parent, const char *temporary, const char *name)
{
    char path[FILE_PATH_BYTES], trash[CHECKPOINT_NAME_BYTES + 8];
    TRY(file_join(path, parent, temporary));
    TRY(file_sync(path));
    TRY(file_join(path, parent, name));
    if (!file_exists(path)) {
        TRY(rename_in(parent, temporary, name));
        return file_sync(parent);
    }
    snprintf(trash, sizeof trash, "trash-%s", name);
    warn_instead(remove_trash(parent, trash));
    TRY(exchange(parent, temporary, name, trash));
    TRY(file_sync(parent));
    warn_instead(remove_trash(parent, trash));
    return STATUS_OK;
}

static status remove_step(const char *folder, int64_t step)
{
    char name[CHECKPOINT_NAME_BYTES], trash[CHECKPOINT_NAME_BYTES + 8];
    checkpoint_folder_name(step, name);
    snprintf(trash, sizeof trash, "trash-%s", name);
    TRY(remove_trash(folder, trash));
    TRY(rename_in(folder, name, trash));
    TRY(file_sync(folder));
    return remove_trash(folder, trash);
}

static bool looks_whole(const char *folder, int64_t step, const int64_t *bad, int bad_count)
{
    for (int i = 0; i < bad_count; i++) {
        if (bad[i] == step) {
            return false;
        }
    }
    char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
    checkpoint_folder_name(step, name);
    if (file_join(path, folder, name) != STATUS_OK) {
        status_clear();
        return false;
    }
    return checkpoint_has_all_files(path);
}

void checkpoint_folder_retain(const char *folder, int64_t newest, int64_t keep, int64_t besides,
                              const int64_t *bad, int bad_count)
{
    int64_t *steps = NULL;
    int count = 0;
    warn_instead(checkpoint_folder_list(folder, &steps, &count));
    int64_t kept = 0;
    for (int i = 0; i < count; i++) {
        if (steps[i] == newest) {
            kept++;
        } else if (looks_whole(folder, steps[i], bad, bad_count)) {
            if (kept < keep) {
                kept++;
            } else if (steps[i] != besides) {
                warn_instead(remove_step(folder, steps[i]));
            }
        } else if (steps[i] < newest) {
            warn_instead(remove_step(folder, steps[i]));
        }
    }
    free(steps);
}

/* The first old-N that is not there yet. */
static status make_aside(const char *folder, char where[CHECKPOINT_NAME_BYTES])
{
    for (int n = 1; n < 100000; n++) {
        char path[FILE_PATH_BYTES];
        snprintf(where, CHECKPOINT_NAME_BYTES, "old-%d", n);
        TRY(file_join(path, folder, where));
        if (mkdir(path, 0777) == 0) {
            return STATUS_OK;
        }
        REQUIRE(errno == EEXIST, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                "cannot create the folder %s: %s", path, strerror(errno));
    }
    RAISE(STATUS_CREATE, "%s holds too many old-N folders; remove some", folder);
}

static status move_newer(const char *folder, const int64_t *steps, int count, int64_t step,
                         int *moved, char where[CHECKPOINT_NAME_BYTES])
{
    for (int i = 0; i < count && steps[i] > step; i++) {
        char name[CHECKPOINT_NAME_BYTES], to[2 * CHECKPOINT_NAME_BYTES + 1];
        if (*moved == 0) {
            TRY(make_aside(folder, where));
        }
        checkpoint_folder_name(steps[i], name);
        snprintf(to, sizeof to, "%s/%s", where, name);
        TRY(rename_in(folder, name, to));
        (*moved)++;
    }
    return *moved > 0 ? file_sync(folder) : STATUS_OK;
}

status checkpoint_folder_set_aside(const char *folder, int64_t step, int *moved,
                                   char where[CHECKPOINT_NAME_BYTES])
{
    int64_t *steps = NULL;
    int count = 0;
    *moved = 0;
    TRY(checkpoint_folder_list(folder, &steps, &count));
    status result = move_newer(folder, steps, count, step, moved, where);
    free(steps);
    return result;
}
