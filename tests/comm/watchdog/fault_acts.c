#include "tests/comm/watchdog/fault_acts.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/device/device.h"
#include "comm/watchdog/straggler.h"
#include "comm/watchdog/watchdog.h"
#include "tests/check.h"
#include "tests/comm/device/nccl_mock.h"

#define CULPRIT 1

static bool is_culprit(struct comm *world)
{
    return comm_rank(world) == CULPRIT;
}

static void act_agree_one(struct comm *world)
{
    status own = is_culprit(world)
                     ? status_raise(STATUS_DATA, __FILE__, __LINE__, "shard seven is bad")
                     : STATUS_OK;
    status verdict = comm_agree(world, own);
    CHECK(verdict == STATUS_DATA && status_pending()->code == STATUS_OK);
    comm_abort(world, verdict);
}

static void act_agree_all(struct comm *world)
{
    status own = status_raise(comm_rank(world) == 0 ? STATUS_WRITE : STATUS_DATA, __FILE__,
                              __LINE__, "rank %d of all has failed", comm_rank(world));
    comm_abort(world, comm_agree(world, own));
}

static void act_agree_none(struct comm *world)
{
    CHECK(comm_agree(world, STATUS_OK) == STATUS_OK);
}

static void act_agree_without_note(struct comm *world)
{
    comm_abort(world, comm_agree(world, is_culprit(world) ? STATUS_WRITE : STATUS_OK));
}

static void *abort_in_thread(void *world)
{
    clock_sleep(0.3);
    status_raise(STATUS_WRITE, __FILE__, __LINE__, "the writer thread has failed");
    comm_abort(world, STATUS_WRITE);
}

static void act_abort_thread(struct comm *world)
{
    pthread_t thread;
    if (is_culprit(world)) {
        CHECK(pthread_create(&thread, NULL, abort_in_thread, world) == 0);
        clock_sleep(60);
    }
    CHECK_OK(comm_barrier(world));
}

static void act_abort_all(struct comm *world)
{
    status_raise(STATUS_NOT_FINITE, __FILE__, __LINE__, "every rank ends");
    comm_abort(world, STATUS_NOT_FINITE);
}

/* mpirun ends the other ranks. This may take longer than LIMIT_SECONDS. */
static void act_exit(struct comm *world)
{
    comm_set_deadline(world, 10 * LIMIT_SECONDS);
    if (is_culprit(world)) {
        _exit(3);
    }
    CHECK_OK(comm_barrier(world));
}

static void act_kill(struct comm *world)
{
    comm_set_deadline(world, 10 * LIMIT_SECONDS);
    if (is_culprit(world)) {
        raise(SIGKILL);
    }
    CHECK_OK(comm_barrier(world));
}

static void act_stop(struct comm *world)
{
    if (is_culprit(world)) {
        raise(SIGSTOP);
    }
    CHECK_OK(comm_barrier(world));
}

/* No rank waits for the stopped rank: the others compute in phases shorter than the limit. The
 * watchdog reports the stopped rank. */
static void act_stop_without_wait(struct comm *world)
{
    if (is_culprit(world)) {
        watchdog_set_phase("forward", LIMIT_SECONDS);
        raise(SIGSTOP);
    }
    for (int i = 0; i < 100; i++) {
        watchdog_set_phase("backward", LIMIT_SECONDS);
        clock_sleep(0.5);
    }
}

/* The phase and the waits of the other ranks have a long limit. The limit of a process that is
 * stopped is the default. */
static void act_stop_in_long_phase(struct comm *world)
{
    CHECK_OK(watchdog_start(world, LIMIT_SECONDS));
    comm_set_deadline(world, 600);
    watchdog_set_phase("checkpoint", 600);
    if (is_culprit(world)) {
        raise(SIGSTOP);
    }
    CHECK_OK(comm_barrier(world));
}

/* A long phase of a process that is not stopped may take longer than the default limit. */
static void act_long_phase(struct comm *world)
{
    CHECK_OK(watchdog_start(world, LIMIT_SECONDS));
    comm_set_deadline(world, 600);
    watchdog_set_phase("checkpoint", 600);
    clock_sleep(is_culprit(world) ? 3 * LIMIT_SECONDS : 0);
    CHECK_OK(comm_barrier(world));
}

static void act_late_for_all_reduce(struct comm *world)
{
    if (is_culprit(world)) {
        watchdog_set_phase("data", 0);
        clock_sleep(60);
    }
    watchdog_set_phase("gradients", 0);
    static float data[1000];
    CHECK_OK(comm_all_reduce(world, data, 1000));
}

