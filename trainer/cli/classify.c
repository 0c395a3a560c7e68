/* bireme classify: what a fine-tuned model says of texts: a label (classify), a number (regress), a label for each word
 * (classify_tokens), or which of several texts is right (choose). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/text_pair.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/setup/data.h"

enum { LABEL_BYTES = 32, WORDS_MOST = 4096 };

struct request {
    struct asking_request asked;
    int64_t top;
};

struct classifying {
    const struct request *q;
    enum model_task task;
    bool numbers; /* regress */
    int64_t labels;
    int32_t *rows;   /* that the head reads, [rows of a batch] */
    float *outputs;  /* [rows of a batch, labels] */
    double *shares;  /* [labels], and of choices */
    int64_t choices; /* of the line that is being answered; their numbers are in shares */
    int32_t word[ASKING_TEXTS + 1]; /* first of the batch's words of each text, in rows */
};

static const char *label_name(const struct asking *a, int64_t label, char text[LABEL_BYTES])
{
    const struct labels *names = &a->session.labels;
    snprintf(text, LABEL_BYTES, "%lld", (long long)label);
    return label < names->count ? names->names[label] : text;
}

/* Shares of exp; returns the largest's index. */
static int64_t softmax(const float *outputs, int64_t count, double *shares)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < count; i++) {
        best = outputs[i] > outputs[best] ? i : best;
    }
    for (int64_t i = 0; i < count; i++) {
        shares[i] = exp((double)outputs[i] - (double)outputs[best]);
        sum += shares[i];
    }
    for (int64_t i = 0; i < count; i++) {
        shares[i] /= sum;
    }
    return best;
}

/* ---- a label or a number for a text ---- */

/* The most probable first; each is told once. */
static status print_labels(const struct asking *a, const char *text, const float *outputs)
{
    struct classifying *c = a->user;
    char name[LABEL_BYTES];
    json_t *list = json_array();
    int64_t best = softmax(outputs, c->labels, c->shares);
    for (int64_t told = 0; told < c->q->top && told < c->labels; told++) {
        for (int64_t l = 0; l < c->labels; l++) {
            best = c->shares[l] > c->shares[best] ? l : best;
        }
        const char *label = label_name(a, best, name);
        if (c->q->asked.json) {
            json_array_append_new(
                list, json_pack("{s:s, s:f}", "label", label, "probability", c->shares[best]));
        } else {
            printf("%s%s\t%.4f", told > 0 ? "\t" : "", label, c->shares[best]);
        }
        c->shares[best] = -1;
    }
    if (c->q->asked.json) {
        return report_print(json_pack("{s:s, s:o}", "text", text, "labels", list));
    }
    json_decref(list);
    putchar('\n');
    return STATUS_OK;
}

static status print_number(const struct classifying *c, const char *text, double number)
{
    if (c->q->asked.json) {
        return report_print(json_pack("{s:s, s:f}", "text", text, "value", number));
    }
    printf("%.6g\n", number);
    return STATUS_OK;
}

/* Encoders' heads read a text's first row, others' its last one. */
static status outputs_of_texts(struct asking *a)
{
    struct classifying *c = a->user;
    bool last = job_data_last_rows(&a->session.recipe);
    for (int i = 0; i < a->count; i++) {
        c->rows[i] = last ? a->cu_rows[i + 1] - 1 : a->cu_rows[i];
    }
    return asking_outputs(a, c->rows, a->count, c->outputs);
}

static status answer_texts(struct asking *a)
{
    struct classifying *c = a->user;
    TRY(outputs_of_texts(a));
    for (int i = 0; i < a->count; i++) {
        const float *outputs = c->outputs + i * c->labels;
        TRY(c->numbers ? print_number(c, a->text[i], (double)outputs[0])
                       : print_labels(a, a->text[i], outputs));
    }
    return STATUS_OK;
}

/* A second text stands behind a tab. */
static status take_text(void *user, const char *line, size_t bytes)
{
    (void)bytes;
    char *text = strdup(line);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory");
    char *pair = strchr(text, '\t');
    if (pair != NULL) {
        *pair++ = '\0';
    }
    status result = asking_add(user, text, pair);
    free(text);
    return result;
}

