/* The interface of every communicator: arguments checked once, a group of one answered at once, time
 * accounted, and the collectives on small data, all made of one exchange. */
#include "comm/comm_impl.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/heartbeat.h"

#define LAST_CODE 125          /* above, shells and launchers mean signals */
#define END_PATIENCE_SECONDS 5 /* for the rank that tells the end to end us too */
#define FORWARD_SECONDS 0.1    /* for the launcher to pass on our line before its own */
#define END_LIMIT_SECONDS 15   /* then the kernel ends this process */

/* ---- making and leaving ---- */

status comm_create(const struct comm_operations *operations, int rank, int size, void *state,
                   struct comm **out)
{
    *out = NULL;
    struct comm *comm = calloc(1, sizeof *comm);
    char *small = calloc((size_t)size, COMM_SMALL_BYTES);
    if (comm == NULL || small == NULL) {
        free(comm);
        free(small);
        RAISE(STATUS_INTERNAL, "out of memory: a communicator of %d ranks", size);
    }
    *comm = (struct comm){.operations = operations,
                          .state = state,
                          .rank = rank,
                          .size = size,
                          .local_ranks = 1,
                          .deadline_seconds = COMM_DEADLINE_SECONDS,
                          .small = small};
    *out = comm;
    return STATUS_OK;
}

status comm_around(const struct comm_operations *operations, struct comm *control, void *state,
                   struct comm **out)
{
    TRY(comm_create(operations, control->rank, control->size, state, out));
    (*out)->control = control;
    (*out)->local_rank = control->local_rank;
    (*out)->local_ranks = control->local_ranks;
    (*out)->deadline_seconds = control->deadline_seconds;
    return STATUS_OK;
}

void comm_release(struct comm **comm)
{
    if (*comm != NULL) {
        free((*comm)->small);
        free(*comm);
        *comm = NULL;
    }
}

/* Whether mpirun or srun started this process, by what they leave in the environment. */
static bool started_by_launcher(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("PMI_RANK") != NULL;
}

static int environment_number(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (int)strtol(text, NULL, 10);
}

bool comm_launched_first(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i]) != NULL) {
            return environment_number(names[i]) == 0;
        }
    }
    return true;
}

status comm_world_create(int *argc, char ***argv, struct comm **out)
{
    *out = NULL;
    if (!started_by_launcher()) {
        int tasks = environment_number("SLURM_STEP_NUM_TASKS");
        REQUIRE(
            tasks <= 1, STATUS_USAGE,
            "srun started %d tasks that do not know each other: add --mpi=pmix to srun, or start "
            "with mpirun",
            tasks);
        return comm_self_create(out);
    }
#ifdef BIREME_MPI
    return comm_mpi_world_create(argc, argv, out);
#else
    (void)argc;
    (void)argv;
    REQUIRE(
        environment_number("OMPI_COMM_WORLD_SIZE") == 1, STATUS_UNAVAILABLE,
        "started by mpirun or srun, but this bireme was built without MPI: install libopenmpi-dev "
        "and build again, or start it without a launcher");
    return comm_self_create(out);
#endif
}

status comm_destroy(struct comm **comm)
{
    return *comm == NULL ? STATUS_OK : (*comm)->operations->destroy(comm);
}

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->size;
}

int comm_local_ranks(const struct comm *comm)
{
    return comm->local_ranks;
}

int comm_local_rank(const struct comm *comm)
{
    return comm->local_rank;
}

const char *comm_kind(const struct comm *comm)
{
    return comm->operations->kind;
}

status comm_split(struct comm *comm, int colour, int key, struct comm **out)
{
    *out = NULL;
    REQUIRE(colour >= 0, STATUS_INTERNAL, "comm_split with colour %d: must not be negative",
            colour);
    return comm->operations->split(comm, colour, key, out);
}

status comm_allocate(struct comm *comm, size_t bytes, void **out)
{
    *out = NULL;
    return comm->operations->allocate(comm, bytes, out);
}

status comm_free(struct comm *comm, void *memory)
{
    return memory == NULL ? STATUS_OK : comm->operations->release(comm, memory);
}

