#include "trainer/formats/checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/verify.h"

/* ---- names ---- */

void checkpoint_directory_step_name(int64_t step, char out[CHECKPOINT_NAME_BYTES])
{
    snprintf(out, CHECKPOINT_NAME_BYTES, "step-%08" PRId64, step);
}

/* Returns the step of a published folder's name, or -1 for any other name. */
static int64_t parse_step(const char *name)
{
    char formatted[CHECKPOINT_NAME_BYTES];
    int64_t step = -1;
    if (sscanf(name, "step-%18" SCNd64, &step) != 1 || step < 0) {
        return -1;
    }
    checkpoint_directory_step_name(step, formatted);
    return strcmp(name, formatted) == 0 ? step : -1;
}

/* ---- list ---- */

static int compare_newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

status checkpoint_directory_list(const char *folder, int64_t **steps, int *count)
{
    *steps = NULL;
    *count = 0;
    DIR *dir = opendir(folder);
    REQUIRE(dir != NULL || errno == ENOENT, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot list %s: %s", folder, strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int64_t step = parse_step(e->d_name);
        if (step < 0) {
            continue;
        }
        TRY_GOTO(result, done, GROW(*steps, *count + 1, "a list of checkpoints"));
        (*steps)[(*count)++] = step;
    }
    if (*count > 1) {
        qsort(*steps, (size_t)*count, sizeof **steps, compare_newest_first);
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

/* ---- retain ---- */

static status remove_step(const char *folder, int64_t step)
{
    char name[CHECKPOINT_NAME_BYTES];
    checkpoint_directory_step_name(step, name);
    return staged_folder_remove(folder, name);
}

static bool is_step_valid(const char *folder, int64_t step, const int64_t *bad, int bad_count)
{
    for (int i = 0; i < bad_count; i++) {
        if (bad[i] == step) {
            return false;
        }
    }
    char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
    checkpoint_directory_step_name(step, name);
    if (file_join(path, folder, name) != STATUS_OK) {
        status_clear();
        return false;
    }
    return checkpoint_has_all_files(path);
}

void checkpoint_directory_retain(const char *folder, int64_t newest, int64_t keep, int64_t pinned,
                                 const int64_t *bad, int bad_count)
{
    int64_t *steps = NULL;
    int count = 0;
    staged_folder_warn(checkpoint_directory_list(folder, &steps, &count));
    int64_t kept_count = 0;
    for (int i = 0; i < count; i++) {
        if (steps[i] == newest) {
            kept_count++;
        } else if (is_step_valid(folder, steps[i], bad, bad_count)) {
            if (kept_count < keep) {
                kept_count++;
            } else if (steps[i] != pinned) {
                staged_folder_warn(remove_step(folder, steps[i]));
            }
        } else if (steps[i] < newest) {
            staged_folder_warn(remove_step(folder, steps[i]));
        }
    }
    free(steps);
}

/* ---- archive ---- */

/* Creates the first folder old-N that does not exist. */
static status create_archive(const char *folder, char archive[CHECKPOINT_NAME_BYTES])
{
    for (int n = 1; n < 100000; n++) {
        char path[FILE_PATH_BYTES];
        snprintf(archive, CHECKPOINT_NAME_BYTES, "old-%d", n);
        TRY(file_join(path, folder, archive));
        if (mkdir(path, 0777) == 0) {
            return STATUS_OK;
        }
        REQUIRE(errno == EEXIST, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                "cannot create the folder %s: %s", path, strerror(errno));
    }
    RAISE(STATUS_CREATE, "%s contains too many old-N folders; remove some of them", folder);
}

static status move_newer(const char *folder, const int64_t *steps, int count, int64_t step,
                         int *moved, char archive[CHECKPOINT_NAME_BYTES])
{
    for (int i = 0; i < count && steps[i] > step; i++) {
        char name[CHECKPOINT_NAME_BYTES], to[2 * CHECKPOINT_NAME_BYTES + 1];
        if (*moved == 0) {
            TRY(create_archive(folder, archive));
        }
        checkpoint_directory_step_name(steps[i], name);
        snprintf(to, sizeof to, "%s/%s", archive, name);
        TRY(staged_folder_rename(folder, name, to));
        (*moved)++;
    }
    return *moved > 0 ? file_sync(folder) : STATUS_OK;
}

status checkpoint_directory_archive_newer(const char *folder, int64_t step, int *moved,
                                          char archive[CHECKPOINT_NAME_BYTES])
{
    int64_t *steps = NULL;
    int count = 0;
    *moved = 0;
    TRY(checkpoint_directory_list(folder, &steps, &count));
    status result = move_newer(folder, steps, count, step, moved, archive);
    free(steps);
    return result;
}
