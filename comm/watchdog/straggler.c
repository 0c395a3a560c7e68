#include "comm/watchdog/straggler.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"

#define SLOW_RATIO 2.0
#define SLOW_CHECKS 3

struct rank_report {
    double busy_seconds, rows;
    char host[64];
};

static struct {
    int rank;        /* the slowest rank of the last check; -1: no rank was slow */
    int consecutive; /* checks in a row with this rank */
} slow = {.rank = -1};

/* Returns the median. With an even count it is the lower of the two middle values. With two ranks,
 * the faster one is therefore the reference. */
static double compute_median(const struct rank_report *reports, int count, double *sorted)
{
    for (int r = 0; r < count; r++) {
        sorted[r] = reports[r].busy_seconds;
    }
    number_sort(sorted, count);
    return sorted[(count - 1) / 2];
}

static void check_slowest(const struct rank_report *reports, int count, double median_seconds)
{
    int slowest = 0;
    double rows = 0;
    for (int r = 0; r < count; r++) {
        slowest = reports[r].busy_seconds > reports[slowest].busy_seconds ? r : slowest;
        rows += reports[r].rows;
    }
    double load = rows > 0 ? reports[slowest].rows * count / rows : 1;
    double limit_seconds = SLOW_RATIO * (load > 1 ? load : 1) * median_seconds;
    bool is_slow = median_seconds > 0 && reports[slowest].busy_seconds > limit_seconds;
    slow.consecutive = !is_slow ? 0 : slowest == slow.rank ? slow.consecutive + 1 : 1;
    slow.rank = is_slow ? slowest : -1;
    if (slow.consecutive == SLOW_CHECKS) {
        log_warning("SLOW",
                    "rank %d on host %s takes %.1f times as long as the other ranks, and all ranks "
                    "wait for it: check what else runs on that host",
                    slowest, reports[slowest].host, reports[slowest].busy_seconds / median_seconds);
    }
}

status straggler_check(struct comm *comm, double busy_seconds, int64_t rows)
{
    int count = comm_size(comm);
    struct rank_report own = {.busy_seconds = busy_seconds, .rows = (double)rows};
    if (gethostname(own.host, sizeof own.host - 1) != 0) {
        own.host[0] = '?';
    }
    struct rank_report *reports = NULL;
    double *sorted = NULL;
    status result = ALLOCATE(reports, count, "the timings of the ranks");
    KEEP_FIRST(result, ALLOCATE(sorted, count, "the timings of the ranks"));
    TRY_GOTO(result, out, comm_abort_on_error(comm, result));
    TRY_GOTO(result, out, comm_all_gather_bytes(comm, reports, &own, sizeof own));
    if (comm_rank(comm) == 0) {
        check_slowest(reports, count, compute_median(reports, count, sorted));
    }
out:
    free(sorted);
    free(reports);
    return result;
}
