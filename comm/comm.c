/* The interface of every communicator. It checks arguments, handles groups of one rank and measures
 * time. The collectives on small data all use one exchange operation. */
#include "base/memory.h"
#include "base/number.h"
#include "comm/comm_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "comm/sum.h"

/* ---- creation and destruction ---- */

status comm_create(const struct comm_operations *operations, int rank, int size, void *state,
                   struct comm **out)
{
    *out = NULL;
    struct comm *comm = NULL;
    char *exchange_buffer = NULL;
    TRY(ALLOCATE(exchange_buffer, (size_t)size * COMM_SMALL_BYTES, "a communicator"));
    status result = ALLOCATE(comm, 1, "a communicator");
    if (result != STATUS_OK) {
        free(exchange_buffer);
        return result;
    }
    *comm = (struct comm){.operations = operations,
                          .state = state,
                          .rank = rank,
                          .size = size,
                          .local_size = 1,
                          .deadline_seconds = DEADLINE_COLLECTIVE_SECONDS,
                          .exchange_buffer = exchange_buffer};
    *out = comm;
    return STATUS_OK;
}

status comm_create_over_control(const struct comm_operations *operations, struct comm *control,
                                void *state, struct comm **out)
{
    TRY(comm_create(operations, control->rank, control->size, state, out));
    (*out)->control = control;
    (*out)->local_rank = control->local_rank;
    (*out)->local_size = control->local_size;
    (*out)->deadline_seconds = control->deadline_seconds;
    return STATUS_OK;
}

