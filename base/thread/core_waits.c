#include "base/thread/core_waits.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

static bool read_thread(const char *tasks, const char *name, struct core_waits_thread *out)
{
    char path[FILE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s/schedstat", tasks, name);
    FILE *file = length < (int)sizeof path ? fopen(path, "re") : NULL;
    if (file == NULL) {
        return false;
    }
    out->id = (int)strtol(name, NULL, 10);
    int found = fscanf(file, "%" SCNu64 " %" SCNu64, &out->run_nanoseconds, &out->wait_nanoseconds);
    fclose(file);
    return found == 2;
}

static void read_threads(struct core_waits *w, const char *root)
{
    char tasks[FILE_PATH_BYTES];
    w->count = 0;
    int length = snprintf(tasks, sizeof tasks, "%s/proc/self/task", root);
    DIR *folder = length < (int)sizeof tasks ? opendir(tasks) : NULL;
    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry;
         w->count < CORE_WAITS_THREADS && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            w->count += read_thread(tasks, entry->d_name, &w->threads[w->count]);
        }
    }
    closedir(folder);
}

/* Subtracts the earlier counters of each thread; a new thread began at 0. */
static void subtract_threads(struct core_waits *now, const struct core_waits *before)
{
    for (int i = 0; i < now->count; i++) {
        struct core_waits_thread *t = &now->threads[i];
        for (int j = 0; j < before->count; j++) {
            const struct core_waits_thread *old = &before->threads[j];
            /* A smaller counter belongs to a new thread with the id of an old one. */
            if (old->id == t->id && old->run_nanoseconds <= t->run_nanoseconds &&
                old->wait_nanoseconds <= t->wait_nanoseconds) {
                t->run_nanoseconds -= old->run_nanoseconds;
                t->wait_nanoseconds -= old->wait_nanoseconds;
            }
        }
    }
}

static int compare_busy_first(const void *a, const void *b)
{
    const struct core_waits_thread *x = a, *y = b;
    uint64_t busy_x = x->run_nanoseconds + x->wait_nanoseconds;
    uint64_t busy_y = y->run_nanoseconds + y->wait_nanoseconds;
    return (busy_x < busy_y) - (busy_x > busy_y);
}

double core_waits_measure(struct core_waits *w, const char *root, int threads)
{
    struct core_waits passed;
    double others_run = 0, largest = 0;
    read_threads(&passed, root);
    struct core_waits now = passed;
    subtract_threads(&passed, w);
    *w = now;
    qsort(passed.threads, (size_t)passed.count, sizeof passed.threads[0], compare_busy_first);
    for (int i = threads; i < passed.count; i++) {
        others_run += (double)passed.threads[i].run_nanoseconds;
    }
    for (int i = 0; i < threads && i < passed.count; i++) {
        const struct core_waits_thread *t = &passed.threads[i];
        double run = (double)t->run_nanoseconds, wait = (double)t->wait_nanoseconds;
        double share = (wait - others_run) / (run + wait > 0 ? run + wait : 1);
        largest = share > largest ? share : largest;
    }
    return largest;
}
