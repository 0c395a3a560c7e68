#include "trainer/evaluation/evaluator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/evaluation/scores.h"
#include "trainer/evaluation/squad.h"

/* The predicted number of one example and its target. */
struct prediction {
    int64_t sample;
    double predicted, target;
};

enum { LABEL_NAME_BYTES = 96, CELL_BYTES = 24 /* a count and "],[" */ };

/* The metrics of a label. evaluate.metric can name the first three. */
enum { LABEL_PRECISION, LABEL_RECALL, LABEL_F1, LABEL_SUPPORT, LABEL_METRICS };

struct evaluator {
    struct objective_sink sink;
    /* classification: counts[label] and the names of the per-label metrics */
    int32_t labels;
    struct scores_class *counts;
    int64_t *confusion;   /* [labels, labels]: counts by true and predicted label; NULL: too many */
    char *confusion_text; /* [confusion_bytes] */
    size_t confusion_bytes;
    struct scores_summary classes;
    char (*names)[LABEL_METRICS][LABEL_NAME_BYTES];
    /* regression: values[count] of this rank, after evaluator_end of all ranks */
    struct prediction *values;
    int64_t count, capacity;
    struct squad *squad; /* question answering; else NULL */
    double scores[2];    /* Pearson and Spearman, or exact match and F1 */
};

static const char *const class_metric_names[] = {
    "f1_macro",        "f1_micro",     "f1_weighted",  "precision_macro",
    "precision_micro", "recall_macro", "recall_micro", NULL};
static const char *const label_metrics[LABEL_METRICS] = {[LABEL_PRECISION] = "precision",
                                                         [LABEL_RECALL] = "recall",
                                                         [LABEL_F1] = "f1",
                                                         [LABEL_SUPPORT] = "support"};
static const char *const correlation_names[] = {"pearson", "spearman", NULL};
static const char *const answer_metric_names[] = {"exact_match", "f1", NULL};
static const char *const empty_names[] = {NULL};

static bool has_label_metrics(enum recipe_objective objective)
{
    return objective == OBJECTIVE_CLASSIFY || objective == OBJECTIVE_CLASSIFY_TOKENS;
}

const char *const *evaluator_metric_names(enum recipe_objective objective)
{
    return has_label_metrics(objective)     ? class_metric_names
           : objective == OBJECTIVE_REGRESS ? correlation_names
           : objective == OBJECTIVE_ANSWER  ? answer_metric_names
                                            : empty_names;
}

/* ---- one example ---- */

static int32_t find_largest(const float *outputs, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        best = outputs[i] > outputs[best] ? i : best;
    }
    return (int32_t)best;
}

static status count_labels(void *user, const struct objective_example *e)
{
    struct evaluator *ev = user;
    REQUIRE(e->columns == ev->labels && e->labels != NULL, STATUS_INTERNAL,
            "an example has outputs for %" PRId64 " labels instead of %d", e->columns, ev->labels);
    for (int64_t i = 0; i < e->rows; i++) {
        int32_t prediction = find_largest(e->outputs + i * e->columns, e->columns);
        scores_count(ev->counts, prediction, e->labels[i]);
        if (ev->confusion != NULL && e->labels[i] >= 0) {
            ev->confusion[e->labels[i] * ev->labels + prediction]++;
        }
    }
    return STATUS_OK;
}

static status add_value(struct evaluator *ev, int64_t sample, double predicted, double target)
{
    TRY(RESERVE(ev->values, ev->capacity, ev->count + 1, "predictions"));
    ev->values[ev->count++] = (struct prediction){sample, predicted, target};
    return STATUS_OK;
}

static status add_number(void *user, const struct objective_example *e)
{
    REQUIRE(e->rows * e->columns == 1 && e->numbers != NULL, STATUS_INTERNAL,
            "an example has %" PRId64 " numbers instead of 1", e->rows * e->columns);
    return add_value(user, e->sample, (double)e->outputs[0], (double)e->numbers[0]);
}

static status add_answer(void *user, const struct objective_example *e)
{
    return squad_add_window(((struct evaluator *)user)->squad, e);
}