/* Runs a lazy gather to which rank 1 is late: at the start or, if not late_start, at its pull. */
static void run_lazy_gather(struct comm *world, bool late_start)
{
    enum { COUNT = 1000 };
    float *shared_source = NULL, data[COUNT] = {0};
    struct comm_request *request = NULL;
    struct comm_range ranges[3];
    for (int r = 0; r < 3; r++) {
        ranges[r] = (struct comm_range){300 * r, 300};
    }
    CHECK_OK(comm_allocate(world, sizeof data, (void **)&shared_source));
    if (late_start && is_culprit(world)) {
        watchdog_set_phase("data", 0);
        clock_sleep(60);
    }
    watchdog_set_phase("gradients", 0);
    CHECK_OK(
        comm_lazy_gather_start(world, data, sizeof *data, ranges, shared_source, ranges, &request));
    if (is_culprit(world)) {
        watchdog_set_phase("forward", 0);
        clock_sleep(60);
    }
    CHECK_OK(comm_gather_pull(world, &request));
    watchdog_set_phase("gathered", 0);
    CHECK_OK(comm_wait(world, &request));
}

static void act_late_for_gather(struct comm *world)
{
    run_lazy_gather(world, true);
}

static void act_late_for_pull(struct comm *world)
{
    run_lazy_gather(world, false);
}

/* The other ranks wait for a rank that is in a phase with a longer limit. */
static void act_late_within_limit(struct comm *world)
{
    watchdog_set_phase("step", 0);
    if (is_culprit(world)) {
        watchdog_set_phase("checkpoint", 60);
        clock_sleep(2 * LIMIT_SECONDS);
    }
    CHECK_OK(comm_barrier(world));
}

static void act_straggler(struct comm *world)
{
    log_quiet(comm_rank(world) != 0);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(straggler_check(world, is_culprit(world) && i >= 2 ? 1.0 : 0.25, 1));
    }
}

/* A rank that takes longer because it has more rows is not reported as slow. */
static void act_uneven_rows(struct comm *world)
{
    log_keep_warnings();
    for (int i = 0; i < 8; i++) {
        CHECK_OK(
            straggler_check(world, is_culprit(world) ? 1.0 : 0.25, is_culprit(world) ? 16 : 2));
    }
    CHECK(log_take_warning() == NULL);
}

static void act_late_in_phase(struct comm *world)
{
    comm_set_deadline(world, 600);
    if (is_culprit(world)) {
        watchdog_set_phase("data", LIMIT_SECONDS);
        clock_sleep(60);
    }
    watchdog_set_phase("gradients", LIMIT_SECONDS);
    CHECK_OK(comm_barrier(world));
}

/* Parts of a job use a communicator of one rank. It does not end the watchdog of the job, and the
 * error names the rank of the world. */
static void act_self_communicator(struct comm *world)
{
    struct comm *self = NULL;
    CHECK_OK(watchdog_start(world, 600));
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(comm_destroy(&self));
    act_late_in_phase(world);
}

/* Rank 0 waits for rank 1 in a smaller group, and rank 2 waits for rank 0. The error must report
 * rank 1 only. */
static void act_late_for_group(struct comm *world)
{
    struct comm *group = NULL;
    CHECK_OK(comm_split(world, comm_rank(world) == 2 ? 1 : 0, 0, &group));
    if (is_culprit(world)) {
        watchdog_set_phase("checkpoint", 0);
        clock_sleep(60);
    }
    CHECK_OK(comm_barrier(group)); /* the group of rank 2 has one rank */
    CHECK_OK(comm_barrier(world));
}

static void act_out_of_order(struct comm *world)
{
    static float data[2000];
    status own = comm_all_reduce(world, data, is_culprit(world) ? 2000 : 1000);
    CHECK(own == STATUS_INTERNAL);
    comm_abort(world, own);
}

static void act_slow_but_alive(struct comm *world)
{
    for (int i = 0; i < 6; i++) {
        watchdog_set_phase("data", LIMIT_SECONDS);
        clock_sleep(is_culprit(world) ? 0.6 : 0);
        watchdog_set_phase("gradients", LIMIT_SECONDS);
        CHECK_OK(comm_barrier(world));
    }
}