void comm_set_deadline(struct comm *comm, double seconds)
{
    comm->deadline_seconds = seconds;
    if (comm->control != NULL) {
        comm_set_deadline(comm->control, seconds);
    }
}

/* Small data and the end of the job are not a device's matter. */
static struct comm *host_side(struct comm *comm)
{
    return comm != NULL && comm->control != NULL ? comm->control : comm;
}

/* ---- measured time ---- */

static void enter(struct comm *comm)
{
    if (comm->depth++ == 0) {
        comm->entered = clock_seconds();
        comm->exposed = comm->in_flight > 0;
    }
}

/* *seconds: what the time counts as. */
static status leave(struct comm *comm, double *seconds, status result)
{
    if (--comm->depth == 0 && comm->exposed) {
        *seconds += clock_seconds() - comm->entered;
    }
    return result;
}

void comm_work_started(struct comm *comm)
{
    comm->exposed = true;
    comm->in_flight++;
}

void comm_work_finished(struct comm *comm)
{
    comm->in_flight--;
}

void comm_take_times(struct comm *comm, struct comm_times *out)
{
    *out = comm->times;
    comm->times = (struct comm_times){0};
}

double comm_hidden_share(const struct comm_times *times)
{
    bool some = times->alone_seconds > times->exposed_seconds;
    return some ? 1 - times->exposed_seconds / times->alone_seconds : 0;
}

/* What was not rehearsed moves as what was. */
static double byte_seconds(const struct comm *comm, enum comm_collective kind)
{
    double seconds = comm->byte_seconds[kind];
    for (int other = 0; other < COMM_KINDS && seconds == 0; other++) {
        seconds = comm->byte_seconds[other];
    }
    return seconds;
}

static status rehearse_once(struct comm *comm, status (*act)(void *user), void *user, double *best)
{
    TRY(comm_barrier(comm));
    int64_t before = comm->times.bytes;
    double start = clock_seconds();
    TRY(act(user));
    while (comm->in_flight > 0) { /* a device's wait only queues */
        TRY(comm_progress(comm));
    }
    double seconds = clock_seconds() - start;
    double bytes = (double)(comm->times.bytes - before);
    *best = bytes > 0 ? fmin(*best, seconds / bytes) : *best;
    return STATUS_OK;
}

status comm_rehearse(struct comm *comm, status (*act)(void *user), void *user)
{
    enum { REHEARSALS = 3 };
    struct comm_times times = comm->times;
    double best = INFINITY;
    for (int i = 0; i < REHEARSALS && comm->size > 1; i++) {
        TRY(rehearse_once(comm, act, user, &best));
    }
    comm->times = times;
    if (isfinite(best)) {
        comm->byte_seconds[comm->newest] = best;
    }
    return STATUS_OK;
}

/* ---- collectives on small data ---- */

static status exchange(struct comm *comm, void *all, const void *mine, size_t bytes)
{
    if (comm->size == 1) {
        memcpy(all, mine, bytes);
        return STATUS_OK;
    }
    enter(comm);
    comm_work_started(comm);
    struct comm *host = host_side(comm);
    status result = host->operations->exchange(host, all, mine, bytes);
    comm_work_finished(comm);
    comm->times.bytes += (int64_t)bytes;
    return leave(comm, &comm->times.small_seconds, result);
}

status comm_barrier(struct comm *comm)
{
    return exchange(comm, comm->small, "", 1);
}

status comm_all_gather_bytes(struct comm *comm, void *all, const void *mine, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < COMM_SMALL_BYTES ? bytes - done : COMM_SMALL_BYTES;
        TRY(exchange(comm, comm->small, (const char *)mine + done, piece));
        for (int r = 0; r < comm->size; r++) {
            memcpy((char *)all + (size_t)r * bytes + done, comm->small + (size_t)r * piece, piece);
        }
        done += piece;
    }
    return STATUS_OK;
}

