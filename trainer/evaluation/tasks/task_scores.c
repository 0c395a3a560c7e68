/* The values of a document are
 *   multiple_choice         one for each metric
 *   generate_until          one for each filter and metric
 *   loglikelihood           log-probability; 1 if greedy decoding gives the target
 *   loglikelihood_rolling   log-probability, words, bytes
 * and at the end 1 if its context lost its beginning. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text_buffer.h"
#include "datasets/text/char_class.h"
#include "trainer/evaluation/tasks/task_scores_impl.h"
#include "trainer/evaluation/tasks/task_template_functions_impl.h"

static double *get_row(const struct task_scores *s, int64_t index)
{
    return s->values + index * s->width;
}

status task_scores_create(const struct task *t, struct task_scores *out)
{
    const struct task_config *c = task_get_config(t);
    int width = c->output == TASK_LOGLIKELIHOOD           ? 2
                : c->output == TASK_LOGLIKELIHOOD_ROLLING ? 3
                                                          : c->metric_count * c->filter_count;
    *out = (struct task_scores){
        .task = t, .config = c, .documents = task_document_count(t), .width = width + 1};
    return ALLOCATE(out->values, out->documents * out->width, "the scores of a task");
}

void task_scores_free(struct task_scores *s)
{
    free(s->values);
    s->values = NULL;
}

void task_scores_set_truncated(const struct task_scores *s, int64_t index)
{
    get_row(s, index)[s->width - 1] = 1;
}

/* ---- likelihoods ---- */

static bool is_target(const struct task_request *q, int64_t choice)
{
    for (size_t i = 0; i < json_array_size(q->targets); i++) {
        if (json_integer_value(json_array_get(q->targets, i)) == choice) {
            return true;
        }
    }
    return false;
}

/* Returns the divisor of a choice's log-probability. */
static double get_length(enum task_metric_kind kind, const json_t *choice)
{
    return kind == TASK_ACC_NORM    ? (double)task_template_length(choice)
           : kind == TASK_ACC_BYTES ? (double)json_string_length(choice)
                                    : 1;
}

static double score_choices(const struct task_request *q, enum task_metric_kind kind,
                            const struct log_likelihood_result *results, int64_t count)
{
    int64_t best = 0;
    double best_value = 0;
    for (int64_t i = 0; i < count; i++) {
        double value =
            results[i].log_probability / get_length(kind, json_array_get(q->choices, (size_t)i));
        if (i == 0 || value > best_value) {
            best = i;
            best_value = value;
        }
    }
    return is_target(q, best);
}

void task_scores_add_likelihoods(const struct task_scores *s, const struct task_request *q,
                                 const struct log_likelihood_result *results, int64_t count,
                                 int64_t index)
{
    double *row = get_row(s, index);
    if (s->config->output == TASK_LOGLIKELIHOOD) {
        row[0] = results[0].log_probability;
        row[1] = results[0].greedy;
    }
    for (int m = 0; s->config->output == TASK_MULTIPLE_CHOICE && m < s->config->metric_count; m++) {
        row[m] = score_choices(q, s->config->metrics[m].kind, results, count);
    }
    for (int64_t i = 0; i < count; i++) {
        row[s->width - 1] = results[i].truncated ? 1 : row[s->width - 1];
    }
}

/* Counts the parts of a text between runs of white space, as re.split(r"\s+", text) does. */
static int64_t count_words(const json_t *text)
{
    const char *at = json_string_value(text);
    bool is_space = false;
    int64_t words = 1;
    for (size_t left = json_string_length(text); left > 0;) {
        uint32_t code;
        size_t length = char_class_read(at, left, &code);
        bool was_space = is_space;
        is_space = char_class_is_space(code);
        words += is_space && !was_space;
        at += length;
        left -= length;
    }
    return words;
}

void task_scores_add_rolling(const struct task_scores *s, const json_t *text, double log_likelihood,
                             int64_t index)
{
    double *row = get_row(s, index);
    row[0] = log_likelihood;
    row[1] = (double)count_words(text);
    row[2] = (double)json_string_length(text);
}

/* ---- outputs ---- */

status task_scores_make_text(const char *text, size_t bytes, json_t **out)
{
    struct text_buffer b = {0};
    status result = STATUS_OK;
    for (size_t at = 0; at < bytes && result == STATUS_OK;) {
        uint32_t code;
        at += char_class_read(text + at, bytes - at, &code);
        result = text_buffer_append_char(&b, (int32_t)code);
    }
    return task_template_take_buffer(&b, result, out);
}

static status select_match(const struct task_step *step, json_t *text, json_t **out)
{
    const char *found = NULL;
    size_t bytes = 0;
    json_t *match = NULL;
    TRY(pattern_select(step->pattern, json_string_value(text), json_string_length(text),
                       step->group_select, &found, &bytes));
    if (found == NULL) {
        const char *fallback = step->fallback != NULL ? step->fallback : "";
        return task_template_make_string(fallback, strlen(fallback), out);
    }
    TRY(task_template_make_string(found, bytes, &match));
    status result = task_template_call("strip", &match, 1, out);
    json_decref(match);
    return result;
}