/* ---- creation ---- */

/* Writes "METRIC.LABEL". A long label is cut after a whole UTF-8 character. */
static void write_label_name(const char *metric, const char *label, char name[LABEL_NAME_BYTES])
{
    int prefix = snprintf(name, LABEL_NAME_BYTES, "%s.", metric);
    int bytes = (int)strnlen(label, (size_t)(LABEL_NAME_BYTES - 1 - prefix));
    while (bytes > 0 && ((unsigned char)label[bytes] & 0xC0) == 0x80) {
        bytes--;
    }
    snprintf(name + prefix, LABEL_NAME_BYTES - (size_t)prefix, "%.*s", bytes, label);
    for (char *dot = name + prefix; (dot = strchr(dot, '.')) != NULL;) {
        *dot = '_'; /* a dot would begin an object in metrics.jsonl */
    }
}

bool evaluator_is_label_metric(enum recipe_objective objective, const struct labels *labels,
                               const char *name)
{
    const char *dot = strchr(name, '.');
    char expected[LABEL_NAME_BYTES];
    bool found = false;
    for (int m = 0; m < LABEL_SUPPORT && dot != NULL && has_label_metrics(objective); m++) {
        size_t bytes = strlen(label_metrics[m]);
        found = found || ((size_t)(dot - name) == bytes && dot[1] != '\0' &&
                          memcmp(name, label_metrics[m], bytes) == 0);
    }
    if (!found || labels == NULL) {
        return found;
    }
    found = false;
    for (int l = 0; l < labels->count && labels->count <= EVALUATOR_LABELS_REPORTED; l++) {
        for (int m = 0; m < LABEL_SUPPORT; m++) {
            write_label_name(label_metrics[m], labels->names[l], expected);
            found = found || strcmp(name, expected) == 0;
        }
    }
    return found;
}

static status create_counts(struct evaluator *ev, const struct labels *names)
{
    ev->labels = names->count;
    TRY(ALLOCATE(ev->counts, names->count + 1, "the counts of labels"));
    TRY(ALLOCATE(ev->names, names->count + 1, "the names of labels"));
    if (names->count <= EVALUATOR_LABELS_REPORTED) {
        size_t cells = (size_t)names->count * (size_t)names->count;
        ev->confusion_bytes = cells * CELL_BYTES + 3;
        TRY(ALLOCATE(ev->confusion, cells, "the confusion matrix"));
        TRY(ALLOCATE(ev->confusion_text, ev->confusion_bytes, "the confusion matrix"));
    }
    for (int l = 0; l < names->count; l++) {
        for (int m = 0; m < LABEL_METRICS; m++) {
            write_label_name(label_metrics[m], names->names[l], ev->names[l][m]);
        }
    }
    return STATUS_OK;
}

status evaluator_create(enum recipe_objective objective, const struct labels *names,
                        const struct tokenizer *tokenizer, double threshold, struct evaluator **out)
{
    *out = NULL;
    bool labels = has_label_metrics(objective) && names->count > 0;
    bool answers = objective == OBJECTIVE_ANSWER && tokenizer != NULL;
    if (!labels && !answers && objective != OBJECTIVE_REGRESS) {
        return STATUS_OK;
    }
    struct evaluator *ev = NULL;
    TRY(ALLOCATE(ev, 1, "metrics"));
    ev->sink = (struct objective_sink){labels    ? count_labels
                                       : answers ? add_answer
                                                 : add_number,
                                       ev};
    status result = labels    ? create_counts(ev, names)
                    : answers ? squad_create(tokenizer, threshold, &ev->squad)
                              : STATUS_OK;
    if (result != STATUS_OK) {
        evaluator_destroy(&ev);
    }
    *out = ev;
    return result;
}

void evaluator_destroy(struct evaluator **ev)
{
    if (*ev != NULL) {
        free((*ev)->counts);
        free((*ev)->confusion);
        free((*ev)->confusion_text);
        free((*ev)->names);
        free((*ev)->values);
        squad_destroy(&(*ev)->squad);
        free(*ev);
        *ev = NULL;
    }
}

