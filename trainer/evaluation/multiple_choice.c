#include "trainer/evaluation/multiple_choice.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/memory.h"
#include "base/text.h"

enum { CHOICES_MAX = 64, LINE_BYTES_MAX = 1 << 22 };

struct row {
    const char *path;
    int64_t number; /* line number, from 1 */
    json_t *line;
    const char *context;
    json_t *choices;
    int64_t label;
};

static json_t *get_either(const json_t *row, const char *name, const char *other)
{
    json_t *value = json_object_get(row, name);
    return value != NULL ? value : json_object_get(row, other);
}

/* Reads the label: a number, or a string of digits as in HellaSwag on the Hugging Face Hub. */
static bool read_label(const json_t *value, int64_t *out)
{
    char reason[TEXT_REASON_BYTES];
    *out = json_integer_value(value);
    return json_is_integer(value) ||
           (json_is_string(value) && text_to_integer(json_string_value(value), out, reason));
}

static bool has_nul(const json_t *text)
{
    return strlen(json_string_value(text)) != json_string_length(text);
}

static status parse_row(const char *path, int64_t number, const char *text, size_t bytes,
                        struct row *out)
{
    json_error_t error;
    out->path = path;
    out->number = number;
    REQUIRE(memchr(text, '\0', bytes) == NULL, STATUS_DATA,
            "%s:%" PRId64 ": the line contains a NUL character; remove it", path, number);
    out->line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    REQUIRE(out->line != NULL, STATUS_DATA, "%s:%" PRId64 ": %s at column %d", path, number,
            error.text, error.column);
    json_t *context = get_either(out->line, "context", "ctx");
    out->choices = get_either(out->line, "choices", "endings");
    bool labeled = read_label(json_object_get(out->line, "label"), &out->label);
    const char *missing = !json_is_string(context)       ? "'context' that is a string"
                          : !json_is_array(out->choices) ? "'choices' that is a list of strings"
                          : !labeled                     ? "'label' that is a number"
                                                         : NULL;
    REQUIRE(missing == NULL, STATUS_DATA,
            "%s:%" PRId64
            ": no %s; expected {\"context\": string, \"choices\": [strings], \"label\": "
            "index}, or HellaSwag's ctx, endings and label",
            path, number, missing);
    size_t count = json_array_size(out->choices);
    out->context = json_string_value(context);
    REQUIRE(!has_nul(context), STATUS_DATA,
            "%s:%" PRId64 ": the context contains a NUL character; remove it", path, number);
    REQUIRE(count >= 2 && count <= CHOICES_MAX, STATUS_DATA,
            "%s:%" PRId64 ": the row has %zu choices; 2 to %d are accepted", path, number, count,
            CHOICES_MAX);
    REQUIRE(out->label >= 0 && out->label < (int64_t)count, STATUS_DATA,
            "%s:%" PRId64 ": label %" PRId64 " is not one of %zu choices, counted from 0", path,
            number, out->label, count);
    for (size_t i = 0; i < count; i++) {
        const char *choice = json_string_value(json_array_get(out->choices, i));
        REQUIRE(choice != NULL && choice[0] != '\0', STATUS_DATA,
                "%s:%" PRId64 ": choice %zu is not a string or is empty", path, number, i);
        REQUIRE(!has_nul(json_array_get(out->choices, i)), STATUS_DATA,
                "%s:%" PRId64 ": choice %zu contains a NUL character; remove it", path, number, i);
    }
    return STATUS_OK;
}

/* Encodes context and choice; the last *scored ids belong to the choice. */
static status encode_choice(const struct tokenizer *t, const char *context, const char *choice,
                            struct token_list *ids, int64_t *scored)
{
    size_t length = strlen(context), context_bytes = length;
    while (context_bytes > 0 && text_is_space(context[context_bytes - 1])) {
        context_bytes--;
    }
    const char *separator = context_bytes < length ? context + context_bytes : "";
    if (context_bytes > 0 && *separator == '\0' && !text_is_space(choice[0])) {
        separator = " ";
    }
    char *continuation = NULL;
    TRY(ALLOCATE(continuation, strlen(separator) + strlen(choice) + 1, "a choice"));
    strcpy(continuation, separator);
    strcat(continuation, choice);
    status result = tokenizer_encode(t, context, context_bytes, false, ids);
    if (result == STATUS_OK && ids->count == 0 && tokenizer_eos(t) >= 0) {
        result = token_list_add(ids, tokenizer_eos(t));
    }
    int64_t context_tokens = ids->count;
    if (result == STATUS_OK) {
        result = context_bytes > 0
                     ? tokenizer_encode_continued(t, continuation, strlen(continuation), ids)
                     : tokenizer_encode(t, continuation, strlen(continuation), false, ids);
    }
    free(continuation);
    *scored = ids->count - context_tokens;
    if (*scored == ids->count) { /* without a context the first token cannot be scored */
        (*scored)--;
    }
    return result;
}

