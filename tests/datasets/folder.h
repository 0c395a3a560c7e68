/* A temporary folder for a test program; it is removed when the program exits, unless the variable
 * BIREME_KEEP is 1. */
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
    const char *keep = getenv("BIREME_KEEP");
    if (keep != NULL && strcmp(keep, "1") == 0) {
        printf("kept: %s\n", folder_path);
    } else if (file_remove_tree(folder_path) != STATUS_OK) {
        status_print();
    }
}

static inline void folder_make(void)
{
    /* The default is /dev/shm, because fsync takes no time there. */
    const char *root = getenv("TMPDIR");
    root = root == NULL && access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : root;
    snprintf(folder_path, sizeof folder_path, "%s/bireme-test-XXXXXX",
             root != NULL ? root : "/tmp");
    CHECK(mkdtemp(folder_path) != NULL);
    atexit(folder_remove);
}

/* folder_join - return the path of a file in a folder; it stays valid until the program exits. */
static inline char *folder_join(const char *folder, const char *name)
{
    static struct path_node {
        struct path_node *next;
        char path[FILE_PATH_BYTES];
    } * paths;
    struct path_node *node = malloc(sizeof *node);
    CHECK(node != NULL);
    CHECK_OK(file_join(node->path, folder, name));
    node->next = paths;
    paths = node;
    return node->path;
}

/* folder_file - return the path of a file in the temporary folder. */
static inline char *folder_file(const char *name)
{
    return folder_join(folder_path, name);
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
