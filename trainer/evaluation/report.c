#include "trainer/evaluation/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "trainer/evaluation/text_scores.h"

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

double evaluation_report_value(const struct metric *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (fields[i].kind == METRIC_NUMBER && strcmp(fields[i].name, name) == 0) {
            return fields[i].number;
        }
    }
    return NAN;
}

const char *evaluation_report_main(const struct objective *o, bool evaluated)
{
    if (evaluated && o == &objective_extractive_qa) {
        return "f1"; /* of whole questions; span_accuracy counts windows */
    }
    return objective_metric_count(o) > 0 && o->main_metric >= 0 ? o->metrics[o->main_metric].name
           : evaluated && o->perplexity                         ? "perplexity"
                                                                : NULL;
}

/* Appends ", NAME VALUE" to a line, if the evaluation has this number and the line has room. */
static void append_value(char *line, const struct metric *fields, int count, const char *name)
{
    char part[128], number[TEXT_NUMBER_BYTES];
    for (int i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            double value = evaluation_report_value(fields, count, name);
            snprintf(part, sizeof part, ", %s %s", name, text_from_metric(value, number));
            (void)text_append_fitting(line, part);
        }
    }
}

void evaluation_report_log(const struct objective *o, const char *metric, int64_t step,
                           const struct metric *fields, int count)
{
    char line[TEXT_LINE_COLUMNS + 1], part[64];
    const char *main_metric = evaluation_report_main(o, true);
    snprintf(line, sizeof line, "step %" PRId64 ": validation loss %.4f", step, fields[0].number);
    if (metric != NULL && strcmp(metric, "loss") != 0) {
        append_value(line, fields, count, metric);
    }
    if (main_metric != NULL && (metric == NULL || strcmp(metric, main_metric) != 0)) {
        append_value(line, fields, count, main_metric);
    }
    if (metric == NULL || strcmp(metric, "bleu") != 0) {
        append_value(line, fields, count, "bleu"); /* of generated targets */
    }
    snprintf(part, sizeof part, " (%" PRId64 " %s)", fields[1].integer, o->unit);
    (void)text_append_fitting(line, part);
    log_info("%s", line);
}

/* A list of names for a message; its end is lost if it is too long. */
struct name_list {
    char text[1024];
    size_t used;
};

static void add_name(struct name_list *list, const char *name)
{
    if (list->used < sizeof list->text) {
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                       "%s%.80s", list->used > 0 ? ", " : "", name);
    }
}

/* Returns whether evaluations of a recipe have this metric, and lists all metrics. */
static bool is_metric_name(const struct recipe *r, const struct objective *o, const char *name,
                           struct name_list *all)
{
    bool found = strcmp(name, "loss") == 0 || (o->perplexity && strcmp(name, "perplexity") == 0);
    add_name(all, "loss");
    if (o->perplexity) {
        add_name(all, "perplexity");
    }
    for (int m = 0; m < objective_metric_count(o); m++) {
        found = found || strcmp(o->metrics[m].name, name) == 0;
        add_name(all, o->metrics[m].name);
    }
    for (const char *const *n = evaluator_metric_names(r->objective); *n != NULL; n++) {
        found = found || strcmp(*n, name) == 0;
        add_name(all, *n);
    }
    for (int i = 0; i < TEXT_METRICS && r->evaluate.generate; i++) {
        found = found || strcmp(text_scores_name(i), name) == 0;
        add_name(all, text_scores_name(i));
    }
    if (evaluator_is_label_metric(r->objective, NULL, "f1.LABEL")) {
        add_name(all, "f1.LABEL, precision.LABEL, recall.LABEL");
    }
    return found;
}

/* Checks a metric such as f1.LABEL. */
static status check_label_metric(const struct recipe *r, const char *metric, const char *text)
{
    struct labels labels;
    struct name_list list = {.used = 0};
    char name[TEXT_NAME_BYTES];
    TRY(labels_parse_json(text, "the training shards", &labels));
    bool found = evaluator_is_label_metric(r->objective, &labels, metric);
    for (int l = 0; l < labels.count; l++) {
        add_name(&list, text_quote_name(labels.names[l], name));
    }
    int count = labels.count;
    labels_free(&labels);
    if (count > EVALUATOR_LABELS_REPORTED) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                            "'%s': scores of single labels exist for at most %d labels, but the "
                            "data has %d; use f1_macro",
                            metric, EVALUATOR_LABELS_REPORTED, count);
    }
    return found ? STATUS_OK
                 : recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                                "'%s': the data has no such label; its labels are: %s (write _ "
                                "instead of a dot in a label)",
                                metric, list.text);
}

/* Returns whether a metric should decrease: perplexities, bits per byte and, as in transformers, a
 * metric with a name that ends in "loss". */
static bool is_smaller_better(const char *metric)
{
    size_t length = strlen(metric);
    return (length >= 4 && strcmp(metric + length - 4, "loss") == 0) ||
           text_has_suffix(metric, "perplexity") || text_has_suffix(metric, "bits_per_byte");
}

status evaluation_report_stopping_rule(const struct recipe *r, const struct objective *o,
                                       const char *labels, struct early_stopping_rule *out)
{
    const char *metric = r->evaluate.metric;
    struct name_list all = {.used = 0};
    bool is_label = evaluator_is_label_metric(r->objective, NULL, metric);
    if (is_label && labels != NULL) {
        TRY(check_label_metric(r, metric, labels));
    }
    bool is_task = r->evaluate.tasks[0] != '\0' && strchr(metric, '/') != NULL;
    if (!is_metric_name(r, o, metric, &all) && !is_label && !is_task) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.metric",
                            "'%s' is not a metric of objective %s; its metrics are: %s", metric,
                            recipe_objective_name(r->objective), all.text);
    }
    enum recipe_tristate greater = r->evaluate.greater_is_better;
    *out = (struct early_stopping_rule){
        .metric = metric,
        .greater_is_better =
            greater == RECIPE_AUTO ? !is_smaller_better(metric) : greater == RECIPE_TRUE,
        .min_improvement = r->evaluate.min_improvement,
        .patience = r->evaluate.patience,
    };
    return STATUS_OK;
}
