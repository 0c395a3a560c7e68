/* A window is kept as [sample, row, score of none, score of the best span, its text, [[k, text of right answer k], ...]]. Of a
 * right answer that a window cuts there is a longer text in another one: windows overlap. */
#include "trainer/evaluation/squad.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/qa_windows.h"
#include "datasets/shard/example.h"
#include "trainer/inference/answer_span.h"

enum { SAMPLE, ROW, NONE, SCORE, SAID, RIGHT };

struct grade_windows {
    const struct tokenizer *tokenizer;
    double threshold;
    json_t *windows;
};

status grade_windows_create(const struct tokenizer *t, double threshold, struct grade_windows **out)
{
    *out = calloc(1, sizeof **out);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for answers");
    **out = (struct grade_windows){t, threshold, json_array()};
    return STATUS_OK;
}

void grade_windows_destroy(struct grade_windows **w)
{
    if (*w != NULL) {
        json_decref((*w)->windows);
        free(*w);
        *w = NULL;
    }
}

void grade_windows_clear(struct grade_windows *w)
{
    json_array_clear(w->windows);
}

/* ---- one window ---- */

/* Tokens behind the question and its delimiter, the last mark of encoders left out. */
static void context_of(const struct grade_windows *w, const struct objective_example *e,
                       int64_t *first, int64_t *count)
{
    struct tokenizer_specials special = tokenizer_specials_of(w->tokenizer);
    bool encoder = special.cls >= 0 && special.sep >= 0;
    int32_t delimiter = encoder ? special.sep : tokenizer_eos(w->tokenizer);
    int64_t at = 0;
    while (at < e->token_count && e->tokens[at] != delimiter) {
        at++;
    }
    while (at < e->token_count && e->tokens[at] == delimiter) {
        at++; /* RoBERTa has two */
    }
    *first = at < e->token_count ? at : 0;
    *count = e->token_count - *first - encoder;
}

/* WordPiece's pieces say nothing of blanks. */
static status join_pieces(const struct grade_windows *w, const struct objective_example *e,
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
        result = answers_token(w->tokenizer, e->tokens[i], &bytes, &count);
        bool blank = i > first && (e->marks[i] & EXAMPLE_BEHIND_BLANK) != 0;
        fprintf(file, "%s%.*s", blank ? " " : "", (int)count, bytes != NULL ? bytes : "");
        free(bytes);
    }
    fclose(file);
    *out = result == STATUS_OK ? json_stringn_nocheck(text, used) : NULL;
    free(text);
    return result;
}

static status text_of(const struct grade_windows *w, const struct objective_example *e,
                      int64_t first, int64_t last, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    if (tokenizer_kind_of(w->tokenizer) == TOKENIZER_WORDPIECE) {
        return join_pieces(w, e, first, last, out);
    }
    TRY(tokenizer_decode(w->tokenizer, e->tokens + first, last - first + 1, true, &text, &bytes));
    *out = json_stringn(text, bytes); /* not where a token is half a letter */
    free(text);
    *out = *out != NULL ? *out : json_string("");
    return STATUS_OK;
}

/* The tokens that are parts of right answer k; false: none. */
static bool find_right(const struct objective_example *e, int k, int64_t *first, int64_t *last)
{
    *first = *last = -1;
    for (int64_t i = 0; i < e->token_count; i++) {
        if ((e->marks[i] & 1 << k) != 0) {
            *first = *first < 0 ? i : *first;
            *last = i;
        }
    }
    return *first >= 0;
}

static status add_right(const struct grade_windows *w, const struct objective_example *e,
                        json_t *list)
{
    for (int k = 0; k < EXAMPLE_RIGHT_MOST; k++) {
        int64_t first, last;
        json_t *text = NULL;
        if (find_right(e, k, &first, &last)) {
            TRY(text_of(w, e, first, last, &text));
            json_array_append_new(list, json_pack("[i, o]", k, text));
        }
    }
    return STATUS_OK;
}

status grade_windows_take(struct grade_windows *w, const struct objective_example *e)
{
    int64_t first, count;
    json_t *said = NULL, *right = json_array();
    REQUIRE(e->columns == 2 && e->tokens != NULL && e->marks != NULL && e->token_count == e->rows,
            STATUS_INTERNAL, "an answer without its window");
    context_of(w, e, &first, &count);
    struct span none = span_none(e->outputs, e->rows), best = none;
    if (count > 0) {
        best = span_best(e->outputs, e->rows, first, count, SPAN_TOKENS);
    }
    status result = text_of(w, e, best.first, best.last, &said);
    if (result == STATUS_OK) {
        result = add_right(w, e, right);
    }
    json_t *window =
        json_pack("[I, I, f, f, o, o]", (json_int_t)e->sample, (json_int_t)e->row, none.score,
                  best.score, said != NULL ? said : json_string(""), right);
    bool kept = json_array_append_new(w->windows, window) == 0;
    TRY(result);
    REQUIRE(kept, STATUS_NOT_FINITE,
            "the scores of sample %lld are %g and %g: the weights are not finite, or training "
            "diverged",
            (long long)e->sample, none.score, best.score);
    return STATUS_OK;
}

