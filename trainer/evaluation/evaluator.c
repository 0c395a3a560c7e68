#include "trainer/evaluation/evaluator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/evaluation/scores.h"
#include "trainer/evaluation/squad.h"

/* Two numbers of an example: what was said and what is right. */
struct value {
    int64_t sample;
    double said, right;
};

enum { LABEL_NAME_BYTES = 96, LABEL_METRICS = 4 };

struct grading {
    struct objective_sink sink;
    /* of labels: counts[label] and their metrics' names */
    int32_t labels;
    struct grade_class *counts;
    struct grade_classes classes;
    char (*names)[LABEL_METRICS][LABEL_NAME_BYTES];
    /* of numbers: values[count] of this rank, then of all */
    struct value *values;
    int64_t count, room;
    struct grade_windows *windows; /* of answers; else NULL */
    double first, second;          /* correlations, or exactness and F1 */
};

static const char *const class_names[] = {
    "f1_macro",        "f1_micro",     "f1_weighted",  "precision_macro",
    "precision_micro", "recall_macro", "recall_micro", NULL};
static const char *const number_names[] = {"pearson", "spearman", NULL};
static const char *const answer_names[] = {"exact_match", "f1", NULL};
static const char *const no_names[] = {NULL};

static bool counts_labels(const char *objective)
{
    return strcmp(objective, "classify") == 0 || strcmp(objective, "classify_tokens") == 0;
}

const char *const *grading_names(const char *objective)
{
    return counts_labels(objective)            ? class_names
           : strcmp(objective, "regress") == 0 ? number_names
           : strcmp(objective, "answer") == 0  ? answer_names
                                               : no_names;
}

/* ---- one example ---- */

static int32_t largest(const float *outputs, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        best = outputs[i] > outputs[best] ? i : best;
    }
    return (int32_t)best;
}

static status take_labels(void *user, const struct objective_example *e)
{
    struct grading *g = user;
    REQUIRE(e->columns == g->labels && e->labels != NULL, STATUS_INTERNAL,
            "an example with outputs for %lld labels of %d", (long long)e->columns, g->labels);
    for (int64_t i = 0; i < e->rows; i++) {
        grade_count(g->counts, largest(e->outputs + i * e->columns, e->columns), e->labels[i]);
    }
    return STATUS_OK;
}

static status add_value(struct grading *g, int64_t sample, double said, double right)
{
    if (g->count == g->room) {
        int64_t room = 2 * g->room + 1024;
        struct value *more = realloc(g->values, (size_t)room * sizeof *more);
        REQUIRE(more != NULL, STATUS_INTERNAL, "out of memory for %lld predictions",
                (long long)room);
        g->values = more;
        g->room = room;
    }
    g->values[g->count++] = (struct value){sample, said, right};
    return STATUS_OK;
}

static status take_number(void *user, const struct objective_example *e)
{
    REQUIRE(e->rows * e->columns == 1 && e->numbers != NULL, STATUS_INTERNAL,
            "an example with %lld numbers", (long long)(e->rows * e->columns));
    return add_value(user, e->sample, (double)e->outputs[0], (double)e->numbers[0]);
}

static status take_answer(void *user, const struct objective_example *e)
{
    return grade_windows_take(((struct grading *)user)->windows, e);
}

/* ---- making ---- */

static status make_counts(struct grading *g, const struct labels *names)
{
    static const char *const metrics[] = {"precision", "recall", "f1", "support"};
    g->labels = names->count;
    g->counts = calloc((size_t)names->count + 1, sizeof *g->counts);
    g->names = calloc((size_t)names->count + 1, sizeof *g->names);
    REQUIRE(g->counts != NULL && g->names != NULL, STATUS_INTERNAL, "out of memory for %d labels",
            names->count);
    for (int l = 0; l < names->count; l++) {
        for (int m = 0; m < LABEL_METRICS; m++) {
            char *name = g->names[l][m];
            int prefix = snprintf(name, LABEL_NAME_BYTES, "%s.", metrics[m]);
            snprintf(name + prefix, LABEL_NAME_BYTES - (size_t)prefix, "%s", names->names[l]);
            for (char *dot = name + prefix; (dot = strchr(dot, '.')) != NULL;) {
                *dot = '_'; /* it would begin an object in the metrics' line */
            }
        }
    }
    return STATUS_OK;
}

