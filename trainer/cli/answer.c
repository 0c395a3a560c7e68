/* bireme answer: where in a text the answer to a question stands, by a model that was trained with objective answer.
 *
 * A long text is looked at in windows (answers.h); the best span of all of them is told, or none where each window says
 * better that it has none, as transformers' run_qa decides it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/qa_windows.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/answer_span.h"

struct request {
    struct asking_request asked;
    const char *question;
    int64_t tokens;
};

/* A line whose windows are on their way through the model. */
struct line {
    char *text; /* question, its end, context */
    const char *question, *context;
    struct answers answers;
    int64_t left; /* windows that have not been answered yet */
    struct span best;
    int64_t begin, end; /* of the best: code points of the context */
    struct span none;   /* of having no answer: the one with the least score */
    struct line *next;
};

struct answering {
    const struct request *q;
    struct line *lines; /* all that are not told yet, the oldest first */
    struct line *of[ASKING_TEXTS];
    struct answers_window window[ASKING_TEXTS];
    double threshold; /* of having no answer */
    int32_t *rows;    /* 0, 1, ... */
    float *outputs;   /* [rows of a batch, 2] */
};

static void drop_line(struct answering *c)
{
    struct line *l = c->lines;
    c->lines = l->next;
    answers_free(&l->answers);
    free(l->text);
    free(l);
}

/* ---- told ---- */

static status print_answer(const struct answering *c, const struct line *l)
{
    struct text context = {l->context, strlen(l->context)};
    bool found = !(l->none.score - l->best.score > c->threshold);
    double probability = found ? l->best.probability : l->none.probability;
    size_t begin = found ? answers_byte(&context, l->begin) : 0;
    size_t end = found ? answers_byte(&context, l->end) : 0;
    if (!c->q->asked.json) {
        printf("%.*s\t%.4f\n", (int)(end - begin), l->context + begin, probability);
        return STATUS_OK;
    }
    return report_print(json_pack("{s:s, s:s#, s:I, s:I, s:f}", "question", l->question, "answer",
                                  l->context + begin, (int)(end - begin), "begin",
                                  (json_int_t)(found ? l->begin : 0), "end",
                                  (json_int_t)(found ? l->end : 0), "probability", probability));
}

/* What one window says. */
static void take_window(const struct answering *c, struct line *l, const struct answers_window *w,
                        const float *outputs, int64_t tokens)
{
    struct span s = span_best(outputs, tokens, w->context, w->tokens, c->q->tokens);
    if (s.score > l->best.score) {
        l->best = s;
        l->begin = l->answers.begin.ids[w->token + s.first - w->context];
        l->end = l->answers.end.ids[w->token + s.last - w->context];
    }
    struct span none = span_none(outputs, tokens);
    l->none = none.score < l->none.score ? none : l->none;
}

static status answer(struct asking *a)
{
    struct answering *c = a->user;
    TRY(asking_outputs(a, c->rows, a->cu_rows[a->count], c->outputs));
    for (int i = 0; i < a->count; i++) {
        int32_t row = a->cu_rows[i];
        take_window(c, c->of[i], &c->window[i], c->outputs + 2 * row, a->cu_rows[i + 1] - row);
        if (--c->of[i]->left == 0) { /* its last one: lines are answered in their order */
            TRY(print_answer(c, c->of[i]));
            drop_line(c);
        }
    }
    return STATUS_OK;
}

/* ---- asked ---- */

static status add_window(struct asking *a, struct line *l, int64_t window)
{
    struct answering *c = a->user;
    struct token_list ids = {0};
    struct answers_window w;
    status result = answers_window(&l->answers, window, &ids, &w);
    if (result == STATUS_OK) {
        result = asking_add_tokens(a, l->question, &ids, w.first);
    }
    if (result == STATUS_OK) {
        c->of[a->count - 1] = l;
        c->window[a->count - 1] = w;
    }
    token_list_free(&ids);
    return result;
}