void comm_release(struct comm **comm)
{
    if (*comm != NULL) {
        free((*comm)->exchange_buffer);
        free(*comm);
        *comm = NULL;
    }
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

int comm_local_size(const struct comm *comm)
{
    return comm->local_size;
}

int comm_local_rank(const struct comm *comm)
{
    return comm->local_rank;
}

const char *comm_kind(const struct comm *comm)
{
    return comm->operations->kind;
}

status comm_split(struct comm *comm, int color, int key, struct comm **out)
{
    *out = NULL;
    REQUIRE(color >= 0, STATUS_INTERNAL, "comm_split with color %d: must not be negative", color);
    return comm->operations->split(comm, color, key, out);
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

struct comm *comm_get_host(struct comm *comm)
{
    return comm != NULL && comm->control != NULL ? comm->control : comm;
}

/* ---- measured time ---- */

static void begin_timing(struct comm *comm)
{
    if (comm->call_depth++ == 0) {
        comm->entered_seconds = clock_seconds();
        comm->exposed = comm->in_flight > 0;
    }
}

/* Adds the time of the outermost call to *seconds. */
static status end_timing(struct comm *comm, double *seconds, status result)
{
    if (--comm->call_depth == 0 && comm->exposed) {
        *seconds += clock_seconds() - comm->entered_seconds;
    }
    return result;
}

/* Ends a call for a large collective. If the computing stream waits instead of the host, the time
 * of the call does not count. */
static status end_large(struct comm *comm, status result)
{
    double queueing_seconds = 0;
    return end_timing(
        comm, comm->waits_on_device ? &queueing_seconds : &comm->times.exposed_seconds, result);
}

static status read_waits(struct comm *comm, bool discard)
{
    return comm->waits_on_device ? comm->operations->read_waits(comm, discard) : STATUS_OK;
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
    if (read_waits(comm, false) != STATUS_OK) {
        status_clear(); /* the next call of the device fails too and reports it */
    }
    *out = comm->times;
    comm->times = (struct comm_times){0};
}

double comm_hidden_share(const struct comm_times *times)
{
    bool is_hidden = times->alone_seconds > times->exposed_seconds;
    return is_hidden ? 1 - times->exposed_seconds / times->alone_seconds : 0;
}

/* Returns the rate of a kind of collective. A kind without a measured rate uses the rate of
 * another kind. */
static double get_seconds_per_byte(const struct comm *comm, enum comm_collective kind)
{
    double seconds = comm->seconds_per_byte[kind];
    for (int other = 0; other < COMM_COLLECTIVES && seconds == 0; other++) {
        seconds = comm->seconds_per_byte[other];
    }
    return seconds;
}

static status calibrate_once(struct comm *comm, status (*run)(void *user), void *user, double *best)
{
    TRY(comm_barrier(comm));
    int64_t before = comm->times.bytes;
    double start = clock_seconds();
    TRY(run(user));
    while (comm->in_flight > 0) { /* a device communicator's wait only queues work */
        TRY(comm_progress(comm));
    }
    double seconds = clock_seconds() - start;
    double bytes = (double)(comm->times.bytes - before);
    *best = bytes > 0 ? fmin(*best, seconds / bytes) : *best;
    return STATUS_OK;
}

status comm_calibrate(struct comm *comm, status (*run)(void *user), void *user)
{
    enum { CALIBRATIONS = 3 };
    struct comm_times times = comm->times;
    double best = INFINITY;
    for (int i = 0; i < CALIBRATIONS && comm->size > 1; i++) {
        TRY(calibrate_once(comm, run, user, &best));
    }
    TRY(read_waits(comm, true));
    comm->times = times;
    if (isfinite(best)) {
        comm->seconds_per_byte[comm->last_kind] = best;
    }
    return STATUS_OK;
}

/* ---- collectives on small data ---- */

static status exchange_small(struct comm *comm, void *all, const void *own, size_t bytes)
{
    if (comm->size == 1) {
        memcpy(all, own, bytes);
        return STATUS_OK;
    }
    begin_timing(comm);
    comm_work_started(comm);
    struct comm *host_comm = comm_get_host(comm);
    status result = host_comm->operations->exchange(host_comm, all, own, bytes);
    comm_work_finished(comm);
    comm->times.bytes += (int64_t)bytes;
    return end_timing(comm, &comm->times.small_seconds, result);
}

status comm_barrier(struct comm *comm)
{
    return exchange_small(comm, comm->exchange_buffer, "", 1);
}

status comm_all_gather_bytes(struct comm *comm, void *all, const void *own, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t chunk = bytes - done < COMM_SMALL_BYTES ? bytes - done : COMM_SMALL_BYTES;
        TRY(exchange_small(comm, comm->exchange_buffer, (const char *)own + done, chunk));
        for (int r = 0; r < comm->size; r++) {
            memcpy((char *)all + (size_t)r * bytes + done,
                   comm->exchange_buffer + (size_t)r * chunk, chunk);
        }
        done += chunk;
    }
    return STATUS_OK;
}

status comm_sum_doubles(struct comm *comm, double *data, int64_t count)
{
    const int64_t limit = (int64_t)(COMM_SMALL_BYTES / sizeof *data);
    for (int64_t done = 0; done < count && comm->size > 1;) {
        int64_t chunk = number_min(count - done, limit);
        TRY(exchange_small(comm, comm->exchange_buffer, data + done, (size_t)chunk * sizeof *data));
        const double *all = (const double *)(const void *)comm->exchange_buffer;
        for (int64_t i = 0; i < chunk; i++) {
            double sum = all[i];
            for (int r = 1; r < comm->size; r++) {
                sum += all[r * chunk + i];
            }
            data[done + i] = sum;
        }
        done += chunk;
    }
    return STATUS_OK;
}

/* The digits have 40 bits: their sums over 8,192 ranks are exact in doubles. */
status comm_sum_exact(struct comm *comm, struct exact_sum *sums, int count)
{
    enum { WORDS = EXACT_DIGITS + 1, PER_CHUNK = COMM_SMALL_BYTES / sizeof(double) / WORDS };
    double words[PER_CHUNK * WORDS];
    for (int done = 0; done < count && comm->size > 1; done += PER_CHUNK) {
        int chunk = count - done < PER_CHUNK ? count - done : PER_CHUNK;
        for (int i = 0; i < chunk * WORDS; i++) {
            struct exact_sum *sum = &sums[done + i / WORDS];
            int digit = i % WORDS;
            if (digit == 0) {
                exact_carry(sum);
            }
            words[i] = digit < EXACT_DIGITS ? (double)sum->digits[digit] : sum->overflow;
        }
        TRY(comm_sum_doubles(comm, words, (int64_t)chunk * WORDS));
        for (int i = 0; i < chunk * WORDS; i++) {
            struct exact_sum *sum = &sums[done + i / WORDS];
            int digit = i % WORDS;
            if (digit < EXACT_DIGITS) {
                sum->digits[digit] = (int64_t)words[i];
            } else {
                sum->overflow = words[i];
            }
        }
    }
    return STATUS_OK;
}

/* ---- collectives on large data ---- */

/* Returns the bytes that a ring algorithm sends: all except the bytes of this rank's range, once
 * for reduce-scatter and once for all-gather. */
static int64_t count_sent_bytes(const struct comm *comm, const struct comm_work *work)
{
    int64_t count = 0;
    switch (work->kind) {
    case COMM_ALL_REDUCE:
        count = 2 * (work->count - work->count / comm->size);
        break;
    case COMM_BROADCAST:
        count = work->root == comm->rank ? work->count : 0;
        break;
    case COMM_ACCUMULATE:
        if (comm->rank >= work->accumulation.contributors) {
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

static status start_work(struct comm *comm, const struct comm_work *work, struct comm_request **out)
{
    *out = NULL;
    if (comm->size == 1) {
        return STATUS_OK;
    }
    begin_timing(comm);
    int64_t bytes = count_sent_bytes(comm, work);
    comm->last_kind = work->kind;
    comm->times.bytes += bytes;
    comm->times.alone_seconds += (double)bytes * get_seconds_per_byte(comm, work->kind);
    /* the other ranks have started it too and would wait for this rank */
    return end_large(comm, comm_abort_on_error(comm, comm->operations->start(comm, work, out)));
}

static status check_ranges(const struct comm *comm, const struct comm_range *ranges)
{
    for (int r = 0; r < comm->size; r++) {
        REQUIRE(ranges[r].first >= 0 && ranges[r].count >= 0, STATUS_INTERNAL,
                "range of rank %d: first %" PRId64 ", count %" PRId64 ": must not be negative", r,
                ranges[r].first, ranges[r].count);
    }
    return STATUS_OK;
}

status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root)
{
    REQUIRE(root >= 0 && root < comm->size, STATUS_INTERNAL,
            "broadcast from rank %d; must be 0 to %d", root, comm->size - 1);
    struct comm_work work = {.kind = COMM_BROADCAST,
                             .data = data,
                             .element_bytes = 1,
                             .count = (int64_t)bytes,
                             .root = root};
    struct comm_request *request = NULL;
    TRY(start_work(comm, &work, &request));
    return comm_wait(comm, &request);
}

status comm_all_reduce(struct comm *comm, float *data, int64_t count)
{
    struct comm_request *request = NULL;
    TRY(comm_all_reduce_start(comm, data, count, &request));
    return comm_wait(comm, &request);
}

static status start_all_reduce(struct comm *comm, void *data, size_t element_bytes, int64_t count,
                               struct comm_request **out)
{
    *out = NULL;
    REQUIRE(count >= 0, STATUS_INTERNAL, "all-reduce of %" PRId64 " elements; must be at least 0",
            count);
    struct comm_work work = {
        .kind = COMM_ALL_REDUCE, .data = data, .element_bytes = element_bytes, .count = count};
    return start_work(comm, &work, out);
}

static status start_reduce_scatter(struct comm *comm, void *data, size_t element_bytes,
                                   const struct comm_range *ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    struct comm_work work = {.kind = COMM_REDUCE_SCATTER,
                             .data = data,
                             .element_bytes = element_bytes,
                             .ranges = ranges};
    return start_work(comm, &work, out);
}

status comm_all_reduce_start(struct comm *comm, float *data, int64_t count,
                             struct comm_request **out)
{
    return start_all_reduce(comm, data, sizeof *data, count, out);
}

status comm_all_reduce_bf16_start(struct comm *comm, bf16 *data, int64_t count,
                                  struct comm_request **out)
{
    return start_all_reduce(comm, data, sizeof *data, count, out);
}

status comm_reduce_scatter_start(struct comm *comm, float *data, const struct comm_range *ranges,
                                 struct comm_request **out)
{
    return start_reduce_scatter(comm, data, sizeof *data, ranges, out);
}

status comm_reduce_scatter_bf16_start(struct comm *comm, bf16 *data,
                                      const struct comm_range *ranges, struct comm_request **out)
{
    return start_reduce_scatter(comm, data, sizeof *data, ranges, out);
}

status comm_accumulate_start(struct comm *comm, const struct comm_accumulation *accumulation,
                             float *data, const struct comm_range *ranges,
                             struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    REQUIRE(accumulation->contributors >= 0 && accumulation->contributors <= comm->size,
            STATUS_INTERNAL, "ordered sum of %d ranks; must be 0 to %d", accumulation->contributors,
            comm->size);
    REQUIRE(comm->operations->can_accumulate, STATUS_UNAVAILABLE,
            "the %s communicator does not support ordered sums, only host memory does: set "
            "parallel.reproducible=false or train.device=cpu",
            comm->operations->kind);
    struct comm_work work = {.kind = COMM_ACCUMULATE,
                             .data = (char *)data,
                             .element_bytes = sizeof *data,
                             .ranges = ranges,
                             .accumulation = *accumulation};
    if (comm->size == 1) {
        char *own = (char *)(data + ranges[0].first);
        sum_accumulate(accumulation->sums, accumulation->overwrite, &own,
                       accumulation->contributors, ranges[0].count);
    }
    return start_work(comm, &work, out);
}

status comm_all_gather_start(struct comm *comm, void *data, size_t element_bytes,
                             const struct comm_range *ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    struct comm_work work = {
        .kind = COMM_ALL_GATHER, .data = data, .element_bytes = element_bytes, .ranges = ranges};
    return start_work(comm, &work, out);
}

status comm_lazy_gather_start(struct comm *comm, void *data, size_t element_bytes,
                              const struct comm_range *ranges, void *shared_source,
                              const struct comm_range *source_ranges, struct comm_request **out)
{
    *out = NULL;
    TRY(check_ranges(comm, ranges));
    TRY(check_ranges(comm, source_ranges));
    struct comm_work work = {.kind = COMM_ALL_GATHER,
                             .data = data,
                             .element_bytes = element_bytes,
                             .ranges = ranges,
                             .shared_source =
                                 comm->operations->gather_pull != NULL ? shared_source : NULL,
                             .source_ranges = source_ranges};
    return start_work(comm, &work, out);
}

status comm_gather_pull(struct comm *comm, struct comm_request **request)
{
    if (*request == NULL || comm->operations->gather_pull == NULL) {
        return comm_wait(comm, request);
    }
    begin_timing(comm);
    return end_large(comm, comm->operations->gather_pull(comm, *request));
}

status comm_progress(struct comm *comm)
{
    if (comm->in_flight == 0) {
        return STATUS_OK;
    }
    begin_timing(comm);
    return end_large(comm, comm->operations->progress(comm));
}

status comm_wait(struct comm *comm, struct comm_request **request)
{
    if (*request == NULL) {
        return STATUS_OK;
    }
    begin_timing(comm);
    return end_large(comm, comm->operations->wait(comm, request));
}

/* ---- agreement on errors ---- */

status comm_agree(struct comm *comm, status own)
{
    if (own == STATUS_OK) {
        status_clear();
    } else if (status_pending()->code == STATUS_OK) {
        RAISE_STATUS(own, "failed without an error message (code %d)", (int)own);
    }
    int32_t code = (int32_t)own;
    TRY(exchange_small(comm, comm->exchange_buffer, &code, sizeof code));
    const int32_t *codes = (const int32_t *)(const void *)comm->exchange_buffer;
    int first = 0;
    for (; codes[first] == STATUS_OK; first++) {
        if (first == comm->size - 1) {
            return STATUS_OK;
        }
    }
    status agreed = (status)codes[first];
    if (first == comm->rank) {
        status_print();
    }
    status_clear();
    TRY(comm_barrier(comm)); /* no rank ends the job before the line is printed */
    return agreed;
}

status comm_agree_flag(struct comm *comm, bool own, bool *any)
{
    char flag = own;
    *any = false;
    TRY(exchange_small(comm, comm->exchange_buffer, &flag, sizeof flag));
    for (int r = 0; r < comm->size; r++) {
        *any = *any || comm->exchange_buffer[r] != 0;
    }
    return STATUS_OK;
}

/* Lists the ranks with (or without) the text of rank 0, as "0, 3". */
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

status comm_check_equal(struct comm *comm, const char *name, const char *value)
{
    char own[COMM_CHECK_BYTES] = "";
    snprintf(own, sizeof own, "%s", value);
    TRY(exchange_small(comm, comm->exchange_buffer, own, sizeof own));
    char same[256], other[256];
    list_ranks(comm, comm->exchange_buffer, true, same, sizeof same);
    list_ranks(comm, comm->exchange_buffer, false, other, sizeof other);
    if (other[0] == '\0') {
        return STATUS_OK;
    }
    int example = (int)strtol(other, NULL, 10);
    RAISE(STATUS_RECIPE,
          "%s differs between ranks: ranks %s have %.16s, ranks %s do not (rank %d has %.16s): "
          "start every rank with the same files and the same program",
          name, same, comm->exchange_buffer, other, example,
          comm->exchange_buffer + (size_t)example * COMM_CHECK_BYTES);
}