/* All ranks are stopped for longer than the limit and continue, as on a suspended machine. */
static void act_suspended(struct comm *world)
{
    CHECK_OK(comm_barrier(world));
    if (is_culprit(world) && fork() == 0) {
        execl(
            "/bin/sh", "sh", "-c",
            "pids=$(grep -lsz \"$0\" /proc/[0-9]*/cmdline | cut -d/ -f3); "
            "for p in $pids; do [ $p != $$ ] && grep -sqzx child /proc/$p/cmdline && list=\"$list "
            "$p\"; done; "
            "sleep 0.2; kill -STOP $list; sleep 4; kill -CONT $list",
            getenv("BIREME_TEST_TOKEN"), (char *)NULL);
        _exit(1);
    }
    /* at the time of the stop, the culprit computes and the other ranks wait */
    for (int i = 0; i < 6; i++) {
        watchdog_set_phase("step", LIMIT_SECONDS);
        for (int k = 0; k < 15 && is_culprit(world); k++) {
            clock_sleep(0.02);
        }
        CHECK_OK(comm_barrier(world));
    }
}

static volatile sig_atomic_t stop_signal_received;

static void request_stop(int number)
{
    (void)number;
    stop_signal_received = 1;
}

/* For test_launch.sh: runs steps until any rank receives a signal. */
static void act_until_stopped(struct comm *world)
{
    signal(SIGUSR1, request_stop);
    /* as in `bireme train`: after the first rank has exited, mpirun sends SIGTERM to the others */
    signal(SIGTERM, request_stop);
    bool any = false;
    for (int i = 0; i < 1000 && !any; i++) {
        clock_sleep(0.02);
        CHECK_OK(comm_agree_flag(world, stop_signal_received != 0, &any));
        if (i == 0 && comm_rank(world) == 0) {
            printf("running\n");
            fflush(stdout);
        }
    }
    CHECK_OK(comm_destroy(&world));
    exit(any ? STATUS_STOPPED : STATUS_INTERNAL);
}

/* For test_network.sh: runs all-reduces over all hosts for 6 s and checks every result. */
static void act_steps(struct comm *world)
{
    enum { COUNT = 300000 };
    static float data[COUNT];
    comm_set_deadline(world, 30);
    double end = clock_seconds() + 6;
    bool late = false;
    for (int step = 0; !late; step++) {
        for (int i = 0; i < COUNT; i++) {
            data[i] = (float)(step % 100 + i % 100 + comm_rank(world));
        }
        CHECK_OK(comm_all_reduce(world, data, COUNT));
        int size = comm_size(world);
        int rank_sum = size * (size - 1) / 2;
        for (int i = 0; i < COUNT; i++) {
            CHECK(data[i] == (float)(size * (step % 100 + i % 100) + rank_sum));
        }
        if (step == 0 && comm_rank(world) == 0) {
            printf("running, %d of %d ranks here\n", comm_local_size(world), size);
            fflush(stdout);
        }
        CHECK_OK(comm_agree_flag(world, clock_seconds() > end, &late));
    }
    if (comm_rank(world) == 0) {
        printf("finished\n");
    }
}

/* Runs six collectives. The NCCL mock injects its faults into the third one. */
static void act_sums(struct comm *world)
{
    float *data = NULL;
    watchdog_set_phase("gradients", 0);
    status result = comm_allocate(world, 1000 * sizeof *data, (void **)&data);
    for (int i = 0; i < 6 && result == STATUS_OK; i++) {
        result = comm_all_reduce(world, data, 1000);
    }
    if (result != STATUS_OK) {
        comm_abort(world, result);
    }
    CHECK_OK(comm_free(world, data));
}

/* Tests collectives on registered memory: in memory that replaces freed memory, at an offset in a
 * window, and in a smaller group with separate windows. If a rank gets no window, no rank uses one,
 * and the sums are the same. */
