/* Tests of core_waits_measure with planted files, and once with the files of this process. */
#include <inttypes.h>

#include "base/thread/core_waits.h"
#include "tests/datasets/folder.h"

/* Writes the counters of one thread in milliseconds. */
static void plant_thread(int id, int64_t run, int64_t wait)
{
    char path[FILE_PATH_BYTES], text[96];
    snprintf(path, sizeof path, "%s/proc/self/task/%d", folder_path, id);
    CHECK_OK(file_make_folders(path));
    snprintf(path + strlen(path), sizeof path - strlen(path), "/schedstat");
    snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " 7\n", run * 1000000, wait * 1000000);
    folder_write(path, text, strlen(text));
}

static void test_share(void)
{
    struct core_waits waits = {0};
    plant_thread(10, 5000, 3000);
    plant_thread(11, 0, 0);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 2), 3. / 8, 1e-12);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 2), 0, 0); /* nothing since then */
    plant_thread(10, 6000, 3000);
    plant_thread(11, 600, 400);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 2), 0.4, 1e-12);
    /* A third thread of this process ran for 0.3 s. It can delay another thread by this time. */
    plant_thread(10, 6600, 3400);
    plant_thread(11, 1200, 700);
    plant_thread(12, 300, 0);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 2), 0.1, 1e-12);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 3), 0, 0);
    /* The id of an ended thread is used again: its counters begin at 0. */
    plant_thread(10, 100, 300);
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 3), 0.75, 1e-12);
}

static void test_unreadable(void)
{
    struct core_waits waits = {0};
    CHECK_NEAR(core_waits_measure(&waits, "/nowhere", 2), 0, 0);
    CHECK_EQUAL(waits.count, 0);
    char *path = folder_file("proc/self/task/13");
    CHECK(mkdir(path, 0700) == 0); /* a kernel without these counters, or a thread that ended */
    CHECK_NEAR(core_waits_measure(&waits, folder_path, 1), (700. - 400) / 1900, 1e-12);
    CHECK_EQUAL(waits.count, 3);
}

static void test_this_process(void)
{
    struct core_waits waits = {0};
    double share = core_waits_measure(&waits, "", 1);
    CHECK(share >= 0 && share <= 1);
    if (access("/proc/self/schedstat", R_OK) == 0) {
        CHECK_EQUAL(waits.count, 1);
        CHECK(waits.threads[0].id == getpid());
    }
}

int main(void)
{
    folder_make();
    test_share();
    test_unreadable();
    test_this_process();
    return 0;
}
