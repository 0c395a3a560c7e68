#include "trainer/train/train_line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/memory.h"
#include "trainer/evaluation/report.h"

int64_t train_line_peak_memory_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

double train_line_peak_tflops(const struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    double factor = r->train.precision == PRECISION_FP8 ? 2 : 1;
    return r->train.peak_tflops > 0
               ? r->train.peak_tflops
               : factor * utilization_peak_tflops(device_name(job->session.device));
}

struct train_line_traffic train_line_take_traffic(const struct mesh *mesh)
{
    struct train_line_traffic t;
    comm_take_times(mesh->data, &t.data);
    comm_take_times(mesh->tensor, &t.tensor);
    return t;
}

/* Writes four fields with the given names; returns 4. */
static int fill_traffic_fields(const struct comm_times *t, const char *const names[4],
                               struct metric *fields)
{
    fields[0] = metric_number(names[0], t->alone_seconds);
    fields[1] = metric_number(names[1], t->exposed_seconds);
    fields[2] = metric_number(names[2], comm_hidden_share(t));
    fields[3] = metric_integer(names[3], t->bytes);
    return 4;
}

status train_line_write(const struct job *job, const struct train_line_interval *i,
                        const struct step_result *result, double rate, double tokens_per_second,
                        const struct utilization *utilization,
                        const struct train_line_traffic *traffic)
{
    static const char *const data_names[] = {"comm_seconds", "comm_exposed_seconds",
                                             "comm_hidden_share", "comm_bytes"};
    static const char *const tensor_names[] = {"tensor_comm_seconds", "tensor_comm_exposed_seconds",
                                               "tensor_comm_hidden_share", "tensor_comm_bytes"};
    const struct metric always[] = {
        metric_number("loss", result->loss),
        metric_number("learning_rate", rate),
        metric_number("grad_norm", result->gradient_norm),
        metric_integer("tokens", job->state.tokens),
        metric_number("tokens_per_second", tokens_per_second),
        metric_number("step_seconds", i->step_seconds / (double)i->steps),
        metric_integer("memory_bytes", train_line_peak_memory_bytes()),
        metric_number("data_stall_seconds", i->data_seconds),
    };
    struct metric fields[COUNT(always) + 12 + UTILIZATION_FIELDS + EVALUATION_REPORT_FIELDS];
    memcpy(fields, always, sizeof always);
    int count = COUNT(always);
    count += utilization_fields(utilization, job->session.device, fields + count);
    if (comm_size(job->world) > 1) {
        count += fill_traffic_fields(&traffic->data, data_names, fields + count);
    }
    if (comm_size(job->session.mesh.tensor) > 1) {
        count += fill_traffic_fields(&traffic->tensor, tensor_names, fields + count);
    }
    if (objective_metric_count(job->objective) > 0 && job->objective->main_metric >= 0) {
        fields[count++] = metric_integer("num_tokens", job->state.tokens); /* the name in TRL */
    }
    count += evaluation_report_means(job->objective, result->sums, fields + count);
    return metrics_write(job->metrics, "train", job->state.step, fields, count);
}

status train_line_write_warnings(const struct job *job)
{
    status result = STATUS_OK;
    for (struct log_entry *w; (w = log_take_warning()) != NULL; free(w)) {
        const struct metric fields[] = {metric_text("name", w->name), metric_text("text", w->text)};
        if (job->metrics != NULL) {
            KEEP_FIRST(result, metrics_write(job->metrics, "warning", job->state.step, fields,
                                             COUNT(fields)));
        }
    }
    return result;
}
