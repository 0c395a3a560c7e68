#include "comm/straggler.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define SLOW_RATIO 2.0
#define PATIENT_CHECKS 3

struct report {
    double busy_seconds, rows;
    char host[64];
};

static struct {
    int rank;   /* the slowest one at the last check; -1: none was slow */
    int checks; /* how many times in a row */
} slow = {.rank = -1};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle one; of two middle ones the lower, so that of two ranks the faster is the measure. */
static double median(const struct report *reports, int count, double *scratch)
{
    for (int r = 0; r < count; r++) {
        scratch[r] = reports[r].busy_seconds;
    }
    qsort(scratch, (size_t)count, sizeof *scratch, by_value);
    return scratch[(count - 1) / 2];
}

static void judge(const struct report *reports, int count, double usual)
{
    int slowest = 0;
    double rows = 0;
    for (int r = 0; r < count; r++) {
        slowest = reports[r].busy_seconds > reports[slowest].busy_seconds ? r : slowest;
        rows += reports[r].rows;
    }
    double share = rows > 0 ? reports[slowest].rows * count / rows : 1;
    double most = SLOW_RATIO * (share > 1 ? share : 1) * usual;
    bool is_slow = usual > 0 && reports[slowest].busy_seconds > most;
    slow.checks = !is_slow ? 0 : slowest == slow.rank ? slow.checks + 1 : 1;
    slow.rank = is_slow ? slowest : -1;
    if (slow.checks == PATIENT_CHECKS) {
        log_warning(
            "SLOW",
            "rank %d host %s needs %.1f times as long as the other ranks for its work, which "
            "all wait for: see what else runs there",
            slowest, reports[slowest].host, reports[slowest].busy_seconds / usual);
    }
}

status straggler_check(struct comm *comm, double busy_seconds, int64_t rows)
{
    int count = comm_size(comm);
    struct report mine = {.busy_seconds = busy_seconds, .rows = (double)rows};
    if (gethostname(mine.host, sizeof mine.host - 1) != 0) {
        mine.host[0] = '?';
    }
    struct report *reports = calloc((size_t)count, sizeof *reports);
    double *scratch = calloc((size_t)count, sizeof *scratch);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, out, reports != NULL && scratch != NULL, STATUS_INTERNAL,
                 "out of memory: the speeds of %d ranks", count);
    TRY_GOTO(result, out, comm_all_gather_bytes(comm, reports, &mine, sizeof mine));
    if (comm_rank(comm) == 0) {
        judge(reports, count, median(reports, count, scratch));
    }
out:
    free(scratch);
    free(reports);
    return result;
}
