#include "trainer/evaluation/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

int evaluation_means(const struct objective *o, const double sums[OBJECTIVE_SUMS],
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

int evaluation_fields(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                      const struct grading *g, struct metric *fields)
{
    int count = 0;
    double loss = objective_loss(o, sums);
    fields[count++] = metric_number("loss", loss);
    fields[count++] = metric_integer(o->counted, (int64_t)sums[OBJECTIVE_COUNT]);
    count += evaluation_means(o, sums, fields + count);
    if (o->perplexity) {
        fields[count++] = metric_number("perplexity", exp(loss));
    }
    return count + grading_fields(g, fields + count);
}

void evaluation_tell(const struct objective *o, int64_t step, const struct metric *fields,
                     int count)
{
    char text[1024] = "";
    int used = 0;
    for (int i = 2; i < count && used < (int)sizeof text - 1; i++) {
        if (strchr(fields[i].name, '.') != NULL) { /* of a single label */
            continue;
        }
        used += snprintf(text + used, sizeof text - (size_t)used, ", %s %.4g", fields[i].name,
                         fields[i].number);
    }
    log_info("step %lld: validation loss %.4f%s (%lld %s)", (long long)step, fields[0].number, text,
             (long long)fields[1].integer, o->counted);
}

double evaluation_value(const struct metric *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (fields[i].kind == METRIC_NUMBER && strcmp(fields[i].name, name) == 0) {
            return fields[i].number;
        }
    }
    return NAN;
}

/* names[bytes]: all that there are. */
static bool knows(const struct objective *o, const char *name, char *names, size_t bytes)
{
    bool known = strcmp(name, "loss") == 0 || (o->perplexity && strcmp(name, "perplexity") == 0);
    size_t used = (size_t)snprintf(names, bytes, "loss%s", o->perplexity ? ", perplexity" : "");
    for (int m = 0; m < objective_metric_count(o); m++) {
        known = known || strcmp(o->metrics[m].name, name) == 0;
        if (used < bytes) {
            used += (size_t)snprintf(names + used, bytes - used, ", %s", o->metrics[m].name);
        }
    }
    for (const char *const *n = grading_names(o->name); *n != NULL; n++) {
        known = known || strcmp(*n, name) == 0;
        if (used < bytes) {
            used += (size_t)snprintf(names + used, bytes - used, ", %s", *n);
        }
    }
    return known;
}

/* As transformers takes it: what is a loss shall fall. */
static bool shall_fall(const char *metric)
{
    size_t length = strlen(metric);
    return (length >= 4 && strcmp(metric + length - 4, "loss") == 0) ||
           strcmp(metric, "perplexity") == 0;
}

status evaluation_rule(const struct recipe *r, const struct objective *o, struct best_rule *out)
{
    const char *metric = r->evaluate.metric;
    char names[512];
    if (!knows(o, metric, names, sizeof names)) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                            "'%s' is no number of objective %s's evaluations; these are: %s",
                            metric, r->objective, names);
    }
    enum recipe_greater greater = r->evaluate.greater_is_better;
    *out = (struct best_rule){
        .metric = metric,
        .greater = greater == GREATER_AUTO ? !shall_fall(metric) : greater == GREATER_TRUE,
        .improvement = r->evaluate.min_improvement,
        .patience = r->evaluate.patience,
    };
    return STATUS_OK;
}