static void act_windows(struct comm *world)
{
    enum { COUNT = 1000, OFFSET = 200 };
    float *first = NULL, *second = NULL, *third = NULL;
    struct comm *group = NULL;
    const struct nccl_mock_counts *counts = nccl_mock_get_counts();
    CHECK_OK(comm_allocate(world, COUNT * sizeof *first, (void **)&first));
    CHECK_OK(comm_allocate(world, 2 * COUNT * sizeof *second, (void **)&second));
    CHECK_OK(comm_free(world, first));
    CHECK_OK(comm_allocate(world, COUNT / 2 * sizeof *third, (void **)&third));
    CHECK_OK(comm_split(world, is_culprit(world) ? 1 : 0, 0, &group));
    CHECK_OK(comm_allocate(group, COUNT * sizeof *first, (void **)&first));
    for (int i = 0; i < COUNT; i++) {
        first[i] = second[OFFSET + i] = third[i / 2] = (float)(i / 2 + comm_rank(world));
    }
    CHECK_OK(comm_all_reduce(world, second + OFFSET, COUNT));
    CHECK_OK(comm_all_reduce(world, third, COUNT / 2));
    CHECK_OK(comm_all_reduce(group, first, COUNT));
    for (int i = 0; i < COUNT; i++) {
        float sum = (float)(3 * (i / 2) + 3);
        CHECK(second[OFFSET + i] == sum && third[i / 2] == sum);
        CHECK(first[i] == (float)(is_culprit(world) ? i / 2 + CULPRIT : i / 2 * 2 + 2));
    }
    /* faults affect only the world communicator; a group of one rank uses no window */
    const char *faults = getenv("NCCL_MOCK");
    int world_windows = faults == NULL || strcmp(faults, "slow") == 0 ? 2 : 0;
    CHECK_EQUAL(counts->windowed, world_windows + (is_culprit(world) ? 0 : 1));
    CHECK_OK(comm_free(world, second));
    CHECK_OK(comm_free(group, first));
    CHECK_OK(comm_destroy(&group)); /* destroying the communicator frees `third` */
}

static void act_window_sizes(struct comm *world)
{
    void *memory = NULL;
    comm_abort(world, comm_allocate(world, is_culprit(world) ? 4096 : 8192, &memory));
}

/* Two ranks per unique id: ranks 0 and 2 create an id. A library without ncclCommInitRankScalable
 * gets one id. */
static void act_ids(struct comm *world)
{
    const struct nccl_mock_counts *counts = nccl_mock_get_counts();
    int ids = strstr(getenv("BIREME_NCCL"), "without_scalable") != NULL ? 1 : 2;
    CHECK_EQUAL(counts->ids_used, ids);
    CHECK_EQUAL(counts->ids_created, comm_rank(world) % 2 == 0 && comm_rank(world) / 2 < ids);
    act_sums(world);
}

static void act_split(struct comm *world)
{
    struct comm *group = NULL;
    comm_abort(world, comm_split(world, 0, 0, &group));
}

/* Runs three collectives. After them the main thread does not call NCCL, so that only the watchdog
 * of nccl_wait.c can detect the fault. */
static void act_three_sums(struct comm *world)
{
    static float data[1000];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(comm_all_reduce(world, data, 1000));
    }
    clock_sleep(60);
}

/* Every phase is within its own limit, but the start as a whole is too long. */
static void act_startup_limit(struct comm *world)
{
    watchdog_set_phase("opening data", 60);
    comm_set_deadline(world, 60);
    if (is_culprit(world)) {
        watchdog_set_phase("resume", 60);
        clock_sleep(20);
    }
    CHECK_OK(comm_barrier(world));
}

/* The limit of the start does not apply to paused time and after the start. */
static void act_startup_end(struct comm *world)
{
    watchdog_pause_startup(true);
    clock_sleep(1.5 * LIMIT_SECONDS);
    watchdog_pause_startup(false);
    CHECK(watchdog_startup_limit() == LIMIT_SECONDS);
    watchdog_end_startup();
    CHECK(watchdog_startup_limit() == 0);
    clock_sleep(1.5 * LIMIT_SECONDS);
    CHECK_OK(comm_barrier(world));
}

/* BIREME_INIT_SECONDS extends a shorter limit of the start. */
static void act_startup_extended(struct comm *world)
{
    CHECK(watchdog_startup_limit() == 60);
    CHECK_OK(comm_barrier(world));
}

/* ---- no memory on one rank ---- */

/* The test links with --wrap=calloc. */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static _Atomic int failing_call; /* number of the next call of calloc that fails; 0: none */

void *__wrap_calloc(size_t count, size_t bytes)
{
    bool fails = failing_call > 0 && --failing_call == 0;
    return fails ? NULL : __real_calloc(count, bytes);
}

static void fail_call(struct comm *world, int number)
{
    failing_call = is_culprit(world) ? number : 0;
}