status comm_sum_doubles(struct comm *comm, double *data, int64_t count)
{
    const int64_t limit = (int64_t)(COMM_SMALL_BYTES / sizeof *data);
    for (int64_t done = 0; done < count && comm->size > 1;) {
        int64_t piece = count - done < limit ? count - done : limit;
        TRY(exchange(comm, comm->small, data + done, (size_t)piece * sizeof *data));
        const double *all = (const double *)(const void *)comm->small;
        for (int64_t i = 0; i < piece; i++) {
            double sum = all[i];
            for (int r = 1; r < comm->size; r++) {
                sum += all[r * piece + i];
            }
            data[done + i] = sum;
        }
        done += piece;
    }
    return STATUS_OK;
}

/* Digits of 40 bits: their sums over 8,192 ranks are exact in doubles. */
status comm_sum_exact(struct comm *comm, struct exact_sum *sums, int count)
{
    enum { WORDS = EXACT_DIGITS + 1, AT_ONCE = COMM_SMALL_BYTES / sizeof(double) / WORDS };
    double words[AT_ONCE * WORDS];
    for (int done = 0; done < count && comm->size > 1; done += AT_ONCE) {
        int piece = count - done < AT_ONCE ? count - done : AT_ONCE;
        for (int i = 0; i < piece * WORDS; i++) {
            struct exact_sum *sum = &sums[done + i / WORDS];
            int digit = i % WORDS;
            if (digit == 0) {
                exact_carry(sum);
            }
            words[i] = digit < EXACT_DIGITS ? (double)sum->digits[digit] : sum->beyond;
        }
        TRY(comm_sum_doubles(comm, words, (int64_t)piece * WORDS));
        for (int i = 0; i < piece * WORDS; i++) {
            struct exact_sum *sum = &sums[done + i / WORDS];
            int digit = i % WORDS;
            if (digit < EXACT_DIGITS) {
                sum->digits[digit] = (int64_t)words[i];
            } else {
                sum->beyond = words[i];
            }
        }
    }
    return STATUS_OK;
}

/* ---- collectives on large data ---- */

/* What a ring would send: everything but this rank's own part, once for a sum, once for a spread. */
static int64_t bytes_sent(const struct comm *comm, const struct comm_work *work)
{
    int64_t count = 0;
    switch (work->kind) {
    case COMM_ALL_REDUCE:
        count = 2 * (work->count - work->count / comm->size);
        break;
    case COMM_BROADCAST:
        count = work->root == comm->rank ? work->count : 0;
        break;
    case COMM_ADD:
        if (comm->rank >= work->addition.addends) {
            break;
        } /* fall through */
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
        for (int r = 0; r < comm->size; r++) {
            count += r == comm->rank ? 0 : work->ranges[r].count;
        }
        break;
    }
    return count * (int64_t)work->element_bytes;
}

static status start(struct comm *comm, const struct comm_work *work, struct comm_request **out)
{
    *out = NULL;
    if (comm->size == 1) {
        return STATUS_OK;
    }
    enter(comm);
    int64_t bytes = bytes_sent(comm, work);
    comm->newest = work->kind;
    comm->times.bytes += bytes;
    comm->times.alone_seconds += (double)bytes * byte_seconds(comm, work->kind);
    return leave(comm, &comm->times.exposed_seconds, comm->operations->start(comm, work, out));
}

static status check_ranges(const struct comm *comm, const struct range *ranges)
{
    for (int r = 0; r < comm->size; r++) {
        REQUIRE(ranges[r].first >= 0 && ranges[r].count >= 0, STATUS_INTERNAL,
                "range of rank %d: first %lld, count %lld: must not be negative", r,
                (long long)ranges[r].first, (long long)ranges[r].count);
    }
    return STATUS_OK;
}

status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root)
{
    REQUIRE(root >= 0 && root < comm->size, STATUS_INTERNAL, "broadcast from rank %d of %d", root,
            comm->size);
    struct comm_work work = {.kind = COMM_BROADCAST,
                             .data = data,
                             .element_bytes = 1,
                             .count = (int64_t)bytes,
                             .root = root};
    struct comm_request *request = NULL;
    TRY(start(comm, &work, &request));
    return comm_wait(comm, &request);
}

status comm_all_reduce(struct comm *comm, float *data, int64_t count)
{
    struct comm_request *request = NULL;
    TRY(comm_all_reduce_start(comm, data, count, &request));
    return comm_wait(comm, &request);
}

