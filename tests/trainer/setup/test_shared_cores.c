/* The warning W-SHARED-CORES, with planted counters of two threads. */
#include "base/log.h"
#include "tests/datasets/folder.h"
#include "trainer/setup/shared_cores.h"

static void plant_threads(int64_t run_ms, int64_t wait_ms)
{
    for (int id = 1; id <= 2; id++) {
        char path[FILE_PATH_BYTES], text[96];
        snprintf(path, sizeof path, "%s/proc/self/task/%d", folder_path, id);
        CHECK_OK(file_make_folders(path));
        snprintf(path + strlen(path), sizeof path - strlen(path), "/schedstat");
        snprintf(text, sizeof text, "%lld %lld 1\n", (long long)run_ms * 1000000,
                 (long long)wait_ms * 1000000);
        folder_write(path, text, strlen(text));
    }
}

/* Returns whether there was a warning since the last call. */
static bool has_warning(void)
{
    struct log_entry *entry = log_take_warning();
    if (entry != NULL) {
        CHECK_TEXT(entry->name, "SHARED-CORES");
        CHECK(strstr(entry->text, "50 % of its time") != NULL);
        CHECK(strstr(entry->text, "parallel.threads=1") != NULL);
    }
    free(entry);
    return entry != NULL;
}

/* Simulates measurements: between two of them, each thread runs for 5 s and waits for these
 * milliseconds. Returns the number of measurements until the warning; 0: none. */
static int count_until_warning(int threads, double seconds, const int64_t *waits_ms, int count)
{
    struct shared_cores s = {0};
    int64_t run = 9000, wait = 9000; /* the start of the run is not counted */
    int found = 0;
    plant_threads(run, wait);
    shared_cores_check(&s, folder_path, threads, 100);
    for (int i = 0; i < count; i++) {
        plant_threads(run += 5000, wait += waits_ms[i]);
        shared_cores_check(&s, folder_path, threads, 100 + seconds * (i + 1));
        if (has_warning()) {
            CHECK_EQUAL(found, 0); /* once only */
            found = i + 1;
        }
    }
    return found;
}

#define COUNT_UNTIL_WARNING(threads, seconds, ...)                                                 \
    count_until_warning(threads, seconds, (const int64_t[]){__VA_ARGS__},                          \
                        sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

int main(void)
{
    folder_make();
    log_keep_warnings();
    CHECK_EQUAL(COUNT_UNTIL_WARNING(2, 5, 5000, 5000, 5000, 5000), 2);
    CHECK_EQUAL(COUNT_UNTIL_WARNING(2, 5, 500, 500, 500, 500, 5000, 5000), 6);
    CHECK_EQUAL(COUNT_UNTIL_WARNING(2, 5, 5000, 0, 5000, 0, 5000), 0);   /* single intervals */
    CHECK_EQUAL(COUNT_UNTIL_WARNING(2, 5, 1000, 1000, 1000), 0);         /* a sixth */
    CHECK_EQUAL(COUNT_UNTIL_WARNING(1, 5, 5000, 5000, 5000), 0);         /* one thread */
    CHECK_EQUAL(COUNT_UNTIL_WARNING(2, 2.5, 5000, 5000, 5000, 5000), 4); /* every 5 s */
    return 0;
}