status grading_create(const char *objective, const struct labels *names,
                      const struct tokenizer *tokenizer, double threshold, struct grading **out)
{
    *out = NULL;
    bool labels = counts_labels(objective) && names->count > 0;
    bool answers = strcmp(objective, "answer") == 0 && tokenizer != NULL;
    if (!labels && !answers && strcmp(objective, "regress") != 0) {
        return STATUS_OK;
    }
    struct grading *g = calloc(1, sizeof *g);
    REQUIRE(g != NULL, STATUS_INTERNAL, "out of memory for metrics");
    g->sink = (struct objective_sink){labels    ? take_labels
                                      : answers ? take_answer
                                                : take_number,
                                      g};
    status result = labels    ? make_counts(g, names)
                    : answers ? grade_windows_create(tokenizer, threshold, &g->windows)
                              : STATUS_OK;
    if (result != STATUS_OK) {
        grading_destroy(&g);
    }
    *out = g;
    return result;
}

void grading_destroy(struct grading **g)
{
    if (*g != NULL) {
        free((*g)->counts);
        free((*g)->names);
        free((*g)->values);
        grade_windows_destroy(&(*g)->windows);
        free(*g);
        *g = NULL;
    }
}

const struct objective_sink *grading_sink(const struct grading *g)
{
    return g != NULL ? &g->sink : NULL;
}

void grading_begin(struct grading *g)
{
    if (g != NULL) {
        g->count = 0;
    }
    if (g != NULL && g->windows != NULL) {
        grade_windows_clear(g->windows);
    }
    if (g != NULL && g->labels > 0) { /* numbers have none, and no memory for them */
        memset(g->counts, 0, (size_t)g->labels * sizeof *g->counts);
    }
}

/* ---- all examples ---- */

static status sum_counts(struct grading *g, struct comm *data)
{
    int64_t count = 3 * (int64_t)g->labels;
    double *sums = calloc((size_t)count + 1, sizeof *sums);
    status mine = STATUS_OK;
    REQUIRE_GOTO(mine, agree, sums != NULL, STATUS_INTERNAL, "out of memory for %d labels",
                 g->labels);
    for (int32_t l = 0; l < g->labels; l++) {
        sums[3 * l] = (double)g->counts[l].right;
        sums[3 * l + 1] = (double)g->counts[l].predicted;
        sums[3 * l + 2] = (double)g->counts[l].labelled;
    }
agree:
    mine = comm_agree(data, mine);
    if (mine == STATUS_OK) {
        mine = comm_sum_doubles(data, sums, count);
    }
    for (int32_t l = 0; l < g->labels && mine == STATUS_OK; l++) {
        g->counts[l].right = (int64_t)sums[3 * l];
        g->counts[l].predicted = (int64_t)sums[3 * l + 1];
        g->counts[l].labelled = (int64_t)sums[3 * l + 2];
    }
    free(sums);
    TRY(mine);
    grade_average(g->counts, g->labels, &g->classes);
    return STATUS_OK;
}