static status all_reduce_start(struct comm *comm, void *data, size_t unit, int64_t count,
                               struct comm_request **out)
{
    *out = NULL;
    REQUIRE(count >= 0, STATUS_INTERNAL, "all-reduce of %lld elements", (long long)count);
    struct comm_work work = {
        .kind = COMM_ALL_REDUCE, .data = data, .element_bytes = unit, .count = count};
    return start(comm, &work, out);
}

static status reduce_scatter_start(struct comm *comm, void *data, size_t unit,
                                   const struct range *ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    struct comm_work work = {
        .kind = COMM_REDUCE_SCATTER, .data = data, .element_bytes = unit, .ranges = ranges};
    return start(comm, &work, out);
}

status comm_all_reduce_start(struct comm *comm, float *data, int64_t count,
                             struct comm_request **out)
{
    return all_reduce_start(comm, data, sizeof *data, count, out);
}

status comm_all_reduce_bf16_start(struct comm *comm, bf16 *data, int64_t count,
                                  struct comm_request **out)
{
    return all_reduce_start(comm, data, sizeof *data, count, out);
}

status comm_reduce_scatter_start(struct comm *comm, float *data, const struct range *ranges,
                                 struct comm_request **out)
{
    return reduce_scatter_start(comm, data, sizeof *data, ranges, out);
}

status comm_reduce_scatter_bf16_start(struct comm *comm, bf16 *data, const struct range *ranges,
                                      struct comm_request **out)
{
    return reduce_scatter_start(comm, data, sizeof *data, ranges, out);
}

status comm_add_start(struct comm *comm, const struct comm_addition *addition, float *data,
                      const struct range *ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    REQUIRE(addition->addends >= 0 && addition->addends <= comm->size, STATUS_INTERNAL,
            "%d of %d ranks add", addition->addends, comm->size);
    REQUIRE(comm->operations->adds, STATUS_UNAVAILABLE,
            "sums in a fixed order are made in host memory alone, not by %s: use "
            "parallel.reproducible=false, or train.device=cpu",
            comm->operations->kind);
    struct comm_work work = {.kind = COMM_ADD,
                             .data = (char *)data,
                             .element_bytes = sizeof *data,
                             .ranges = ranges,
                             .addition = *addition};
    if (comm->size == 1) {
        char *own = (char *)(data + ranges[0].first);
        sum_in_order(addition->sums, addition->fresh, &own, addition->addends, ranges[0].count);
    }
    return start(comm, &work, out);
}

status comm_all_gather_start(struct comm *comm, void *data, size_t element_bytes,
                             const struct range *ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    struct comm_work work = {
        .kind = COMM_ALL_GATHER, .data = data, .element_bytes = element_bytes, .ranges = ranges};
    return start(comm, &work, out);
}

status comm_lend_start(struct comm *comm, void *data, size_t element_bytes,
                       const struct range *ranges, void *lent, const struct range *places,
                       struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    TRY(check_ranges(comm, places));
    struct comm_work work = {.kind = COMM_ALL_GATHER,
                             .data = data,
                             .element_bytes = element_bytes,
                             .ranges = ranges,
                             .lent = comm->operations->fetch != NULL ? lent : NULL,
                             .places = places};
    return start(comm, &work, out);
}

status comm_fetch(struct comm *comm, struct comm_request **request)
{
    if (*request == NULL || comm->operations->fetch == NULL) {
        return comm_wait(comm, request);
    }
    enter(comm);
    return leave(comm, &comm->times.exposed_seconds, comm->operations->fetch(comm, *request));
}

status comm_progress(struct comm *comm)
{
    if (comm->in_flight == 0) {
        return STATUS_OK;
    }
    enter(comm);
    return leave(comm, &comm->times.exposed_seconds, comm->operations->progress(comm));
}

status comm_wait(struct comm *comm, struct comm_request **request)
{
    if (*request == NULL) {
        return STATUS_OK;
    }
    enter(comm);
    return leave(comm, &comm->times.exposed_seconds, comm->operations->wait(comm, request));
}

/* ---- errors and the end ---- */