/* ---- all windows ---- */

static int64_t integer_of(const json_t *window, size_t field)
{
    return (int64_t)json_integer_value(json_array_get(window, field));
}

static int by_sample(const void *a, const void *b)
{
    int64_t x = integer_of(*(json_t *const *)a, SAMPLE),
            y = integer_of(*(json_t *const *)b, SAMPLE);
    return (x > y) - (x < y);
}

/* Every rank's windows as texts, each padded to the longest. */
static status gather(struct grade_windows *w, struct comm *data, json_t **out)
{
    int ranks = comm_size(data);
    char *mine = json_dumps(w->windows, JSON_COMPACT | JSON_ENSURE_ASCII), *all = NULL,
         *sent = NULL;
    double *lengths = calloc((size_t)ranks, sizeof *lengths);
    int64_t most = 0;
    status result = STATUS_OK;
    *out = json_array();
    REQUIRE_GOTO(result, agree, mine != NULL && lengths != NULL, STATUS_INTERNAL,
                 "out of memory for answers");
    lengths[comm_rank(data)] = (double)strlen(mine) + 1;
agree:
    TRY_GOTO(result, done, comm_agree(data, result));
    TRY_GOTO(result, done, comm_sum_doubles(data, lengths, ranks));
    for (int r = 0; r < ranks; r++) {
        most = (int64_t)lengths[r] > most ? (int64_t)lengths[r] : most;
    }
    sent = calloc((size_t)most, 1);
    all = calloc((size_t)(ranks * most), 1);
    bool there = sent != NULL && all != NULL;
    TRY_GOTO(result, done,
             comm_agree(data, there ? STATUS_OK
                                    : status_raise(STATUS_INTERNAL, __FILE__, __LINE__,
                                                   "out of memory for answers")));
    memcpy(sent, mine, strlen(mine));
    TRY_GOTO(result, done, comm_all_gather_bytes(data, all, sent, (size_t)most));
    for (int r = 0; r < ranks; r++) {
        json_t *part = json_loads(all + r * most, 0, NULL);
        json_array_extend(*out, part);
        json_decref(part);
    }
done:
    free(mine);
    free(sent);
    free(all);
    free(lengths);
    return result;
}

/* A question, as its windows come. */
struct question {
    double none, score;
    const char *said;
    const char *right[EXAMPLE_RIGHT_MOST];
};

static void add_window(struct question *q, const json_t *window)
{
    const json_t *right = json_array_get(window, RIGHT), *one;
    double score = json_real_value(json_array_get(window, SCORE));
    size_t i;
    q->none = fmin(q->none, json_real_value(json_array_get(window, NONE)));
    if (q->said == NULL || score > q->score) {
        q->score = score;
        q->said = json_string_value(json_array_get(window, SAID));
    }
    json_array_foreach(right, i, one)
    {
        int64_t k = integer_of(one, 0);
        const char *text = json_string_value(json_array_get(one, 1));
        if (q->right[k] == NULL || strlen(text) > strlen(q->right[k])) {
            q->right[k] = text;
        }
    }
}

static status grade_question(const struct grade_windows *w, const struct question *q,
                             struct grade_answer *sum)
{
    const char *right[EXAMPLE_RIGHT_MOST];
    struct grade_answer one;
    int count = 0;
    bool none = q->none - q->score > w->threshold;
    for (int k = 0; k < EXAMPLE_RIGHT_MOST; k++) {
        if (q->right[k] != NULL) {
            right[count++] = q->right[k];
        }
    }
    TRY(grade_answer(none ? "" : q->said, right, count, &one));
    sum->exact += one.exact;
    sum->f1 += one.f1;
    return STATUS_OK;
}

static status grade_all(const struct grade_windows *w, json_t *const *windows, size_t count,
                        struct grade_answer *out)
{
    double questions = 0;
    for (size_t first = 0, end = 0; first < count; first = end) {
        struct question q = {.none = INFINITY};
        for (; end < count && integer_of(windows[end], ROW) == integer_of(windows[first], ROW);
             end++) {
            add_window(&q, windows[end]);
        }
        TRY(grade_question(w, &q, out));
        questions++;
    }
    out->exact /= fmax(1, questions);
    out->f1 /= fmax(1, questions);
    return STATUS_OK;
}

status grade_windows_mean(struct grade_windows *w, struct comm *data, struct grade_answer *out)
{
    json_t *all = NULL;
    *out = (struct grade_answer){0};
    status result = gather(w, data, &all);
    size_t count = json_array_size(all);
    json_t **sorted = calloc(count + 1, sizeof *sorted);
    if (result == STATUS_OK && sorted != NULL) {
        for (size_t i = 0; i < count; i++) {
            sorted[i] = json_array_get(all, i);
        }
        qsort(sorted, count, sizeof *sorted, by_sample);
        result = grade_all(w, sorted, count, out);
    }
    bool there = sorted != NULL;
    free(sorted);
    json_decref(all);
    TRY(result);
    REQUIRE(there, STATUS_INTERNAL, "out of memory for answers");
    return STATUS_OK;
}