static status make_line(struct answering *c, const char *text, struct line **out)
{
    const char *question = c->q->question;
    struct line *l = calloc(1, sizeof *l), **end = &c->lines;
    REQUIRE(l != NULL, STATUS_INTERNAL, "out of memory");
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *out = *end = l;
    l->best.score = -INFINITY;
    l->none.score = INFINITY;
    l->text = strdup(text);
    REQUIRE(l->text != NULL, STATUS_INTERNAL, "out of memory");
    char *tab = question == NULL ? strchr(l->text, '\t') : NULL;
    REQUIRE(question != NULL || tab != NULL, STATUS_DATA,
            "no tab: a line is a question, a tab and a text; or give --question");
    l->question = question != NULL ? question : l->text;
    l->context = question != NULL ? l->text : tab + 1;
    if (tab != NULL) {
        *tab = '\0';
    }
    return STATUS_OK;
}

static status take(void *user, const char *text, size_t bytes)
{
    struct asking *a = user;
    struct line *l;
    int64_t most = model_positions(model_config_of(a->session.model));
    int64_t length = a->session.recipe.data.sequence_length;
    (void)bytes;
    TRY(make_line(a->user, text, &l));
    struct text question = {l->question, strlen(l->question)};
    struct text context = {l->context, strlen(l->context)};
    TRY(answers_encode(a->session.tokenizer, &question, &context, length < most ? length : most,
                       &l->answers));
    l->left = l->answers.windows;
    for (int64_t w = 0, windows = l->left; w < windows; w++) {
        TRY(add_window(a, l, w));
    }
    return STATUS_OK;
}

/* ---- the command ---- */

static status prepare(struct asking *a, const char *checkpoint)
{
    struct answering *c = a->user;
    REQUIRE(strcmp(a->session.recipe.objective, "answer") == 0, STATUS_DATA,
            "%s was trained for %s: answer needs a model that was trained with objective answer",
            checkpoint, a->session.recipe.objective);
    const char *question = c->q->question != NULL ? c->q->question : "";
    TRY(asking_check(question, strlen(question)));
    c->threshold = a->session.recipe.answer.no_answer_threshold;
    c->rows = calloc((size_t)a->rows, sizeof *c->rows);
    c->outputs = calloc((size_t)(2 * a->rows), sizeof *c->outputs);
    REQUIRE(c->rows != NULL && c->outputs != NULL, STATUS_INTERNAL,
            "out of memory for the outputs of %lld rows", (long long)a->rows);
    for (int64_t i = 0; i < a->rows; i++) {
        c->rows[i] = (int32_t)i;
    }
    return STATUS_OK;
}

static status ask(struct asking *a, const struct request *q)
{
    TRY(asking_open(a, &q->asked));
    TRY(prepare(a, q->asked.checkpoint));
    TRY(asking_read(a, q->asked.path, take));
    return asking_finish(a);
}

static status run(const struct asking_request *asked)
{
    const struct request *q = (const struct request *)asked;
    struct answering c = {.q = q};
    struct asking a = {.command = "answer", .answer = answer, .user = &c};
    status result = ask(&a, q);
    while (c.lines != NULL) {
        drop_line(&c);
    }
    free(c.rows);
    free(c.outputs);
    KEEP_FIRST(result, asking_close(&a));
    return result;
}

status command_answer(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"question", OPTION_TEXT, &q.question, "TEXT", NULL,
         "asked of every line; else each line has its own, and the text behind a tab"},
        {"max-answer-tokens", OPTION_INTEGER, &q.tokens, "N", "30", "longer spans are no answers",
         .least = 1, .most = 1e6},
    };
    struct options options = {
        .usage = "bireme answer --checkpoint DIR [--question TEXT] [FILE]",
        .about = "Prints for each line of a file or of standard input the part of its text that "
                 "answers the question, and its\nprobability; nothing before the tab where the "
                 "text has no answer. Long texts are looked at in windows.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "FILE",
        .operands_most = 1,
    };
    return asking_command(&options, false, argc, argv, &q.asked, run);
}