static status apply_step(const struct task_step *step, json_t *text, json_t **out)
{
    switch (step->kind) {
    case TASK_REGEX:
        return select_match(step, text, out);
    case TASK_REMOVE_WHITESPACE:
        return task_template_call("strip", &text, 1, out);
    case TASK_LOWERCASE:
        return task_template_call("lower", &text, 1, out);
    case TASK_UPPERCASE:
        return task_template_call("upper", &text, 1, out);
    case TASK_TAKE_FIRST:
        break;
    }
    *out = json_incref(text);
    return STATUS_OK;
}

static status apply_filter(const struct task_filter *f, const json_t *text, json_t **out)
{
    *out = json_incref((json_t *)text);
    for (int i = 0; i < f->step_count; i++) {
        json_t *next = NULL;
        TRY(apply_step(&f->steps[i], *out, &next));
        json_decref(*out);
        *out = next;
    }
    return STATUS_OK;
}

/* Removes characters of ASCII for which `is_removed` returns true. */
static void remove_characters(char *text, size_t *bytes, int (*is_removed)(int))
{
    size_t kept = 0;
    for (size_t i = 0; i < *bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x80 || !is_removed(c)) {
            text[kept++] = text[i];
        }
    }
    *bytes = kept;
}

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int is_punctuation(int c)
{
    return c > ' ' && c < 0x7f && !is_digit(c) && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

/* Removes the patterns and the characters that a metric ignores. */
static status normalize_text(const struct task_metric *m, const json_t *text, json_t **out)
{
    size_t bytes = json_string_length(text);
    char *copy = NULL;
    json_t *lower = NULL;
    TRY(ALLOCATE(copy, bytes + 1, "an output"));
    memcpy(copy, json_string_value(text), bytes);
    for (int i = 0; i < m->ignored_count; i++) {
        char *removed = NULL;
        status result = pattern_remove(m->ignored[i], copy, bytes, &removed, &bytes);
        free(copy);
        TRY(result);
        copy = removed;
    }
    if (m->ignore_punctuation) {
        remove_characters(copy, &bytes, is_punctuation);
    }
    if (m->ignore_numbers) {
        remove_characters(copy, &bytes, is_digit);
    }
    status result = task_template_make_string(copy, bytes, out);
    free(copy);
    if (result == STATUS_OK && m->ignore_case) {
        result = task_template_call("lower", out, 1, &lower);
        json_decref(*out);
        *out = lower;
    }
    return result;
}

/* Reads the last number of a text, such as "-1,234.5"; false: there is none. */
static bool find_last_number(const json_t *text, double *out)
{
    const char *s = json_string_value(text);
    size_t bytes = json_string_length(text); /* s[bytes] is NUL */
    bool is_found = false;
    for (size_t at = 0; at < bytes;) {
        char number[64];
        size_t count = 0, first = at;
        bool has_point = false;
        if (!is_digit(s[at])) {
            at++;
            continue;
        }
        if (first > 0 && s[first - 1] == '-') {
            number[count++] = '-';
        }
        for (; is_digit(s[at]) || (s[at] == ',' && is_digit(s[at + 1])) ||
               (s[at] == '.' && is_digit(s[at + 1]) && !has_point);
             at++) {
            has_point = has_point || s[at] == '.';
            if (s[at] != ',' && count < sizeof number - 1) {
                number[count++] = s[at];
            }
        }
        number[count] = '\0';
        *out = strtod(number, NULL);
        is_found = true;
    }
    return is_found;
}

static status compare_output(const struct task_metric *m, const json_t *output,
                             const json_t *target, bool *out)
{
    json_t *a = NULL, *b = NULL;
    double x, y;
    if (m->kind == TASK_NUMERIC_MATCH) {
        *out = find_last_number(output, &x) && find_last_number(target, &y) && x == y;
        return STATUS_OK;
    }
    status result = normalize_text(m, output, &a);
    if (result == STATUS_OK) {
        result = normalize_text(m, target, &b);
    }
    *out = result == STATUS_OK && json_equal(a, b) != 0;
    json_decref(a);
    json_decref(b);
    return result;
}

/* A document with several targets is correct if the output equals one of them. */
static status score_output(const struct task_scores *s, const struct task_request *q,
                           const json_t *output, double *row)
{
    for (int m = 0; m < s->config->metric_count; m++) {
        for (size_t i = 0; i < json_array_size(q->targets); i++) {
            bool is_equal = false;
            TRY(compare_output(&s->config->metrics[m], output, json_array_get(q->targets, i),
                               &is_equal));
            row[m] = is_equal ? 1 : row[m];
        }
    }
    return STATUS_OK;
}

status task_scores_add_output(const struct task_scores *s, const struct task_request *q,
                              const json_t *text, int64_t index)
{
    double *row = get_row(s, index);
    for (int f = 0; f < s->config->filter_count; f++) {
        json_t *output = NULL;
        status result = apply_filter(&s->config->filters[f], text, &output);
        if (result == STATUS_OK) {
            result = score_output(s, q, output, row + f * s->config->metric_count);
        }
        json_decref(output);
        TRY(result);
    }
    return STATUS_OK;
}

/* ---- metrics ---- */

static struct task_result compute_mean(const struct task_scores *s, int column)
{
    double sum = 0, squares = 0, n = (double)s->documents;
    for (int64_t i = 0; i < s->documents; i++) {
        sum += get_row(s, i)[column];
    }
    double mean = sum / n;
    for (int64_t i = 0; i < s->documents; i++) {
        double difference = get_row(s, i)[column] - mean;
        squares += difference * difference;
    }
    return (struct task_result){.value = mean,
                                .standard_error = n > 1 ? sqrt(squares / (n - 1)) / sqrt(n) : NAN};
}

/* Returns the sum of column 0 divided by the sum of another column, with the error of the ratio
 * estimator. */
static struct task_result compute_ratio(const struct task_scores *s, int column)
{
    double sum = 0, weights = 0, squares = 0, n = (double)s->documents;
    for (int64_t i = 0; i < s->documents; i++) {
        sum += get_row(s, i)[0];
        weights += get_row(s, i)[column];
    }
    double ratio = sum / weights;
    for (int64_t i = 0; i < s->documents; i++) {
        double residual = get_row(s, i)[0] - ratio * get_row(s, i)[column];
        squares += residual * residual;
    }
    return (struct task_result){
        .value = ratio, .standard_error = n > 1 ? sqrt(squares * n / (n - 1)) / weights : NAN};
}

/* Converts a mean log-probability to exp(-x). */
static struct task_result make_perplexity(struct task_result r)
{
    r.value = exp(-r.value);
    r.standard_error *= r.value;
    return r;
}

static struct task_result compute_metric(const struct task_scores *s, enum task_metric_kind kind,
                                         int column)
{
    struct task_result r;
    switch (kind) {
    case TASK_PERPLEXITY:
        return make_perplexity(compute_mean(s, 0));
    case TASK_WORD_PERPLEXITY:
        return make_perplexity(compute_ratio(s, 1));
    case TASK_BYTE_PERPLEXITY:
        return make_perplexity(compute_ratio(s, 2));
    case TASK_BITS_PER_BYTE:
        r = compute_ratio(s, 2);
        r.value = -r.value / log(2);
        r.standard_error /= log(2);
        return r;
    default:
        return compute_mean(s, s->config->output == TASK_LOGLIKELIHOOD ? 1 : column);
    }
}

static void add_result(const struct task_scores *s, int filter, int metric, struct task_report *out)
{
    const struct task_config *c = s->config;
    struct task_result *r = &out->results[out->count++];
    *r = compute_metric(s, c->metrics[metric].kind, filter * c->metric_count + metric);
    task_config_result_name(c, filter, metric, r->name);
}

status task_scores_report(const struct task_scores *s, struct comm *data, struct task_report *out)
{
    *out = (struct task_report){.documents = s->documents};
    TRY(comm_sum_doubles(data, s->values, s->documents * s->width));
    for (int64_t i = 0; i < s->documents; i++) {
        out->truncated += get_row(s, i)[s->width - 1] > 0;
    }
    for (int f = 0; f < s->config->filter_count; f++) {
        for (int m = 0; m < s->config->metric_count; m++) {
            add_result(s, f, m, out);
        }
    }
    return STATUS_OK;
}

/* ---- samples ---- */

status task_scores_print(const struct task_scores *s, const struct task_request *q,
                         const json_t *output, int64_t index, FILE *file)
{
    if (file == NULL) {
        return STATUS_OK;
    }
    const struct task_config *c = s->config;
    const double *row = get_row(s, index);
    json_t *line = json_pack("{s:s, s:I, s:O, s:O}", "task", c->name, "doc_id", (json_int_t)index,
                             "target", q->targets, "resps", output);
    TRY(task_template_require_memory(line));
    bool has_scores = c->output == TASK_MULTIPLE_CHOICE || c->output == TASK_GENERATE_UNTIL;
    for (int i = 0; has_scores && i < c->filter_count * c->metric_count; i++) {
        char name[TASK_RESULT_NAME_BYTES];
        task_config_result_name(c, i / c->metric_count, i % c->metric_count, name);
        json_object_set_new(line, name, json_real(row[i]));
    }
    if (c->output == TASK_LOGLIKELIHOOD) {
        json_object_set_new(line, "acc", json_real(row[1]));
    }
    json_dumpf(line, file, JSON_COMPACT);
    fputc('\n', file);
    json_decref(line);
    return STATUS_OK;
}
