/* A folder of its own for each test program, removed when the program ends. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"

static char folder_path[256];

static inline void folder_remove(void)
{
    if (file_remove_tree(folder_path) != STATUS_OK) {
        status_print();
    }
}

static inline void folder_make(void)
{
    const char *root = getenv("TMPDIR"); /* shards are synced: in memory that takes no time */
    root = root == NULL && access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : root;
    snprintf(folder_path, sizeof folder_path, "%s/bireme-test-XXXXXX",
             root != NULL ? root : "/tmp");
    CHECK(mkdtemp(folder_path) != NULL);
    atexit(folder_remove);
}

/* folder_file - a path in the folder; it stays valid. */
static inline char *folder_file(const char *name)
{
    static struct kept {
        struct kept *next;
        char path[FILE_PATH_BYTES];
    } * all;
    struct kept *one = malloc(sizeof *one);
    CHECK(one != NULL);
    CHECK_OK(file_join(one->path, folder_path, name));
    one->next = all;
    all = one;
    return one->path;
}

static inline void folder_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(data, 1, bytes, file) == bytes);
    CHECK(fclose(file) == 0);
}

static inline char *folder_read(const char *path, size_t *bytes)
{
    char *data = NULL;
    CHECK_OK(file_read(path, (size_t)1 << 30, &data, bytes));
    return data;
}
