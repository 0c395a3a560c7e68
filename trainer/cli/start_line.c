#include "trainer/cli/start_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "build_info.h"
#include "comm/shared/space.h"
#include "trainer/setup/derive.h"
#include "trainer/train/planner/plan.h"

enum { OTHER_FIELDS = 14 }; /* fields of a start line, without the kinds of memory */

/* Reads the model name of the first core from /proc/cpuinfo; "" if the file has none. */
static void read_processor(char *text, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    text[0] = '\0';
    while (file != NULL && text[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", strlen("model name")) == 0 && colon != NULL) {
            snprintf(text, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* Writes the ranks, how they divide the work, and their threads: "4 ranks (tensor 2 x data 2), 1
 * thread each". */
static void format_layout(const struct job *job, char *text, size_t bytes)
{
    const struct session *s = &job->session;
    int ranks = comm_size(job->world), tensor = comm_size(s->mesh.tensor);
    int threads = kernels_threads(s->kernels);
    char split[48] = "";
    if (tensor > 1) {
        snprintf(split, sizeof split, " (tensor %d x data %d)", tensor, ranks / tensor);
    }
    snprintf(text, bytes, "%d rank%s%s, %d thread%s%s", ranks, text_plural(ranks), split, threads,
             text_plural(threads), ranks > 1 ? " each" : "");
}

static status write_start_line(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct plan plan;
    TRY(plan_make(r, comm_size(job->world), &plan));
    job->flops = (struct utilization_flops){plan.token_flops, plan.token_flops_full_attention};
    char trained[64] = "", layout[96], parameters[TEXT_NUMBER_BYTES], number[TEXT_NUMBER_BYTES];
    if (plan.trained_parameters < plan.parameters) {
        snprintf(trained, sizeof trained, ", of which %s are trained",
                 text_scale_count((double)plan.trained_parameters, number));
    }
    format_layout(job, layout, sizeof layout);
    const char *device = kernels_description(job->session.kernels);
    log_info("%s: %s parameters%s", r->run_dir,
             text_scale_count((double)plan.parameters, parameters), trained);
    log_info("%s, %s on %.*s; %" PRId64 " of %" PRId64 " steps done", layout,
             derive_precision_name(r), (int)strcspn(device, ","), device, job->state.step,
             job->total_steps);
    if (job->metrics == NULL) {
        return STATUS_OK;
    }
    char names[PLAN_KINDS][32], host[256] = "", processor[256] = "";
    (void)gethostname(host, sizeof host - 1);
    read_processor(processor, sizeof processor);
    struct metric fields[OTHER_FIELDS + PLAN_KINDS] = {
        metric_integer("ranks", comm_size(job->world)),
        metric_integer("tensor", r->parallel.tensor),
        metric_integer("data", comm_size(job->session.mesh.data)),
        metric_integer("zero_stage", r->parallel.zero_stage),
        metric_integer("threads", kernels_threads(job->session.kernels)),
        metric_integer("total_steps", job->total_steps),
        metric_integer("parameters", plan.parameters),
        metric_integer("trained_parameters", plan.trained_parameters),
        metric_integer("rank_parameters", plan.rank_parameters),
        metric_integer("shared_memory_bytes", shared_space_counted_bytes()),
        metric_text("version", BUILD_VERSION " " BUILD_COMMIT),
        metric_text("host", host),
        metric_text("processor", processor),
        metric_text("device", kernels_description(job->session.kernels)),
    };
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        snprintf(names[kind], sizeof names[kind], "rank_bytes.%s", plan_kind_name(kind));
        fields[OTHER_FIELDS + kind] = metric_integer(names[kind], plan.bytes[kind]);
    }
    if (job->resumed) {
        TRY(metrics_write(job->metrics, "resume", job->state.step, NULL, 0));
    }
    return metrics_write(job->metrics, "start", job->state.step, fields, OTHER_FIELDS + PLAN_KINDS);
}

status start_line_write(struct job *job)
{
    return comm_agree(job->world, write_start_line(job));
}
