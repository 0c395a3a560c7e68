/* A window is stored as a JSON array: [sample, row, score of "no answer", score of the best span,
 * text of the best span, [[k, text of reference answer k], ...]]. A window may cut a reference
 * answer; an overlapping window then has the longer text. */
#include "trainer/evaluation/squad.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/example.h"
#include "datasets/tokenizer/qa_windows.h"
#include "trainer/inference/answer_span.h"

enum { SAMPLE, ROW, NONE_SCORE, BEST_SCORE, BEST_TEXT, REFERENCES };

struct squad {
    const struct tokenizer *tokenizer;
    double threshold;
    json_t *windows;
};

status squad_create(const struct tokenizer *t, double threshold, struct squad **out)
{
    TRY(ALLOCATE(*out, 1, "the windows of answers"));
    **out = (struct squad){t, threshold, json_array()};
    return STATUS_OK;
}

void squad_destroy(struct squad **s)
{
    if (*s != NULL) {
        json_decref((*s)->windows);
        free(*s);
        *s = NULL;
    }
}

void squad_clear(struct squad *s)
{
    json_array_clear(s->windows);
}

/* ---- one window ---- */

/* Finds the context: the tokens after the question and its delimiter, without the final [SEP] of
 * encoders. */
static void find_context(const struct squad *s, const struct objective_example *e, int64_t *first,
                         int64_t *count)
{
    struct tokenizer_specials special = tokenizer_get_specials(s->tokenizer);
    bool encoder = special.cls >= 0 && special.sep >= 0;
    int32_t delimiter = encoder ? special.sep : tokenizer_eos(s->tokenizer);
    int64_t i = 0;
    while (i < e->token_count && e->tokens[i] != delimiter) {
        i++;
    }
    while (i < e->token_count && e->tokens[i] == delimiter) {
        i++; /* RoBERTa has two delimiters */
    }
    *first = i < e->token_count ? i : 0;
    *count = e->token_count - *first - encoder;
}

/* Joins WordPiece tokens. The tokens do not contain blanks, so the loader's marks place them. */
static status join_wordpieces(const struct squad *s, const struct objective_example *e,
                              int64_t first, int64_t last, json_t **out)
{
    char *text = NULL;
    size_t used = 0;
    FILE *file = open_memstream(&text, &used);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for an answer");
    status result = STATUS_OK;
    for (int64_t i = first; i <= last && result == STATUS_OK; i++) {
        char *bytes = NULL;
        size_t count = 0;
        result = qa_windows_token_text(s->tokenizer, e->tokens[i], &bytes, &count);
        bool blank = i > first && (e->token_flags[i] & EXAMPLE_AFTER_SPACE) != 0;
        fprintf(file, "%s%.*s", blank ? " " : "", (int)count, bytes != NULL ? bytes : "");
        free(bytes);
    }
    fclose(file);
    *out = result == STATUS_OK ? json_stringn_nocheck(text, used) : NULL;
    free(text);
    return result;
}

static status decode_span(const struct squad *s, const struct objective_example *e, int64_t first,
                          int64_t last, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    if (tokenizer_get_kind(s->tokenizer) == TOKENIZER_WORDPIECE) {
        return join_wordpieces(s, e, first, last, out);
    }
    TRY(tokenizer_decode(s->tokenizer, e->tokens + first, last - first + 1, true, &text, &bytes));
    *out = json_stringn(text, bytes); /* NULL if a token is a partial character */
    free(text);
    *out = *out != NULL ? *out : json_string("");
    return STATUS_OK;
}

/* Finds the tokens of reference answer k; returns false if there are none. */
static bool find_reference(const struct objective_example *e, int k, int64_t *first, int64_t *last)
{
    *first = *last = -1;
    for (int64_t i = 0; i < e->token_count; i++) {
        if ((e->token_flags[i] & 1 << k) != 0) {
            *first = *first < 0 ? i : *first;
            *last = i;
        }
    }
    return *first >= 0;
}

static status add_references(const struct squad *s, const struct objective_example *e, json_t *list)
{
    for (int k = 0; k < EXAMPLE_ANSWERS_MAX; k++) {
        int64_t first, last;
        json_t *text = NULL;
        if (find_reference(e, k, &first, &last)) {
            TRY(decode_span(s, e, first, last, &text));
            json_array_append_new(list, json_pack("[i, o]", k, text));
        }
    }
    return STATUS_OK;
}

status squad_add_window(struct squad *s, const struct objective_example *e)
{
    int64_t first, count;
    json_t *text = NULL, *references = json_array();
    REQUIRE(e->columns == 2 && e->tokens != NULL && e->token_flags != NULL &&
                e->token_count == e->rows,
            STATUS_INTERNAL, "a window has no tokens or flags, or not two outputs per token");
    find_context(s, e, &first, &count);
    struct answer_span none = answer_span_none(e->outputs, e->rows), best = none;
    if (count > 0) {
        best = answer_span_best(e->outputs, e->rows, first, count, ANSWER_SPAN_TOKENS_MAX);
    }
    status result = decode_span(s, e, best.first, best.last, &text);
    if (result == STATUS_OK) {
        result = add_references(s, e, references);
    }
    json_t *window =
        json_pack("[I, I, f, f, o, o]", (json_int_t)e->sample, (json_int_t)e->row, none.score,
                  best.score, text != NULL ? text : json_string(""), references);
    bool stored = json_array_append_new(s->windows, window) == 0;
    TRY(result);
    REQUIRE(isfinite(none.score) && isfinite(best.score), STATUS_NOT_FINITE,
            "the scores of sample %" PRId64
            " are %g and %g: the weights are not finite, or training "
            "diverged",
            e->sample, none.score, best.score);
    REQUIRE(stored, STATUS_INTERNAL, "out of memory for the windows of answers");
    return STATUS_OK;
}

