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
    const char *root = getenv("TMPDIR");
    snprintf(folder_path, sizeof folder_path, "%s/bireme-test-XXXXXX",
             root != NULL ? root : "/tmp");
    CHECK(mkdtemp(folder_path) != NULL);
    atexit(folder_remove);
}

/* folder_file - a path in the folder; one of eight buffers in turn. */
static inline char *folder_file(const char *name)
{
    static char paths[8][FILE_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 8];
    CHECK_OK(file_join(path, folder_path, name));
    return path;
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
