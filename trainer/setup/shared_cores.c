#include "trainer/setup/shared_cores.h"

#include "base/clock.h"
#include "base/log.h"

/* Next to one busy program per core, a thread waits for about half of its time. Without other
 * programs it hardly waits. */
static const double wait_limit = 0.2, interval_seconds = 5;
enum { INTERVALS_IN_A_ROW = 2 };

void shared_cores_check(struct shared_cores *s, const char *root, int threads, double now_seconds)
{
    if (s->warned || threads <= 1 ||
        (s->measured && now_seconds - s->measured_seconds < interval_seconds)) {
        return;
    }
    double share = core_waits_measure(&s->waits, root, threads);
    /* The first measurement also contains the start of the run. */
    s->slow_intervals = s->measured && share > wait_limit ? s->slow_intervals + 1 : 0;
    s->measured = true;
    s->measured_seconds = now_seconds;
    if (s->slow_intervals < INTERVALS_IN_A_ROW) {
        return;
    }
    s->warned = true;
    log_warning(
        "SHARED-CORES",
        "a compute thread of rank 0 waits for a core for %.0f %% of its time, because other "
        "programs or ranks use the cores; fewer threads may be faster (now %d): set "
        "parallel.threads=1",
        100 * share, threads);
}

void shared_cores_watch(struct shared_cores *s, const struct session *session)
{
    if (device_is_host(session->device)) {
        shared_cores_check(s, "", kernels_threads(session->kernels), clock_seconds());
    }
}
