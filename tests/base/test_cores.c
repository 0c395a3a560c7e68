/* Tests of cores_quota with the files of control groups of versions 1 and 2, in a temporary root
 * folder, and of cores_allowed. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#include <unistd.h>

#include "base/thread/cores.h"
#include "tests/datasets/folder.h"

/* Writes a file below the temporary root, and creates its folders. */
static void write_file(const char *name, const char *text)
{
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, folder_path, name));
    char *slash = strrchr(path, '/');
    *slash = '\0';
    CHECK_OK(file_make_folders(path));
    *slash = '/';
    CHECK_OK(file_write(path, text, strlen(text)));
}

/* Returns the quota of a process that is in these groups. Each file is a name below /sys/fs/cgroup
 * and its content. */
static int find_quota(const char *groups, const char *const files[][2])
{
    folder_remove();
    write_file("proc/self/cgroup", groups);
    for (int i = 0; files[i][0] != NULL; i++) {
        char name[256];
        snprintf(name, sizeof name, "sys/fs/cgroup/%s", files[i][0]);
        write_file(name, files[i][1]);
    }
    return cores_quota(folder_path);
}

#define FILES(...)                                                                                 \
    (const char *const[][2])                                                                       \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            NULL, NULL                                                                             \
        }                                                                                          \
    }

static void test_version_2(void)
{
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "200000 100000\n"})), 2);
    /* 1.5 cores are rounded up. */
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "150000 100000\n"})), 2);
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "10000 100000\n"})), 1);
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "max 100000\n"})), 0);
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.stat", "usage_usec 5\n"})), 0);
    /* The result is the smallest quota of the group and the groups above it. */
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "max 100000\n"},
                                              {"a/cpu.max", "300000 100000\n"})),
                3);
    CHECK_EQUAL(find_quota("0::/a/b\n", FILES({"a/b/cpu.max", "400000 100000\n"},
                                              {"a/cpu.max", "300000 100000\n"})),
                3);
    /* In a container the files of the group are at the mount point, for any path of the group. */
    CHECK_EQUAL(find_quota("0::/\n", FILES({"cpu.max", "400000 100000\n"})), 4);
    CHECK_EQUAL(find_quota("0::/../../x.slice\n", FILES({"cpu.max", "400000 100000\n"})), 4);
}

static void test_version_1(void)
{
    const char *groups = "3:cpuset:/s\n2:cpuacct,cpu:/job\n1:name=systemd:/\n0::/\n";
    CHECK_EQUAL(find_quota(groups, FILES({"cpu/job/cpu.cfs_quota_us", "250000\n"},
                                         {"cpu/job/cpu.cfs_period_us", "50000\n"})),
                5);
    CHECK_EQUAL(find_quota(groups, FILES({"cpu/job/cpu.cfs_quota_us", "-1\n"},
                                         {"cpu/job/cpu.cfs_period_us", "100000\n"})),
                0);
    CHECK_EQUAL(find_quota(groups, FILES({"cpu/cpu.cfs_quota_us", "100000\n"},
                                         {"cpu/cpu.cfs_period_us", "100000\n"})),
                1);
    CHECK_EQUAL(find_quota("2:cpuset:/job\n", FILES({"cpu/job/cpu.cfs_quota_us", "100000\n"},
                                                    {"cpu/job/cpu.cfs_period_us", "100000\n"})),
                0); /* the process is not in a cpu group */
}

static void test_invalid_files(void)
{
    CHECK_EQUAL(find_quota("0::/a\n", FILES({"a/cpu.max", "100000 0\n"})), 0);
    CHECK_EQUAL(find_quota("0::/a\n", FILES({"a/cpu.max", "-5 100000\n"})), 0);
    CHECK_EQUAL(find_quota("0::/a\n", FILES({"a/cpu.max", "9223372036854775807 1\n"})), 0);
    CHECK_EQUAL(find_quota("no group\n::\n0\n", FILES({"a/cpu.max", "100000 100000\n"})), 0);
    folder_remove();
    CHECK_EQUAL(cores_quota(folder_path), 0);
}

static int64_t find_memory(const char *groups, const char *const files[][2])
{
    (void)find_quota(groups, files);
    return cores_memory_bytes(folder_path);
}

/* The smallest limit of the groups, and not more than the memory of the machine. */
static void test_memory(void)
{
    int64_t machine = cores_memory_bytes("/nowhere");
    CHECK(machine > 1 << 20);
    CHECK_EQUAL(find_memory("0::/a/b\n", FILES({"a/b/memory.max", "1048576\n"})), 1 << 20);
    CHECK_EQUAL(
        find_memory("0::/a/b\n", FILES({"a/b/memory.max", "max\n"}, {"a/memory.max", "4096\n"})),
        4096);
    CHECK_EQUAL(find_memory("0::/a\n", FILES({"a/memory.max", "max\n"})), machine);
    CHECK_EQUAL(
        find_memory("4:memory:/a\n3:cpu:/b\n", FILES({"memory/a/memory.limit_in_bytes", "8192\n"})),
        8192);
    CHECK_EQUAL(find_memory("4:memory:/a\n",
                            FILES({"memory/a/memory.limit_in_bytes", "9223372036854771712\n"})),
                machine);
}

static void test_allowed(void)
{
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CHECK(cores_allowed() >= 1 && cores_allowed() <= CPU_COUNT(&all));
    int first = 0;
    while (!CPU_ISSET(first, &all)) {
        first++;
    }
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK_EQUAL(cores_allowed(), 1);
}

int main(void)
{
    folder_make();
    test_version_2();
    test_version_1();
    test_invalid_files();
    test_memory();
    test_allowed();
    return 0;
}