/* The other ranks have started the collective and wait for the culprit, so it ends the job. */
static void act_memory_for_start(struct comm *world)
{
    static float data[1000];
    struct comm_request *request = NULL;
    fail_call(world, 1);
    status result = comm_all_reduce_start(world, data, 1000, &request);
    KEEP_FIRST(result, comm_wait(world, &request));
    comm_abort(world, comm_agree(world, result));
}

static void act_device_memory(struct comm *world, int number)
{
    struct comm *group = NULL;
    struct comm_device_options options = {0};
    CHECK_OK(device_create(DEVICE_CPU, 0, &options.device));
    log_quiet(true); /* all ranks use one device, which would log a warning */
    fail_call(world, number);
    (void)comm_device_create(world, &options, &group);
    CHECK(!is_culprit(world)); /* the culprit has ended the job */
    clock_sleep(60);
}

/* The allocation before the ranks compare their devices fails. */
static void act_memory_for_device(struct comm *world)
{
    act_device_memory(world, 1);
}

/* The allocation after the comparison fails: the memory of the communicator itself. */
static void act_memory_for_staged(struct comm *world)
{
    act_device_memory(world, 2);
}

/* All ranks get the error, and the next collective is the same on all of them. */
static void act_memory_for_window(struct comm *world)
{
    void *memory = NULL;
    fail_call(world, 1);
    status result = comm_allocate(world, 4096, &memory);
    CHECK(result == STATUS_INTERNAL && status_pending()->code == STATUS_OK);
    CHECK_OK(comm_barrier(world));
    CHECK_OK(comm_allocate(world, 4096, &memory));
    comm_abort(world, result);
}

static void act_nothing(struct comm *world)
{
    CHECK_OK(comm_barrier(world));
}