/* ---- a label for each word ---- */

static const char *next_word(const char **at, int *bytes)
{
    const char *word = *at + strspn(*at, " \t");
    *bytes = (int)strcspn(word, " \t");
    *at = word + *bytes;
    return word;
}

static status print_words(const struct asking *a, int index)
{
    struct classifying *c = a->user;
    const char *at = a->text[index];
    char name[LABEL_BYTES];
    json_t *list = json_array();
    for (int32_t w = c->word[index]; w < c->word[index + 1]; w++) {
        int bytes = 0;
        const char *word = next_word(&at, &bytes);
        int64_t best = softmax(c->outputs + w * c->labels, c->labels, c->shares);
        const char *label = label_name(a, best, name);
        if (c->q->asked.json) {
            json_array_append_new(list, json_pack("{s:s#, s:s, s:f}", "token", word, bytes, "label",
                                                  label, "probability", c->shares[best]));
        } else {
            printf("%.*s\t%s\n", bytes, word, label);
        }
    }
    if (c->q->asked.json) {
        return report_print(json_pack("{s:s, s:o}", "text", a->text[index], "tokens", list));
    }
    json_decref(list);
    putchar('\n');
    return STATUS_OK;
}

static status answer_words(struct asking *a)
{
    struct classifying *c = a->user;
    TRY(asking_outputs(a, c->rows, c->word[a->count], c->outputs));
    for (int i = 0; i < a->count; i++) {
        TRY(print_words(a, i));
    }
    return STATUS_OK;
}

static status add_special(const struct asking *a, int32_t id, struct token_list *ids)
{
    TRY(token_list_reserve(ids, asking_is_encoder(a)));
    if (asking_is_encoder(a)) {
        ids->ids[ids->count++] = id;
    }
    return STATUS_OK;
}

/* The words' ids, and where each begins. */
static status encode_words(const struct asking *a, const char *line, struct token_list *ids,
                           struct token_list *begins)
{
    struct tokenizer_specials special = tokenizer_specials_of(a->session.tokenizer);
    int bytes = 0;
    TRY(add_special(a, special.cls, ids));
    for (const char *at = line, *word; word = next_word(&at, &bytes), bytes > 0;) {
        struct text text = {word, (size_t)bytes};
        int64_t begin = 0;
        TRY(texts_encode_word(a->session.tokenizer, &text, begins->count == 0, ids, &begin));
        TRY(token_list_reserve(begins, 1));
        begins->ids[begins->count++] = (int32_t)begin;
    }
    REQUIRE(begins->count > 0, STATUS_DATA, "a line without a word");
    return add_special(a, special.sep, ids);
}

static status take_words(void *user, const char *line, size_t bytes)
{
    struct asking *a = user;
    struct classifying *c = a->user;
    struct token_list ids = {0}, begins = {0};
    (void)bytes;
    status result = encode_words(a, line, &ids, &begins);
    if (result == STATUS_OK) {
        result = asking_add_tokens(a, line, &ids, ids.count);
    }
    if (result == STATUS_OK) {
        int32_t row = a->cu_rows[a->count - 1], word = c->word[a->count - 1];
        for (int64_t i = 0; i < begins.count; i++) {
            c->rows[word + i] = row + begins.ids[i];
        }
        c->word[a->count] = word + (int32_t)begins.count;
    }
    token_list_free(&ids);
    token_list_free(&begins);
    return result;
}

/* ---- one of several texts ---- */

static status answer_choices(struct asking *a)
{
    struct classifying *c = a->user;
    TRY(outputs_of_texts(a));
    for (int i = 0; i < a->count && c->choices < WORDS_MOST; i++) {
        c->shares[c->choices++] = (double)c->outputs[i];
    }
    return STATUS_OK;
}

