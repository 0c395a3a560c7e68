#define _GNU_SOURCE
#include "comm/shared/space.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/shared/shared.h"
#include "comm/watchdog/heartbeat.h"

#define PAGE_BYTES INT64_C(4096)
#define SEGMENT_OVERHEAD_BYTES INT64_C(65536) /* Open MPI's own data, per rank */

static int64_t counted_bytes;

int64_t shared_space_window_bytes(int host_ranks, int64_t bytes)
{
    return host_ranks * (bytes + PAGE_BYTES + SEGMENT_OVERHEAD_BYTES);
}

int64_t shared_space_groups_bytes(int ranks, int tensor)
{
    const int sizes[] = {ranks, tensor, ranks / tensor};
    int64_t bytes = 0;
    if (ranks > 1) {
        bytes = shared_space_window_bytes(ranks, (int64_t)heartbeat_bytes(ranks));
    }
    for (int i = 0; i < 3; i++) {
        int64_t control = (int64_t)shared_control_bytes(sizes[i]);
        bytes += sizes[i] > 1 ? shared_space_window_bytes(ranks, control) : 0;
    }
    return bytes;
}

void shared_space_count(int64_t needed_bytes)
{
    counted_bytes += needed_bytes;
}

int64_t shared_space_counted_bytes(void)
{
    return counted_bytes;
}

bool shared_space_has_room(int64_t needed_bytes, int64_t *free_bytes)
{
    struct statvfs file_system;
    *free_bytes = -1;
    if (access(SHARED_SPACE_FOLDER, W_OK) != 0 || statvfs(SHARED_SPACE_FOLDER, &file_system) != 0) {
        return true;
    }
    *free_bytes = (int64_t)file_system.f_bavail * (int64_t)file_system.f_frsize;
    return needed_bytes <= *free_bytes;
}

/* ---- files of ended jobs ---- */

/* scripts/launch_mpirun.sh creates a folder with such a name for the files of each job. */
#define LAUNCH_FOLDER "launch_mpirun."

struct file_list {
    struct segment {
        char path[sizeof SHARED_SPACE_FOLDER + 2 * NAME_MAX + 2];
        int64_t bytes;
        bool mapped;
    } * segments;
    int count;
};

/* Returns whether Open MPI gives its files such names. */
static bool is_segment_name(const char *name)
{
    return strncmp(name, "vader_segment.", 14) == 0 || strncmp(name, "sm_segment.", 11) == 0 ||
           strncmp(name, "osc_sm.", 7) == 0 || strncmp(name, "osc_rdma.", 9) == 0;
}

static void list_segments(struct file_list *list, const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        struct segment s = {.mapped = false};
        struct stat about;
        snprintf(s.path, sizeof s.path, "%.*s/%s", (int)(sizeof SHARED_SPACE_FOLDER + NAME_MAX),
                 path, entry->d_name);
        if (strncmp(entry->d_name, LAUNCH_FOLDER, strlen(LAUNCH_FOLDER)) == 0 &&
            strcmp(path, SHARED_SPACE_FOLDER) == 0) {
            list_segments(list, s.path);
        }
        if (!is_segment_name(entry->d_name) || lstat(s.path, &about) != 0) {
            continue;
        }
        s.bytes = (int64_t)about.st_blocks * 512;
        struct segment *grown =
            realloc(list->segments, (size_t)(list->count + 1) * sizeof *list->segments);
        if (grown != NULL) {
            list->segments = grown;
            list->segments[list->count++] = s;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

static void mark_mapped(struct file_list *list, const char *process)
{
    char path[64], *line = NULL;
    size_t capacity = 0;
    snprintf(path, sizeof path, "/proc/%.20s/maps", process);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && getline(&line, &capacity, maps) > 0) {
        for (int i = 0; strstr(line, SHARED_SPACE_FOLDER) != NULL && i < list->count; i++) {
            list->segments[i].mapped |= strstr(line, list->segments[i].path) != NULL;
        }
    }
    free(line);
    if (maps != NULL) {
        fclose(maps);
    }
}

void shared_space_describe_unused(char *text, size_t bytes)
{
    struct file_list list = {0};
    int64_t total = 0;
    int count = 0, first = -1;
    text[0] = '\0';
    list_segments(&list, SHARED_SPACE_FOLDER);
    DIR *processes = list.count > 0 ? opendir("/proc") : NULL;
    for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            mark_mapped(&list, entry->d_name);
        }
    }
    if (processes != NULL) {
        closedir(processes);
    }
    for (int i = 0; i < list.count; i++) {
        if (!list.segments[i].mapped) {
            first = first < 0 ? i : first;
            total += list.segments[i].bytes;
            count++;
        }
    }
    if (count > 0) {
        snprintf(text, bytes, "; files of ended MPI jobs use %" PRId64 " bytes of it: %s%s", total,
                 list.segments[first].path, count > 1 ? " and others" : "");
    }
    free(list.segments);
}