/* ---- all windows ---- */

static int64_t get_integer(const json_t *window, size_t field)
{
    return (int64_t)json_integer_value(json_array_get(window, field));
}

static int compare_samples(const void *a, const void *b)
{
    int64_t x = get_integer(*(json_t *const *)a, SAMPLE),
            y = get_integer(*(json_t *const *)b, SAMPLE);
    return (x > y) - (x < y);
}

/* Gathers the windows of all ranks as JSON texts, padded to the longest one. */
static status gather_windows(struct squad *s, struct comm *data, json_t **out)
{
    int ranks = comm_size(data);
    char *local = json_dumps(s->windows, JSON_COMPACT | JSON_ENSURE_ASCII), *all = NULL,
         *padded = NULL;
    double *lengths = NULL;
    int64_t max_length = 0;
    status result = STATUS_OK;
    *out = json_array();
    REQUIRE_GOTO(result, agree, local != NULL, STATUS_INTERNAL,
                 "out of memory for the windows of answers");
    TRY_GOTO(result, agree, ALLOCATE(lengths, ranks, "the windows of answers"));
    lengths[comm_rank(data)] = (double)strlen(local) + 1;
agree:
    TRY_GOTO(result, done, comm_agree(data, result));
    TRY_GOTO(result, done, comm_sum_doubles(data, lengths, ranks));
    for (int r = 0; r < ranks; r++) {
        max_length = number_max(max_length, (int64_t)lengths[r]);
    }
    result = ALLOCATE(padded, max_length, "the windows of answers");
    KEEP_FIRST(result, ALLOCATE(all, ranks * max_length, "the windows of answers"));
    TRY_GOTO(result, done, comm_agree(data, result));
    memcpy(padded, local, strlen(local));
    TRY_GOTO(result, done, comm_all_gather_bytes(data, all, padded, (size_t)max_length));
    for (int r = 0; r < ranks; r++) {
        json_t *part = json_loads(all + r * max_length, 0, NULL);
        json_array_extend(*out, part);
        json_decref(part);
    }
done:
    free(local);
    free(padded);
    free(all);
    free(lengths);
    return result;
}

/* Scores of a question, combined from its windows. */
struct question {
    double none_score, best_score;
    const char *best_text;
    const char *references[EXAMPLE_ANSWERS_MAX];
};

static void add_window(struct question *q, const json_t *window)
{
    const json_t *references = json_array_get(window, REFERENCES), *entry;
    double score = json_real_value(json_array_get(window, BEST_SCORE));
    size_t i;
    q->none_score = fmin(q->none_score, json_real_value(json_array_get(window, NONE_SCORE)));
    if (q->best_text == NULL || score > q->best_score) {
        q->best_score = score;
        q->best_text = json_string_value(json_array_get(window, BEST_TEXT));
    }
    json_array_foreach(references, i, entry)
    {
        int64_t k = get_integer(entry, 0);
        const char *text = json_string_value(json_array_get(entry, 1));
        if (q->references[k] == NULL || strlen(text) > strlen(q->references[k])) {
            q->references[k] = text;
        }
    }
}

static status score_question(const struct squad *s, const struct question *q,
                             struct scores_answer *sum)
{
    const char *references[EXAMPLE_ANSWERS_MAX];
    struct scores_answer score;
    int count = 0;
    bool none = q->none_score - q->best_score > s->threshold;
    for (int k = 0; k < EXAMPLE_ANSWERS_MAX; k++) {
        if (q->references[k] != NULL) {
            references[count++] = q->references[k];
        }
    }
    TRY(scores_compare_answer(none ? "" : q->best_text, references, count, &score));
    sum->exact_match += score.exact_match;
    sum->f1 += score.f1;
    return STATUS_OK;
}

static status score_questions(const struct squad *s, json_t *const *windows, size_t count,
                              struct scores_answer *out)
{
    double questions = 0;
    for (size_t first = 0, end = 0; first < count; first = end) {
        struct question q = {.none_score = INFINITY};
        for (; end < count && get_integer(windows[end], ROW) == get_integer(windows[first], ROW);
             end++) {
            add_window(&q, windows[end]);
        }
        TRY(score_question(s, &q, out));
        questions++;
    }
    out->exact_match /= fmax(1, questions);
    out->f1 /= fmax(1, questions);
    return STATUS_OK;
}

status squad_mean(struct squad *s, struct comm *data, struct scores_answer *out)
{
    json_t *all = NULL;
    *out = (struct scores_answer){0};
    status result = gather_windows(s, data, &all);
    size_t count = json_array_size(all);
    json_t **sorted = NULL;
    KEEP_FIRST(result, ALLOCATE(sorted, count + 1, "the windows of answers"));
    if (result == STATUS_OK) {
        for (size_t i = 0; i < count; i++) {
            sorted[i] = json_array_get(all, i);
        }
        qsort(sorted, count, sizeof *sorted, compare_samples);
        result = score_questions(s, sorted, count, out);
    }
    free(sorted);
    json_decref(all);
    return result;
}