static status print_choice(struct classifying *c, const char *text)
{
    float outputs[WORDS_MOST];
    for (int64_t i = 0; i < c->choices; i++) {
        outputs[i] = (float)c->shares[i];
    }
    int64_t best = softmax(outputs, c->choices, c->shares);
    if (!c->q->asked.json) {
        printf("%lld\t%.4f\n", (long long)best, c->shares[best]);
        return STATUS_OK;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < c->choices; i++) {
        json_array_append_new(list, json_real(c->shares[i]));
    }
    return report_print(json_pack("{s:s, s:I, s:o}", "text", text, "choice", (json_int_t)best,
                                  "probabilities", list));
}

/* A text and behind tabs what may be chosen. */
static status take_choices(void *user, const char *line, size_t bytes)
{
    struct asking *a = user;
    struct classifying *c = a->user;
    (void)bytes;
    char *text = strdup(line), *rest = NULL;
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory");
    status result = STATUS_OK;
    char *choice = strtok_r(text, "\t", &rest);
    int count = 0;
    c->choices = 0;
    while (result == STATUS_OK && (choice = strtok_r(NULL, "\t", &rest)) != NULL) {
        result = asking_add(a, text, choice);
        count++;
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || (count > 1 && count <= WORDS_MOST),
                 STATUS_DATA, "%d choices; a line is a text and behind tabs what may be chosen",
                 count);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done, asking_flush(a));
    result = print_choice(c, text);
done:
    free(text);
    return result;
}

/* ---- the command ---- */

static status prepare(struct asking *a, const char *checkpoint)
{
    struct classifying *c = a->user;
    const char *objective = a->session.recipe.objective;
    c->task = job_data_task(&a->session.recipe);
    c->numbers = strcmp(objective, "regress") == 0;
    REQUIRE(
        c->task == MODEL_TEXTS || c->task == MODEL_TOKENS || c->task == MODEL_CHOICES, STATUS_DATA,
        "%s was trained for %s: classify needs a model that was trained with objective classify, "
        "regress, classify_tokens or choose",
        checkpoint, objective);
    c->labels = asking_labels(a);
    c->rows = calloc((size_t)a->rows, sizeof *c->rows);
    c->outputs = calloc((size_t)(a->rows * c->labels), sizeof *c->outputs);
    c->shares =
        calloc((size_t)(c->labels > WORDS_MOST ? c->labels : WORDS_MOST), sizeof *c->shares);
    REQUIRE(c->rows != NULL && c->outputs != NULL && c->shares != NULL, STATUS_INTERNAL,
            "out of memory for the outputs of %lld rows", (long long)a->rows);
    a->answer = c->task == MODEL_TEXTS    ? answer_texts
                : c->task == MODEL_TOKENS ? answer_words
                                          : answer_choices;
    return STATUS_OK;
}

static status ask(struct asking *a, const struct request *q)
{
    const struct classifying *c = a->user;
    TRY(asking_open(a, &q->asked));
    TRY(prepare(a, q->asked.checkpoint));
    lines_visit take = c->task == MODEL_TEXTS    ? take_text
                       : c->task == MODEL_TOKENS ? take_words
                                                 : take_choices;
    TRY(asking_read(a, q->asked.path, take));
    return asking_finish(a);
}

static status run(const struct asking_request *asked)
{
    const struct request *q = (const struct request *)asked;
    struct classifying c = {.q = q};
    struct asking a = {.command = "classify", .user = &c};
    status result = ask(&a, q);
    free(c.rows);
    free(c.outputs);
    free(c.shares);
    KEEP_FIRST(result, asking_close(&a));
    return result;
}

status command_classify(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"top-k", OPTION_INTEGER, &q.top, "K", "1", "labels that are told of a text", .least = 1,
         .most = 1e6},
    };
    struct options options = {
        .usage = "bireme classify --checkpoint DIR [FILE]",
        .about =
            "Prints for each line of a file or of standard input what a fine-tuned model says of "
            "it, "
            "as it was trained:\n"
            "classify: the label and its probability; regress: a number (a second text stands "
            "behind "
            "a tab); classify_tokens:\neach word and its label, and an empty line; choose (the "
            "line "
            "is a text and behind tabs what may be chosen): the\nnumber of the choice, from 0, and "
            "its probability.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "FILE",
        .operands_most = 1,
    };
    return asking_command(&options, true, argc, argv, &q.asked, run);
}