/* Normalization 0: none; 1: by the bytes of the choice; 2: by its tokens. */
static double normalize_score(const struct log_likelihood_result *r, int normalization,
                              size_t bytes)
{
    switch (normalization) {
    case 0:
        return r->log_probability;
    case 1:
        return r->log_probability / (double)bytes;
    default:
        return r->log_probability / (double)(r->tokens > 0 ? r->tokens : 1);
    }
}

/* Counts whether the choice with the largest score is the label, for each normalization. */
static void count_choice(const struct row *row, const struct log_likelihood_result *results,
                         int64_t count, struct multiple_choice_report *out)
{
    double *correct[3] = {&out->correct, &out->correct_norm, &out->correct_norm_tokens};
    for (int normalization = 0; normalization < 3; normalization++) {
        int64_t best = 0;
        double best_value = 0;
        for (int64_t i = 0; i < count; i++) {
            size_t bytes = json_string_length(json_array_get(row->choices, (size_t)i));
            double value = normalize_score(&results[i], normalization, bytes);
            if (i == 0 || value > best_value) {
                best = i;
                best_value = value;
            }
        }
        *correct[normalization] += best == row->label;
    }
    for (int64_t i = 0; i < count; i++) {
        out->truncated += results[i].truncated;
    }
    out->choices += count;
    out->rows++;
}

static status run_row(struct kernels *k, struct model *m, const struct tokenizer *t,
                      int64_t rows_limit, const struct row *row, struct multiple_choice_report *out)
{
    int64_t count = (int64_t)json_array_size(row->choices);
    struct token_list ids[CHOICES_MAX] = {0};
    struct log_likelihood_item items[CHOICES_MAX] = {0};
    struct log_likelihood_result results[CHOICES_MAX];
    int64_t positions = model_get_config(m)->positions;
    status result = STATUS_OK;
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        const char *choice = json_string_value(json_array_get(row->choices, (size_t)i));
        result = encode_choice(t, row->context, choice, &ids[i], &items[i].scored);
        items[i].ids = ids[i].ids;
        items[i].count = ids[i].count;
        REQUIRE_GOTO(result, done, result != STATUS_OK || items[i].scored > 0, STATUS_DATA,
                     "%s:%" PRId64 ": choice %" PRId64
                     " is a single token without a context, so it cannot be scored; add a context",
                     row->path, row->number, i);
        REQUIRE_GOTO(result, done, result != STATUS_OK || items[i].scored <= positions, STATUS_DATA,
                     "%s:%" PRId64 ": choice %" PRId64 " has %" PRId64
                     " tokens, but the model has %" PRId64 " positions; shorten it",
                     row->path, row->number, i, items[i].scored, positions);
    }
    if (result == STATUS_OK) {
        result = log_likelihood_run(k, m, rows_limit, items, count, results);
    }
    if (result == STATUS_OK) {
        count_choice(row, results, count, out);
    }
done:
    for (int64_t i = 0; i < count; i++) {
        token_list_free(&ids[i]);
    }
    return result;
}

status multiple_choice_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                           const char *path, int64_t rows_limit, int64_t limit, int64_t first,
                           int64_t stride, struct multiple_choice_report *out)
{
    *out = (struct multiple_choice_report){0};
    struct line_reader lines;
    TRY(line_reader_open(path, &lines));
    status result = STATUS_OK;
    int64_t used = 0;
    for (bool found = true; result == STATUS_OK && found && (limit == 0 || used < limit);) {
        TRY_GOTO(result, done, line_reader_next(&lines, &found));
        if (!found || strspn(lines.line, " \t\r") == lines.bytes) {
            continue;
        }
        REQUIRE_GOTO(result, done, lines.bytes <= LINE_BYTES_MAX, STATUS_DATA,
                     "%s:%" PRId64 ": the line has more than %d bytes", path, lines.number,
                     LINE_BYTES_MAX);
        struct row row = {0};
        result = parse_row(path, lines.number, lines.line, lines.bytes, &row);
        if (result == STATUS_OK && used++ % stride == first) {
            result = run_row(k, m, t, rows_limit, &row, out);
        }
        json_decref(row.line);
    }
    REQUIRE_GOTO(result, done, used > 0 || result != STATUS_OK, STATUS_DATA,
                 "%s contains no rows; it needs JSON Lines with context, choices and label", path);
done:
    line_reader_close(&lines);
    return result;
}
