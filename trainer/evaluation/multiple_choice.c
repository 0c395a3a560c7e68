#include "trainer/evaluation/multiple_choice.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { CHOICES_LIMIT = 64, LINE_LIMIT_BYTES = 1 << 22 };

struct row {
    const char *path;
    int64_t number; /* of the line, from 1 */
    json_t *line;
    const char *context;
    json_t *choices;
    int64_t label;
};

static json_t *either(const json_t *row, const char *name, const char *other)
{
    json_t *value = json_object_get(row, name);
    return value != NULL ? value : json_object_get(row, other);
}

/* A number, or as HellaSwag's rows on the Hub have it, its digits. */
static bool read_label(const json_t *value, int64_t *out)
{
    char reason[TEXT_REASON_BYTES];
    *out = json_integer_value(value);
    return json_is_integer(value) ||
           (json_is_string(value) && text_to_integer(json_string_value(value), out, reason));
}

static status parse_row(const char *path, int64_t number, const char *text, struct row *out)
{
    json_error_t error;
    out->path = path;
    out->number = number;
    out->line = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(out->line != NULL, STATUS_DATA, "%s:%lld: %s at column %d", path, (long long)number,
            error.text, error.column);
    json_t *context = either(out->line, "context", "ctx");
    out->choices = either(out->line, "choices", "endings");
    bool labelled = read_label(json_object_get(out->line, "label"), &out->label);
    const char *wrong = !json_is_string(context)       ? "\"context\" that is a text"
                        : !json_is_array(out->choices) ? "\"choices\" that is a list of texts"
                        : !labelled                    ? "\"label\" that is a number"
                                                       : NULL;
    REQUIRE(
        wrong == NULL, STATUS_DATA,
        "%s:%lld: no %s; wanted {\"context\": text, \"choices\": [texts], \"label\": index}, or "
        "HellaSwag's ctx, endings and label",
        path, (long long)number, wrong);
    size_t count = json_array_size(out->choices);
    out->context = json_string_value(context);
    REQUIRE(count >= 2 && count <= CHOICES_LIMIT, STATUS_DATA,
            "%s:%lld: %zu choices, 2 to %d are accepted", path, (long long)number, count,
            CHOICES_LIMIT);
    REQUIRE(out->label >= 0 && out->label < (int64_t)count, STATUS_DATA,
            "%s:%lld: label %lld is not one of %zu choices, counted from 0", path,
            (long long)number, (long long)out->label, count);
    for (size_t i = 0; i < count; i++) {
        const char *choice = json_string_value(json_array_get(out->choices, i));
        REQUIRE(choice != NULL && choice[0] != '\0', STATUS_DATA,
                "%s:%lld: choice %zu is not a text or empty", path, (long long)number, i);
    }
    return STATUS_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

/* ids = context and choice; *scored of them are the choice's. */
static status encode_choice(const struct tokenizer *t, const char *context, const char *choice,
                            struct token_list *ids, int64_t *scored)
{
    size_t length = strlen(context), kept = length;
    while (kept > 0 && is_blank(context[kept - 1])) {
        kept--;
    }
    const char *between = kept < length ? context + kept : "";
    if (kept > 0 && *between == '\0' && !is_blank(choice[0])) {
        between = " ";
    }
    char *continuation = malloc(strlen(between) + strlen(choice) + 1);
    REQUIRE(continuation != NULL, STATUS_INTERNAL, "out of memory for a choice");
    strcpy(continuation, between);
    strcat(continuation, choice);
    status result = tokenizer_encode(t, context, kept, false, ids);
    if (result == STATUS_OK && ids->count == 0 && tokenizer_eos(t) >= 0) {
        result = token_list_reserve(ids, 1);
        if (result == STATUS_OK) {
            ids->ids[ids->count++] = tokenizer_eos(t);
        }
    }
    int64_t before = ids->count;
    if (result == STATUS_OK) {
        result = tokenizer_encode(t, continuation, strlen(continuation), false, ids);
    }
    free(continuation);
    *scored = ids->count - before;
    if (*scored == ids->count) { /* no context at all: the first token cannot be scored */
        (*scored)--;
    }
    return result;
}

static double normalised(const struct score_result *r, int kind, size_t bytes)
{
    switch (kind) {
    case 0:
        return r->log_probability;
    case 1:
        return r->log_probability / (double)bytes;
    default:
        return r->log_probability / (double)(r->tokens > 0 ? r->tokens : 1);
    }
}

static void judge(const struct row *row, const struct score_result *results, int64_t count,
                  struct task_report *out)
{
    double *correct[3] = {&out->correct, &out->correct_norm, &out->correct_norm_tokens};
    for (int kind = 0; kind < 3; kind++) {
        int64_t best = 0;
        double best_value = 0;
        for (int64_t i = 0; i < count; i++) {
            size_t bytes = json_string_length(json_array_get(row->choices, (size_t)i));
            double value = normalised(&results[i], kind, bytes);
            if (i == 0 || value > best_value) {
                best = i;
                best_value = value;
            }
        }
        *correct[kind] += best == row->label;
    }
    for (int64_t i = 0; i < count; i++) {
        out->cut += results[i].cut;
    }
    out->choices += count;
    out->rows++;
}

static status run_row(struct kernels *k, struct model *m, const struct tokenizer *t,
                      int64_t rows_limit, const struct row *row, struct task_report *out)
{
    int64_t count = (int64_t)json_array_size(row->choices);
    struct token_list ids[CHOICES_LIMIT] = {0};
    struct score_item items[CHOICES_LIMIT] = {0};
    struct score_result results[CHOICES_LIMIT];
    int64_t positions = model_config_of(m)->positions;
    status result = STATUS_OK;
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        const char *choice = json_string_value(json_array_get(row->choices, (size_t)i));
        result = encode_choice(t, row->context, choice, &ids[i], &items[i].scored);
        items[i].ids = ids[i].ids;
        items[i].count = ids[i].count;
        REQUIRE_GOTO(result, done, result != STATUS_OK || items[i].scored > 0, STATUS_DATA,
                     "%s:%lld: choice %lld is a single token without context: it cannot be scored",
                     row->path, (long long)row->number, (long long)i);
        REQUIRE_GOTO(result, done, result != STATUS_OK || items[i].scored <= positions, STATUS_DATA,
                     "%s:%lld: choice %lld has %lld tokens, the model has %lld positions",
                     row->path, (long long)row->number, (long long)i, (long long)items[i].scored,
                     (long long)positions);
    }
    if (result == STATUS_OK) {
        result = score_run(k, m, rows_limit, items, count, results);
    }
    if (result == STATUS_OK) {
        judge(row, results, count, out);
    }
done:
    for (int64_t i = 0; i < count; i++) {
        token_list_free(&ids[i]);
    }
    return result;
}