#define RANK "error: rank "
#define HANG RANK, "[E-HANG]"
#define LOST RANK "1 ", "[E-RANK-LOST]"
#define NO_MEMORY RANK "1 ", "[E-INTERNAL]"
static const struct fault faults[] = {
    {"agree_one", act_agree_one, 65, RANK "1 ", "[E-DATA]", "shard seven is bad", NULL},
    {"agree_all", act_agree_all, 74, RANK "0 ", "[E-WRITE]", "rank 0 of all", NULL},
    {"agree_none", act_agree_none, 0, NULL, NULL, NULL, NULL},
    {"agree_without_note", act_agree_without_note, 74, RANK "1 ", "[E-WRITE]",
     "without an error message", NULL},
    {"abort_thread", act_abort_thread, 74, RANK "1 ", "[E-WRITE]", "writer thread", NULL},
    {"abort_all", act_abort_all, 79, RANK, "[E-NONFINITE]", "every rank ends", NULL},
    {"exit", act_exit, 3, NULL, NULL, NULL, NULL},
    {"kill", act_kill, 137, NULL, NULL, NULL, NULL},
    {"stop", act_stop, 76, HANG, "rank 1 host", NULL},
    {"stop_without_wait", act_stop_without_wait, 76, HANG, "rank 1 host", NULL},
    {"stop_in_long_phase", act_stop_in_long_phase, 76, HANG, "rank 1 host", NULL},
    {"long_phase", act_long_phase, 0, NULL, NULL, NULL, NULL},
    {"late_for_all_reduce", act_late_for_all_reduce, 76, HANG, "phase 'data'", NULL},
    {"late_for_all_reduce_3_nodes", act_late_for_all_reduce, 76, HANG, "phase 'data'",
     "BIREME_COMM_NODES=3"},
    {"late_for_gather", act_late_for_gather, 76, HANG, "phase 'data'", NULL},
    {"late_for_pull", act_late_for_pull, 76, HANG, "phase 'gathered'", NULL},
    {"late_in_phase", act_late_in_phase, 76, RANK "1 ", "[E-HANG]", "phase 'data'", NULL},
    {"self_communicator", act_self_communicator, 76, RANK "1 ", "[E-HANG]", "phase 'data'", NULL},
    {"late_within_limit", act_late_within_limit, 0, NULL, NULL, NULL, NULL},
    {"straggler", act_straggler, 0, "warning: ", "[W-SLOW]", "rank 1 on host", NULL},
    {"uneven_rows", act_uneven_rows, 0, NULL, NULL, NULL, NULL},
    {"late_for_group", act_late_for_group, 76, HANG, "phase 'checkpoint'", NULL},
    {"out_of_order", act_out_of_order, 70, RANK, "[E-INTERNAL]", "same order", NULL},
    {"slow_but_alive", act_slow_but_alive, 0, NULL, NULL, NULL, NULL},
    {"suspended", act_suspended, 0, NULL, NULL, NULL, NULL},
    {"until_stopped", act_until_stopped, 75, NULL, NULL, NULL, NULL},
    {"steps", act_steps, 0, NULL, NULL, NULL, NULL},
    {"memory_for_start", act_memory_for_start, 70, NO_MEMORY, "a collective", NULL},
    {"memory_for_device", act_memory_for_device, 70, NO_MEMORY, "the devices of the ranks", NULL},
    {"memory_for_staged", act_memory_for_staged, 70, NO_MEMORY, "a communicator", NULL},
    {"memory_for_window", act_memory_for_window, 70, NO_MEMORY, "a host mirror", NULL},
    {"init_hang", act_nothing, 76, HANG, "MPI_Init", "BIREME_INIT_SECONDS=2"},
    {"startup_limit", act_startup_limit, 76, RANK "1 ", "[E-HANG]",
     "parallel.start_seconds): this rank in phase 'resume'", NULL},
    {"startup_end", act_startup_end, 0, NULL, NULL, NULL, NULL},
    {"startup_extended", act_startup_extended, 0, NULL, NULL, NULL, "BIREME_INIT_SECONDS=60"},
    {"nccl_init_hang", act_nothing, 76, HANG, "NCCL: communicator creation",
     "NCCL_MOCK=init_hang@1"},
    {"nccl_init_fail", act_nothing, 71, LOST, "system error", "NCCL_MOCK=init_fail@1"},
    {"nccl_hang", act_sums, 76, HANG, "all-reduce number 3 of 3 ranks", "NCCL_MOCK=hang@1"},
    {"nccl_fail", act_sums, 71, LOST, "remote process exited", "NCCL_MOCK=fail@1,abort_hang@1"},
    {"nccl_fail_later", act_three_sums, 71, LOST, "remote process exited",
     "NCCL_MOCK=fail_later@1"},
    {"nccl_slow", act_sums, 0, NULL, NULL, NULL, "NCCL_MOCK=slow,memory"},
    {"nccl_windows", act_windows, 0, NULL, NULL, NULL, NULL},
    {"nccl_windows_slow", act_windows, 0, NULL, NULL, NULL, "NCCL_MOCK=slow"},
    {"nccl_window_off", act_windows, 0, NULL, NULL, NULL, "NCCL_MOCK=window_off"},
    {"nccl_window_none", act_windows, 0, NULL, NULL, NULL, "NCCL_MOCK=window_none@1,slow"},
    {"nccl_window_refused", act_windows, 0, NULL, NULL, NULL, "NCCL_MOCK=window_refused"},
    {"nccl_window_memory", act_windows, 0, NULL, NULL, NULL, "NCCL_MOCK=memory=1"},
    {"nccl_window_fail", act_sums, 71, LOST, "NCCL_WIN_ENABLE=0", "NCCL_MOCK=window_fail@1"},
    {"nccl_window_sizes", act_window_sizes, 70, RANK, "[E-INTERNAL]", "sizes must be equal", NULL},
    {"nccl_ids", act_ids, 0, NULL, NULL, NULL, "BIREME_TEST_RANKS_PER_ID=2"},
    {"nccl_split_hang", act_split, 76, HANG, "NCCL: splitting", "NCCL_MOCK=split_hang@1"},
    {"nccl_split_fail", act_split, 71, LOST, "system error", "NCCL_MOCK=split_fail@1"},
    {"nccl_too_old", act_nothing, 69, RANK "0 ", "[E-UNAVAILABLE]", "2.27.3",
     "NCCL_MOCK=version=22703"},
    {"nccl_incomplete", act_nothing, 69, RANK "0 ", "[E-UNAVAILABLE]", "no ncclCommSplit",
     NCCL_INCOMPLETE},
    {"nccl_missing", act_nothing, 69, RANK "0 ", "[E-UNAVAILABLE]", "cannot be opened",
     "BIREME_NCCL=./no"},
    {"invalid_setting", act_nothing, 64, RANK, "[E-USAGE]", "BIREME_COMM_NODES=two",
     "BIREME_COMM_NODES=two"},
};

const struct fault *fault_acts_find(const char *mode)
{
    for (int i = 0; i < COUNT(faults); i++) {
        if (strcmp(faults[i].mode, mode) == 0) {
            return &faults[i];
        }
    }
    fprintf(stderr, "unknown mode: %s\n", mode);
    exit(64);
}
