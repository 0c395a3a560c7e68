#define _GNU_SOURCE /* sched_getaffinity */
#include "base/thread/cores.h"
#include "base/number.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { LINE_BYTES = 4096 };

/* Reads up to two numbers from the start of a kernel file and returns how many it found. "max" is
 * not a number. */
static int read_numbers(const char *folder, const char *name, int64_t *first, int64_t *second)
{
    char path[FILE_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    int found = fscanf(file, "%" SCNd64 " %" SCNd64, first, second);
    fclose(file);
    return found;
}

/* Returns the limit of one control group; 0: none. */
typedef int64_t (*read_limit)(const char *folder);

/* Returns the quota of one control group in cores; 0: none. Version 2 uses cpu.max, version 1 two
 * files. */
static int64_t read_group_quota(const char *folder)
{
    int64_t quota = -1, period = 0, unused;
    if (read_numbers(folder, "cpu.max", &quota, &period) != 2) {
        quota = -1;
        if (read_numbers(folder, "cpu.cfs_quota_us", &quota, &unused) != 1 ||
            read_numbers(folder, "cpu.cfs_period_us", &period, &unused) != 1) {
            return 0;
        }
    }
    bool limited = quota > 0 && period > 0 && quota / period < CPU_SETSIZE;
    return limited ? number_divide_up(quota, period) : 0;
}

static int64_t read_group_memory(const char *folder)
{
    int64_t bytes = 0, unused;
    if (read_numbers(folder, "memory.max", &bytes, &unused) != 1 &&
        read_numbers(folder, "memory.limit_in_bytes", &bytes, &unused) != 1) {
        return 0;
    }
    return number_max(bytes, 0);
}

/* Returns the smallest limit of a group and of all groups above it, up to `top` characters of the
 * path. In a container the groups above its mount do not exist and are skipped. */
static int64_t find_smallest(char *folder, size_t top, read_limit read)
{
    int64_t least = 0;
    for (;;) {
        int64_t limit = read(folder);
        least = limit > 0 && (least == 0 || limit < least) ? limit : least;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash < folder + top) {
            return least;
        }
        *slash = '\0';
    }
}

/* Returns whether a group of /proc/self/cgroup has the controller: version 2 lists none. */
static bool has_controller(const char *controllers, const char *controller)
{
    char list[LINE_BYTES + 2], name[32];
    snprintf(list, sizeof list, ",%s,", controllers);
    snprintf(name, sizeof name, ",%s,", controller);
    return controllers[0] == '\0' || strstr(list, name) != NULL;
}

/* Returns the smallest limit of the process's groups with this controller. */
static int64_t find_limit(const char *root, const char *controller, read_limit read)
{
    char path[FILE_PATH_BYTES], line[LINE_BYTES];
    int64_t least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL) { /* number:controllers:/group */
        char *controllers = strchr(line, ':'), *group;
        line[strcspn(line, "\n")] = '\0';
        if (controllers == NULL || (group = strchr(controllers + 1, ':')) == NULL) {
            continue;
        }
        *group++ = '\0';
        if (!has_controller(controllers + 1, controller)) {
            continue;
        }
        bool version_2 = controllers[1] == '\0';
        int top = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, version_2 ? "" : "/",
                           version_2 ? "" : controller);
        snprintf(path + top, sizeof path - (size_t)top, "%s", strcmp(group, "/") == 0 ? "" : group);
        int64_t limit = find_smallest(path, (size_t)top, read);
        least = limit > 0 && (least == 0 || limit < least) ? limit : least;
    }
    fclose(file);
    return least;
}

int cores_quota(const char *root)
{
    return (int)find_limit(root, "cpu", read_group_quota);
}

int64_t cores_memory_bytes(const char *root)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t limit = find_limit(root, "memory", read_group_memory);
    return limit > 0 && limit < bytes ? limit : bytes;
}

int cores_allowed(void)
{
    cpu_set_t set;
    bool has_mask = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0;
    long cores = has_mask ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cores_quota("");
    cores = quota > 0 && quota < cores ? quota : cores;
    return cores > 0 ? (int)cores : 1;
}