const struct objective_sink *evaluator_sink(const struct evaluator *ev)
{
    return ev != NULL ? &ev->sink : NULL;
}

void evaluator_begin(struct evaluator *ev)
{
    if (ev != NULL) {
        ev->count = 0;
    }
    if (ev != NULL && ev->squad != NULL) {
        squad_clear(ev->squad);
    }
    if (ev != NULL && ev->labels > 0) { /* else counts is NULL */
        memset(ev->counts, 0, (size_t)ev->labels * sizeof *ev->counts);
    }
    if (ev != NULL && ev->confusion != NULL) {
        memset(ev->confusion, 0, (size_t)ev->labels * (size_t)ev->labels * sizeof *ev->confusion);
    }
}

/* ---- all examples ---- */

static status sum_counts(struct evaluator *ev, struct comm *data)
{
    int64_t cells = ev->confusion != NULL ? (int64_t)ev->labels * ev->labels : 0;
    int64_t count = 3 * (int64_t)ev->labels + cells;
    double *sums = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, agree, ALLOCATE(sums, count + 1, "the counts of labels"));
    for (int32_t l = 0; l < ev->labels; l++) {
        sums[3 * l] = (double)ev->counts[l].correct;
        sums[3 * l + 1] = (double)ev->counts[l].predicted;
        sums[3 * l + 2] = (double)ev->counts[l].support;
    }
    for (int64_t i = 0; i < cells; i++) {
        sums[3 * ev->labels + i] = (double)ev->confusion[i];
    }
agree:
    result = comm_agree(data, result);
    if (result == STATUS_OK) {
        result = comm_sum_doubles(data, sums, count);
    }
    for (int32_t l = 0; l < ev->labels && result == STATUS_OK; l++) {
        ev->counts[l].correct = (int64_t)sums[3 * l];
        ev->counts[l].predicted = (int64_t)sums[3 * l + 1];
        ev->counts[l].support = (int64_t)sums[3 * l + 2];
    }
    for (int64_t i = 0; i < cells && result == STATUS_OK; i++) {
        ev->confusion[i] = (int64_t)sums[3 * ev->labels + i];
    }
    free(sums);
    TRY(result);
    scores_average(ev->counts, ev->labels, &ev->classes);
    return STATUS_OK;
}

