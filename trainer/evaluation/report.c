#include "trainer/evaluation/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

int evaluation_report_means(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                            struct metric *fields)
{
    int count = 0;
    for (int m = 0; m < objective_metric_count(o); m++) {
        if (sums[o->metrics[m].count] > 0) {
            double mean = objective_mean(sums, &o->metrics[m]);
            fields[count++] = metric_number(o->metrics[m].name, mean);
        }
    }
    return count;
}

int evaluation_report_fields(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                             const struct evaluator *ev, struct metric *fields)
{
    int count = 0;
    double loss = objective_loss(o, sums);
    fields[count++] = metric_number("loss", loss);
    fields[count++] = metric_integer(o->unit, (int64_t)sums[OBJECTIVE_COUNT]);
    count += evaluation_report_means(o, sums, fields + count);
    if (o->perplexity) {
        fields[count++] = metric_number("perplexity", exp(loss));
    }
    return count + evaluator_fields(ev, fields + count);
}

void evaluation_report_log(const struct objective *o, int64_t step, const struct metric *fields,
                           int count)
{
    char text[1024] = "";
    int used = 0;
    for (int i = 2; i < count && used < (int)sizeof text - 1; i++) {
        /* Per-label metrics and the confusion matrix are left out. */
        if (strchr(fields[i].name, '.') != NULL || fields[i].kind == METRIC_JSON) {
            continue;
        }
        used += snprintf(text + used, sizeof text - (size_t)used, ", %s %.4g", fields[i].name,
                         fields[i].number);
    }
    log_info("step %" PRId64 ": validation loss %.4f%s (%" PRId64 " %s)", step, fields[0].number,
             text, fields[1].integer, o->unit);
}

double evaluation_report_value(const struct metric *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (fields[i].kind == METRIC_NUMBER && strcmp(fields[i].name, name) == 0) {
            return fields[i].number;
        }
    }
    return NAN;
}

/* Returns whether evaluations of an objective have this metric; lists all metric names in
 * names[bytes]. */
static bool is_metric_name(enum recipe_objective objective, const struct objective *o,
                           const char *name, char *names, size_t bytes)
{
    bool found = strcmp(name, "loss") == 0 || (o->perplexity && strcmp(name, "perplexity") == 0);
    size_t used = (size_t)snprintf(names, bytes, "loss%s", o->perplexity ? ", perplexity" : "");
    for (int m = 0; m < objective_metric_count(o); m++) {
        found = found || strcmp(o->metrics[m].name, name) == 0;
        if (used < bytes) {
            used += (size_t)snprintf(names + used, bytes - used, ", %s", o->metrics[m].name);
        }
    }
    for (const char *const *n = evaluator_metric_names(objective); *n != NULL; n++) {
        found = found || strcmp(*n, name) == 0;
        if (used < bytes) {
            used += (size_t)snprintf(names + used, bytes - used, ", %s", *n);
        }
    }
    return found;
}

/* Returns whether a metric should decrease: perplexity and, as in transformers, a metric with a
 * name that ends in "loss". */
static bool is_smaller_better(const char *metric)
{
    size_t length = strlen(metric);
    return (length >= 4 && strcmp(metric + length - 4, "loss") == 0) ||
           strcmp(metric, "perplexity") == 0;
}

status evaluation_report_stopping_rule(const struct recipe *r, const struct objective *o,
                                       struct early_stopping_rule *out)
{
    const char *metric = r->evaluate.metric;
    char names[512];
    if (!is_metric_name(r->objective, o, metric, names, sizeof names)) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                            "'%s' is not a metric of objective %s; its metrics are: %s", metric,
                            recipe_objective_name(r->objective), names);
    }
    enum recipe_greater greater = r->evaluate.greater_is_better;
    *out = (struct early_stopping_rule){
        .metric = metric,
        .greater_is_better =
            greater == GREATER_AUTO ? !is_smaller_better(metric) : greater == GREATER_TRUE,
        .min_improvement = r->evaluate.min_improvement,
        .patience = r->evaluate.patience,
    };
    return STATUS_OK;
}