static int by_sample(const void *a, const void *b)
{
    const struct value *x = a, *y = b;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/* Each rank gives as many as the one that has most; of what comes together the empty ones are left out. */
static status gather_values(struct grading *g, struct comm *data)
{
    int ranks = comm_size(data);
    double *counts = calloc((size_t)ranks, sizeof *counts);
    struct value *mine = NULL, *all = NULL;
    int64_t most = 0, count = 0;
    status result = STATUS_OK;
    REQUIRE_GOTO(result, agree, counts != NULL, STATUS_INTERNAL, "out of memory for predictions");
    counts[comm_rank(data)] = (double)g->count;
agree:
    TRY_GOTO(result, done, comm_agree(data, result));
    TRY_GOTO(result, done, comm_sum_doubles(data, counts, ranks));
    for (int r = 0; r < ranks; r++) {
        most = (int64_t)counts[r] > most ? (int64_t)counts[r] : most;
    }
    mine = calloc((size_t)most + 1, sizeof *mine);
    all = calloc((size_t)(ranks * most) + 1, sizeof *all);
    bool there = mine != NULL && all != NULL;
    TRY_GOTO(result, done,
             comm_agree(data, there ? STATUS_OK
                                    : status_raise(STATUS_INTERNAL, __FILE__, __LINE__,
                                                   "out of memory for predictions")));
    memcpy(mine, g->values, (size_t)g->count * sizeof *mine);
    TRY_GOTO(result, done, comm_all_gather_bytes(data, all, mine, (size_t)most * sizeof *mine));
    for (int r = 0; r < ranks; r++) {
        memmove(all + count, all + r * most, (size_t)counts[r] * sizeof *all);
        count += (int64_t)counts[r];
    }
    qsort(all, (size_t)count, sizeof *all, by_sample);
    free(g->values);
    g->values = all;
    g->count = count;
    g->room = ranks * most + 1;
    all = NULL;
done:
    free(counts);
    free(mine);
    free(all);
    return result;
}

static status correlate(struct grading *g)
{
    double *said = calloc(2 * (size_t)g->count + 1, sizeof *said);
    REQUIRE(said != NULL, STATUS_INTERNAL, "out of memory for predictions");
    double *right = said + g->count;
    for (int64_t i = 0; i < g->count; i++) {
        said[i] = g->values[i].said;
        right[i] = g->values[i].right;
    }
    g->first = grade_pearson(said, right, g->count);
    status result = grade_spearman(said, right, g->count, &g->second);
    free(said);
    return result;
}

static status grade_answers(struct grading *g, struct comm *data)
{
    struct grade_answer mean;
    TRY(grade_windows_mean(g->windows, data, &mean));
    g->first = mean.exact;
    g->second = mean.f1;
    return STATUS_OK;
}

status grading_end(struct grading *g, struct comm *data)
{
    if (g == NULL) {
        return STATUS_OK;
    }
    if (g->counts != NULL) {
        return sum_counts(g, data);
    }
    if (g->windows != NULL) {
        return grade_answers(g, data);
    }
    TRY(gather_values(g, data));
    return comm_agree(data, correlate(g));
}

/* ---- told ---- */

static int label_fields(const struct grading *g, int32_t label, struct metric *fields)
{
    const struct grade_class *c = &g->counts[label];
    fields[0] = metric_number(g->names[label][0], c->score.precision);
    fields[1] = metric_number(g->names[label][1], c->score.recall);
    fields[2] = metric_number(g->names[label][2], c->score.f1);
    fields[3] = metric_integer(g->names[label][3], c->labelled);
    return LABEL_METRICS;
}

static int class_fields(const struct grading *g, struct metric *fields)
{
    const struct grade_classes *c = &g->classes;
    const double values[] = {c->macro.f1,        c->micro.f1,        c->weighted.f1,
                             c->macro.precision, c->micro.precision, c->macro.recall,
                             c->micro.recall};
    int count = 0;
    for (; class_names[count] != NULL; count++) {
        fields[count] = metric_number(class_names[count], values[count]);
    }
    for (int32_t l = 0; l < g->labels && g->labels <= GRADING_LABELS_TOLD; l++) {
        count += label_fields(g, l, fields + count);
    }
    return count;
}

int grading_fields(const struct grading *g, struct metric *fields)
{
    if (g == NULL) {
        return 0;
    }
    if (g->counts != NULL) {
        return class_fields(g, fields);
    }
    const char *const *names = g->windows != NULL ? answer_names : number_names;
    fields[0] = metric_number(names[0], g->first);
    fields[1] = metric_number(names[1], g->second);
    return 2;
}
