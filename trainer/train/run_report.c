#include "trainer/train/run_report.h"

#include "base/clock.h"
#include "base/log.h"
#include "trainer/logging/report/report.h"

static const double share_of_time = 0.01;

void run_report_write(struct run_report *r, const struct job *job, bool last)
{
    const struct recipe *recipe = &job->session.recipe;
    double start = clock_seconds();
    bool early = start - r->end_seconds < r->duration_seconds / share_of_time;
    if (job->metrics == NULL || !recipe->log.report || (early && !last)) {
        return;
    }
    struct status_note pending;
    status_take(&pending);
    if (report_write_run(recipe->run_dir) != STATUS_OK) {
        log_warning("REPORT", "report.html is not written: %s", status_pending()->text);
        status_clear();
    }
    (void)status_restore(&pending);
    r->end_seconds = clock_seconds();
    r->duration_seconds = r->end_seconds - start;
}
