#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "datasets/shard/h5file.h"

enum { PATHS = 8 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* ---- memory ---- */

static _Atomic int64_t live_bytes; /* allocated and not freed, by all threads */
static _Atomic int64_t live_limit = INT64_MAX;

void fuzz_require(bool condition, const char *rule)
{
    if (!condition) {
        atomic_store(&live_limit, INT64_MAX);
        fprintf(stderr, "fuzz: broken rule: %s\n", rule);
        abort();
    }
}

static void count_allocation(const volatile void *memory, size_t bytes)
{
    (void)memory;
    int64_t live = atomic_fetch_add(&live_bytes, (int64_t)bytes) + (int64_t)bytes;
    if (live > atomic_load(&live_limit)) {
        fprintf(stderr, "fuzz: %lld bytes are allocated, the last %zu in one block\n",
                (long long)live, bytes);
        fuzz_require(false, "memory is bounded by the size of the input (fuzz_limits)");
    }
}

static void count_release(const volatile void *memory)
{
    if (memory != NULL) {
        atomic_fetch_sub(&live_bytes,
                         (int64_t)__sanitizer_get_allocated_size((const void *)memory));
    }
}

/* ---- files ---- */

static char folder[FILE_PATH_BYTES];

static void remove_folder(void)
{
    if (folder[0] != '\0') {
        (void)file_remove_tree(folder);
    }
}

const char *fuzz_folder(void)
{
    return folder;
}

const char *fuzz_write_file(const char *name, const void *data, size_t bytes)
{
    static char paths[PATHS][FILE_PATH_BYTES];
    static int next;
    char *path = paths[next++ % PATHS];
    fuzz_require(file_join(path, folder, name) == STATUS_OK, "the path of a test file is short");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_require(file >= 0, "a test file can be created");
    fuzz_require(write(file, data, bytes) == (ssize_t)bytes, "a test file can be written");
    close(file);
    return path;
}

struct fuzz_part fuzz_next_part(const uint8_t **data, size_t *bytes)
{
    static const char separator[] = "\n@@@@\n";
    enum { SEPARATOR_BYTES = sizeof separator - 1 };
    struct fuzz_part part = {*data, *bytes};
    for (size_t i = 0; i + SEPARATOR_BYTES <= *bytes; i++) {
        if (memcmp(*data + i, separator, SEPARATOR_BYTES) == 0) {
            part.bytes = i;
            *data += i + SEPARATOR_BYTES;
            *bytes -= i + SEPARATOR_BYTES;
            return part;
        }
    }
    *data += *bytes;
    *bytes = 0;
    return part;
}

/* ---- libFuzzer ---- */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/bireme-fuzz-XXXXXX", parent != NULL ? parent : "/dev/shm");
    fuzz_require(mkdtemp(folder) != NULL, "the folder for test files can be created");
    atexit(remove_folder);
    log_quiet(true);
    h5file_init();
    /* Each open file has a table of 512 KiB. Without a limit on its free lists, HDF5 reuses the
     * table for the next file. With a limit, HDF5 frees the table, and the system must supply
     * zeroed pages for each input. */
    H5set_free_list_limits(-1, -1, -1, -1, -1, -1);
    fuzz_require(__sanitizer_install_malloc_and_free_hooks(count_allocation, count_release) > 0,
                 "allocations can be counted");
    return 0;
}

static void check_message(status result)
{
    char line[2 * STATUS_TEXT_BYTES];
    const struct status_note *note = status_pending();
    fuzz_require((result == STATUS_OK) == (note->code == STATUS_OK),
                 "an error has a message, and a success has none");
    fuzz_require(result != STATUS_INTERNAL, note->text);
    status_format(note, line, (int)sizeof line);
    for (const unsigned char *c = (const unsigned char *)line; *c != '\0'; c++) {
        bool control = *c < 0x20 || *c == 0x7f || (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0);
        fuzz_require(!control, "a message contains no control characters");
    }
    if (getenv("FUZZ_PRINT") != NULL) {
        fprintf(stderr, "fuzz: %s\n", result == STATUS_OK ? "accepted" : line);
    }
    status_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool started; /* the first input is empty; some targets make a tokenizer then */
    int64_t allowed = (int64_t)(fuzz_limits.bytes + fuzz_limits.factor * bytes);
    atomic_store(&live_limit, started ? atomic_load(&live_bytes) + allowed : INT64_MAX);
    started = true;
    status result = fuzz_read(data, bytes);
    atomic_store(&live_limit, INT64_MAX);
    check_message(result);
    return 0;
}