status task_run(struct kernels *k, struct model *m, const struct tokenizer *t, const char *path,
                int64_t rows_limit, int64_t limit, int64_t first, int64_t stride,
                struct task_report *out)
{
    *out = (struct task_report){0};
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    status result = STATUS_OK;
    char *text = NULL;
    size_t capacity = 0;
    int64_t number = 0, used = 0;
    for (ssize_t got; result == STATUS_OK && (got = getline(&text, &capacity, file)) >= 0;) {
        number++;
        if (strspn(text, " \t\r\n") == (size_t)got || (limit > 0 && used == limit)) {
            continue;
        }
        REQUIRE_GOTO(result, done, got <= LINE_LIMIT_BYTES, STATUS_DATA,
                     "%s:%lld: a line of %zd bytes, at most %d are accepted", path,
                     (long long)number, got, LINE_LIMIT_BYTES);
        struct row row = {0};
        result = parse_row(path, number, text, &row);
        if (result == STATUS_OK && used++ % stride == first) {
            result = run_row(k, m, t, rows_limit, &row, out);
        }
        json_decref(row.line);
    }
    REQUIRE_GOTO(result, done, !ferror(file) || result != STATUS_OK, STATUS_DATA,
                 "cannot read %s: %s", path, strerror(errno));
    REQUIRE_GOTO(result, done, used > 0 || result != STATUS_OK, STATUS_DATA, "%s holds no rows",
                 path);
done:
    free(text);
    fclose(file);
    return result;
}