status comm_agree(struct comm *comm, status mine)
{
    if (mine == STATUS_OK) {
        status_clear();
    } else if (status_pending()->code == STATUS_OK) {
        status_raise(mine, __FILE__, __LINE__, "failed without telling why (code %d)", (int)mine);
    }
    int32_t code = (int32_t)mine;
    TRY(exchange(comm, comm->small, &code, sizeof code));
    const int32_t *codes = (const int32_t *)(const void *)comm->small;
    int first = 0;
    while (first < comm->size && codes[first] == STATUS_OK) {
        first++;
    }
    if (first == comm->size) {
        return STATUS_OK;
    }
    status verdict = (status)codes[first];
    if (first == comm->rank) {
        status_print();
    }
    status_clear();
    TRY(comm_barrier(comm)); /* nobody ends the job before the line is out */
    return verdict;
}

status comm_agree_flag(struct comm *comm, bool mine, bool *any)
{
    char flag = mine;
    *any = false;
    TRY(exchange(comm, comm->small, &flag, sizeof flag));
    for (int r = 0; r < comm->size; r++) {
        *any = *any || comm->small[r] != 0;
    }
    return STATUS_OK;
}

/* "0, 3" of the ranks whose text equals (or does not equal) rank 0's. */
static void list_ranks(const struct comm *comm, const char *texts, bool equal, char *out,
                       size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int r = 0; r < comm->size && used + 16 < bytes; r++) {
        bool same = memcmp(texts, texts + (size_t)r * COMM_CHECK_BYTES, COMM_CHECK_BYTES) == 0;
        if (same == equal) {
            used += (size_t)snprintf(out + used, bytes - used, "%s%d", used > 0 ? ", " : "", r);
        }
    }
}

status comm_check_equal(struct comm *comm, const char *what, const char *value)
{
    char mine[COMM_CHECK_BYTES] = "";
    snprintf(mine, sizeof mine, "%s", value);
    TRY(exchange(comm, comm->small, mine, sizeof mine));
    char same[256];
    char other[256];
    list_ranks(comm, comm->small, true, same, sizeof same);
    list_ranks(comm, comm->small, false, other, sizeof other);
    if (other[0] == '\0') {
        return STATUS_OK;
    }
    int example = (int)strtol(other, NULL, 10);
    RAISE(STATUS_RECIPE,
          "the %s differs between ranks: ranks %s have %.16s, ranks %s do not (rank %d has %.16s): "
          "start every rank with the same files and the same program",
          what, same, comm->small, other, example,
          comm->small + (size_t)example * COMM_CHECK_BYTES);
}

/* The last line goes past stdio: another thread may hold its lock for ever. */
static void tell(const struct status_note *note)
{
    char line[STATUS_TEXT_BYTES + 256];
    status_format(note, line, (int)sizeof line - 1);
    size_t length = strlen(line);
    line[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t written = write(STDERR_FILENO, line + done, length - done);
        if (written <= 0) {
            return;
        }
        done += (size_t)written;
    }
}

static void flush_results(void)
{
    if (ftrylockfile(stdout) == 0) {
        fflush(stdout);
        funlockfile(stdout);
    }
}

static void (*_Atomic before_end)(void);

void comm_before_end(void (*act)(void))
{
    atomic_store(&before_end, act);
}

_Noreturn void comm_end(const struct comm_operations *operations, status code,
                        const struct status_note *note)
{
    int exit_code = (int)code > 0 && (int)code <= LAST_CODE ? (int)code : (int)STATUS_INTERNAL;
    signal(SIGALRM, SIG_DFL);
    alarm(END_LIMIT_SECONDS);
    if (heartbeat_claim_end()) {
        if (note->code != STATUS_OK) {
            tell(note);
        }
        clock_sleep(FORWARD_SECONDS);
    } else {
        clock_sleep(END_PATIENCE_SECONDS);
    }
    flush_results();
    void (*act)(void) = atomic_load(&before_end);
    if (act != NULL) {
        act();
    }
    if (operations != NULL) {
        operations->end(exit_code);
    }
    _exit(exit_code);
}

_Noreturn void comm_abort(struct comm *comm, status code)
{
    struct status_note note;
    status_take(&note);
    comm_end(comm == NULL ? NULL : host_side(comm)->operations, code, &note);
}