static int compare_samples(const void *a, const void *b)
{
    const struct prediction *x = a, *y = b;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/* Gathers the values of all ranks. Every rank sends as many as the rank with the most values; the
 * padding is then removed. */
static status gather_values(struct evaluator *ev, struct comm *data)
{
    int ranks = comm_size(data);
    double *counts = NULL;
    struct prediction *local = NULL, *all = NULL;
    int64_t max_count = 0, count = 0;
    status result = STATUS_OK;
    TRY_GOTO(result, agree, ALLOCATE(counts, ranks, "predictions"));
    counts[comm_rank(data)] = (double)ev->count;
agree:
    TRY_GOTO(result, done, comm_agree(data, result));
    TRY_GOTO(result, done, comm_sum_doubles(data, counts, ranks));
    for (int r = 0; r < ranks; r++) {
        max_count = number_max(max_count, (int64_t)counts[r]);
    }
    result = ALLOCATE(local, max_count + 1, "predictions");
    KEEP_FIRST(result, ALLOCATE(all, ranks * max_count + 1, "predictions"));
    TRY_GOTO(result, done, comm_agree(data, result));
    if (ev->count > 0) { /* else ev->values can be NULL */
        memcpy(local, ev->values, (size_t)ev->count * sizeof *local);
    }
    TRY_GOTO(result, done,
             comm_all_gather_bytes(data, all, local, (size_t)max_count * sizeof *local));
    for (int r = 0; r < ranks; r++) {
        memmove(all + count, all + r * max_count, (size_t)counts[r] * sizeof *all);
        count += (int64_t)counts[r];
    }
    qsort(all, (size_t)count, sizeof *all, compare_samples);
    free(ev->values);
    ev->values = all;
    ev->count = count;
    ev->capacity = ranks * max_count + 1;
    all = NULL;
done:
    free(counts);
    free(local);
    free(all);
    return result;
}

static status compute_correlations(struct evaluator *ev)
{
    double *predicted = NULL;
    TRY(ALLOCATE(predicted, 2 * (size_t)ev->count + 1, "predictions"));
    double *target = predicted + ev->count;
    for (int64_t i = 0; i < ev->count; i++) {
        predicted[i] = ev->values[i].predicted;
        target[i] = ev->values[i].target;
    }
    ev->scores[0] = scores_pearson(predicted, target, ev->count);
    status result = scores_spearman(predicted, target, ev->count, &ev->scores[1]);
    free(predicted);
    return result;
}

static status compute_answer_scores(struct evaluator *ev, struct comm *data)
{
    struct scores_answer mean;
    TRY(squad_mean(ev->squad, data, &mean));
    ev->scores[0] = mean.exact_match;
    ev->scores[1] = mean.f1;
    return STATUS_OK;
}

status evaluator_end(struct evaluator *ev, struct comm *data)
{
    if (ev == NULL) {
        return STATUS_OK;
    }
    if (ev->counts != NULL) {
        return sum_counts(ev, data);
    }
    if (ev->squad != NULL) {
        return compute_answer_scores(ev, data);
    }
    TRY(gather_values(ev, data));
    return comm_agree(data, compute_correlations(ev));
}

/* ---- fields ---- */

static int write_label_fields(const struct evaluator *ev, int32_t label, struct metric *fields)
{
    const struct scores_class *c = &ev->counts[label];
    const double scores[LABEL_SUPPORT] = {[LABEL_PRECISION] = c->score.precision,
                                          [LABEL_RECALL] = c->score.recall,
                                          [LABEL_F1] = c->score.f1};
    for (int m = 0; m < LABEL_SUPPORT; m++) {
        fields[m] = metric_number(ev->names[label][m], scores[m]);
    }
    fields[LABEL_SUPPORT] = metric_integer(ev->names[label][LABEL_SUPPORT], c->support);
    return LABEL_METRICS;
}

/* Writes the confusion matrix as JSON: a row for each true label. */
static struct metric write_confusion(const struct evaluator *ev)
{
    int64_t cells = (int64_t)ev->labels * ev->labels;
    size_t used = 0;
    for (int64_t i = 0; i < cells; i++) {
        const char *before = i == 0 ? "[[" : i % ev->labels == 0 ? "],[" : ",";
        used += (size_t)snprintf(ev->confusion_text + used, ev->confusion_bytes - used,
                                 "%s%" PRId64, before, ev->confusion[i]);
    }
    snprintf(ev->confusion_text + used, ev->confusion_bytes - used, "]]");
    return metric_json("confusion_matrix", ev->confusion_text);
}

static int write_class_fields(const struct evaluator *ev, struct metric *fields)
{
    const struct scores_summary *c = &ev->classes;
    const double values[] = {c->macro.f1,        c->micro.f1,        c->weighted.f1,
                             c->macro.precision, c->micro.precision, c->macro.recall,
                             c->micro.recall};
    int count = 0;
    for (; class_metric_names[count] != NULL; count++) {
        fields[count] = metric_number(class_metric_names[count], values[count]);
    }
    for (int32_t l = 0; l < ev->labels && ev->labels <= EVALUATOR_LABELS_REPORTED; l++) {
        count += write_label_fields(ev, l, fields + count);
    }
    if (ev->confusion != NULL) {
        fields[count++] = write_confusion(ev);
    }
    return count;
}

int evaluator_fields(const struct evaluator *ev, struct metric *fields)
{
    if (ev == NULL) {
        return 0;
    }
    if (ev->counts != NULL) {
        return write_class_fields(ev, fields);
    }
    const char *const *names = ev->squad != NULL ? answer_metric_names : correlation_names;
    for (int i = 0; i < COUNT(ev->scores); i++) {
        fields[i] = metric_number(names[i], ev->scores[i]);
    }
    return COUNT(ev->scores);
}
