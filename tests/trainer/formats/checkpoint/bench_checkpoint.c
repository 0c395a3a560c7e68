/* Measures how long a save stops training and how fast its files are written. The state has the
 * proportions of GPT-2. This is a benchmark, not a test.
 *
 *   bench_checkpoint RUN_DIR MEGABYTES SAVES [sync]
 *
 * One third of the bytes are weights and two thirds are moments; half of the matrices are stored
 * transposed. Each line has the stall and the seconds until the checkpoint was published, including
 * fsync and SHA-256. For comparison, it has the seconds of a memcpy and a write + fsync. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "comm/comm.h"
#include "tests/check.h"
#include "trainer/formats/checkpoint/checkpoint.h"

enum { COLUMNS = 768, MATRICES = 48 };

static struct checkpoint_tensor tensors[3][MATRICES];
static char names[3][MATRICES][32];

static void make_tensors(int64_t bytes)
{
    int64_t rows = bytes / ((int64_t)sizeof(float) * COLUMNS * MATRICES * 3);
    for (int i = 0; i < 3 * MATRICES; i++) {
        struct checkpoint_tensor *t = &tensors[i / MATRICES][i % MATRICES];
        bool transposed = i % 2 == 1;
        char *name = names[i / MATRICES][i % MATRICES];
        snprintf(name, 32, "copy%d/matrix%d", i / MATRICES, i % MATRICES);
        *t = (struct checkpoint_tensor){.name = name,
                                        .dimensions = 2,
                                        .rows = rows,
                                        .columns = COLUMNS,
                                        .transposed = transposed};
        t->global_shape[0] = transposed ? COLUMNS : rows;
        t->global_shape[1] = transposed ? rows : COLUMNS;
        t->data = malloc((size_t)(rows * COLUMNS) * sizeof(float));
        CHECK(t->data != NULL);
        for (int64_t e = 0; e < rows * COLUMNS; e++) {
            ((float *)t->data)[e] = (float)(e * 2654435761u % 1000003u) * 1e-6f;
        }
    }
}

/* Returns the seconds to copy all tensors into memory that is already mapped. */
static double measure_copy(float *to)
{
    double start = clock_seconds();
    for (int i = 0; i < 3 * MATRICES; i++) {
        const struct checkpoint_tensor *t = &tensors[i / MATRICES][i % MATRICES];
        memcpy(to, t->data, (size_t)(t->rows * t->columns) * sizeof(float));
        to += t->rows * t->columns;
    }
    return clock_seconds() - start;
}

/* Returns the seconds to write the bytes to a file and sync it. */
static double measure_write(const char *folder, const char *data, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, folder, "floor"));
    double start = clock_seconds();
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < (4u << 20) ? bytes - done : 4u << 20;
        ssize_t written = write(file, data + done, piece);
        CHECK(written > 0);
        done += (size_t)written;
    }
    CHECK(fsync(file) == 0 && close(file) == 0 && unlink(path) == 0);
    return clock_seconds() - start;
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    CHECK(argc >= 4);
    CHECK_OK(comm_self_create(&world));
    make_tensors(strtoll(argv[2], NULL, 10) * 1000000);
    struct checkpoint_tensor_set sets[2] = {{"model", tensors[0], MATRICES},
                                            {"optimizer", tensors[1], 2 * MATRICES}};
    struct checkpoint_options options = {
        .run_dir = argv[1], .keep = 1, .async = argc < 5, .world = world, .replica_group = world};
    struct checkpoint *c = NULL;
    CHECK_OK(checkpoint_open(&options, &c));
    CHECK_OK(checkpoint_reserve(c, sets, 2));
    int64_t snapshot_bytes = 0;
    CHECK_OK(checkpoint_memory_bytes(sets, 2, 1, 0, &snapshot_bytes));
    size_t bytes = (size_t)snapshot_bytes;
    float *copy = malloc(bytes);
    CHECK(copy != NULL);
    memset(copy, 1, bytes); /* maps the pages before the measurement */
    for (int i = 1; i <= strtol(argv[3], NULL, 10); i++) {
        double stall, start = clock_seconds();
        int64_t published;
        struct checkpoint_state state = {.step = i};
        CHECK_OK(checkpoint_save(c, &state, sets, 2, &stall));
        CHECK_OK(checkpoint_publish(c, &published));
        double whole = clock_seconds() - start;
        double copied = measure_copy(copy);
        double written = measure_write(argv[1], (const char *)copy, bytes);
        printf("%.2f GB: stall %.3f s (memcpy %.3f), published after %.2f s = %.2f GB/s (plain "
               "write + fsync %.2f s = %.2f GB/s)\n",
               (double)bytes * 1e-9, stall, copied, whole, (double)bytes * 1e-9 / whole, written,
               (double)bytes * 1e-9 / written);
    }
    double start = clock_seconds();
    struct checkpoint_info found;
    CHECK_OK(checkpoint_find(c, NULL, &found));
    double verified = clock_seconds();
    CHECK_OK(checkpoint_load(world, found.folder, sets, 2));
    printf("verified in %.2f s, read in %.2f s\n", verified - start, clock_seconds() - verified);
    free(found.recipe_text);
    CHECK_OK(checkpoint_close(&c));
    CHECK_OK(comm_destroy(&world));
    for (int i = 0; i < 3 * MATRICES; i++) {
        free(tensors[i / MATRICES][i % MATRICES].data);
    }
    free(copy);
    return 0;
}
