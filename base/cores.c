#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cores.h"

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

/* Returns the quota of one control group in cores; 0: none. Version 2 uses cpu.max, version 1 two
 * files. */
static int read_group_quota(const char *folder)
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
    return limited ? (int)((quota + period - 1) / period) : 0;
}

/* Returns the smallest quota of a group and of all groups above it, up to `top` characters of the
 * path. In a container the groups above its mount do not exist and are skipped. */
static int find_smallest_quota(char *folder, size_t top)
{
    int least = 0;
    for (;;) {
        int quota = read_group_quota(folder);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash < folder + top) {
            return least;
        }
        *slash = '\0';
    }
}

/* Returns whether a group of /proc/self/cgroup holds the CPU quota, and sets *mount to its mount
 * point. */
static bool has_cpu_controller(const char *controllers, const char **mount)
{
    *mount = controllers[0] == '\0' ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    char list[LINE_BYTES + 2];
    snprintf(list, sizeof list, ",%s,", controllers);
    return controllers[0] == '\0' || strstr(list, ",cpu,") != NULL;
}

int cores_quota(const char *root)
{
    char path[FILE_PATH_BYTES], line[LINE_BYTES];
    int least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL) { /* number:controllers:/group */
        char *controllers = strchr(line, ':'), *group;
        const char *mount;
        line[strcspn(line, "\n")] = '\0';
        if (controllers == NULL || (group = strchr(controllers + 1, ':')) == NULL) {
            continue;
        }
        *group++ = '\0';
        if (!has_cpu_controller(controllers + 1, &mount)) {
            continue;
        }
        int top = snprintf(path, sizeof path, "%s%s", root, mount);
        snprintf(path + top, sizeof path - (size_t)top, "%s", strcmp(group, "/") == 0 ? "" : group);
        int quota = find_smallest_quota(path, (size_t)top);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
    }
    fclose(file);
    return least;
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
