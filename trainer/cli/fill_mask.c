/* bireme fill-mask: which tokens a masked language model expects at each [MASK] of a text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"

enum { TOP_MAX = 1000 };

struct request {
    struct asking_request asked;
    int64_t top;
};

/* Beside a batch: its masks, and what is expected at one of them. */
struct filling {
    const struct request *q;
    int32_t masks[ASKING_TEXTS + 1]; /* first mask of each text */
    int32_t *masked_rows;            /* [rows] */
    float *logits;                   /* [V] */
    int32_t *best;                   /* [top] */
};

static status filling_create(struct filling *f, const struct asking *a)
{
    f->masked_rows = calloc((size_t)a->rows, sizeof *f->masked_rows);
    f->logits = calloc((size_t)model_config_of(a->session.model)->vocabulary, sizeof *f->logits);
    f->best = calloc((size_t)f->q->top, sizeof *f->best);
    REQUIRE(f->masked_rows != NULL && f->logits != NULL && f->best != NULL, STATUS_INTERNAL,
            "out of memory for texts of %lld tokens", (long long)a->rows);
    return STATUS_OK;
}

static void filling_destroy(struct filling *f)
{
    free(f->masked_rows);
    free(f->logits);
    free(f->best);
}

/* The `top` largest logits' ids into f->best, the largest first; returns the logarithm of the sum of exponentials. */
static double choose(const struct filling *f, int64_t vocabulary, int64_t top)
{
    int64_t kept = 0;
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        int64_t at = kept < top ? kept++ : top;
        for (; at > 0 && f->logits[v] > f->logits[f->best[at - 1]]; at--) {
            if (at < top) {
                f->best[at] = f->best[at - 1];
            }
        }
        if (at < top) {
            f->best[at] = (int32_t)v;
        }
    }
    for (int64_t v = 0; v < vocabulary; v++) {
        sum += exp((double)f->logits[v] - (double)f->logits[f->best[0]]);
    }
    return f->logits[f->best[0]] + log(sum);
}

/* The list of what is expected at one mask. */
static status expected_at(const struct filling *f, const struct session *s, struct tensor hidden,
                          int32_t mask, json_t **out)
{
    struct model *m = s->model;
    int64_t vocabulary = model_config_of(m)->vocabulary, top = f->q->top;
    TRY(classifier_logits(s->kernels, tensor_view(f->logits, DTYPE_F32, 1, vocabulary),
                          tensor_rows(hidden, mask, 1), model_head(m), model_head_bias(m)));
    double all = choose(f, vocabulary, top);
    *out = json_array();
    for (int64_t i = 0; i < top && i < vocabulary; i++) {
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(s->tokenizer, &f->best[i], 1, false, &text, &bytes));
        json_t *token = json_stringn(text, bytes);
        free(text);
        json_array_append_new(*out, json_pack("{s:o, s:i, s:f}", "text",
                                              token != NULL ? token : json_null(), "token",
                                              (int)f->best[i], "probability",
                                              exp((double)f->logits[f->best[i]] - all)));
    }
    return STATUS_OK;
}

static void print_plainly(const json_t *masks)
{
    size_t i, j;
    json_t *list, *one;
    json_array_foreach(masks, i, list)
    {
        json_array_foreach(list, j, one)
        {
            const char *text = json_string_value(json_object_get(one, "text"));
            printf("%s%s %.4f", j > 0 ? "\t" : "", text != NULL ? text : "?",
                   json_real_value(json_object_get(one, "probability")));
        }
        putchar('\n');
    }
}

static status answer_text(const struct filling *f, const struct asking *a, struct tensor hidden,
                          int index)
{
    json_t *masks = json_array();
    status result = STATUS_OK;
    for (int32_t m = f->masks[index]; m < f->masks[index + 1] && result == STATUS_OK; m++) {
        json_t *list = NULL;
        result = expected_at(f, &a->session, hidden, m, &list);
        json_array_append_new(masks, list);
    }
    if (result == STATUS_OK && f->q->asked.json) {
        return report_print(json_pack("{s:s, s:o}", "text", a->text[index], "masks", masks));
    }
    if (result == STATUS_OK) {
        print_plainly(masks);
    }
    json_decref(masks);
    return result;
}

/* Where the batch is masked. */
static void find_masks(struct filling *f, const struct asking *a)
{
    int32_t mask = tokenizer_specials_of(a->session.tokenizer).mask, found = 0;
    for (int i = 0; i < a->count; i++) {
        for (int32_t row = a->cu_rows[i]; row < a->cu_rows[i + 1]; row++) {
            if (a->ids[row] == mask) {
                f->masked_rows[found++] = row;
            }
        }
        f->masks[i + 1] = found;
    }
}

static status answer(struct asking *a)
{
    struct filling *f = a->user;
    struct tensor hidden;
    find_masks(f, a);
    struct model_input input = asking_input(a);
    input.output_rows = f->masked_rows;
    input.outputs = f->masks[a->count];
    TRY(model_forward(a->session.model, &input, &hidden));
    for (int i = 0; i < a->count; i++) {
        TRY(answer_text(f, a, hidden, i));
    }
    return STATUS_OK;
}

static status take(void *user, const char *text, size_t bytes)
{
    struct asking *a = user;
    (void)bytes;
    TRY(asking_add(a, text, NULL));
    int32_t mask = tokenizer_specials_of(a->session.tokenizer).mask;
    for (int32_t row = a->cu_rows[a->count - 1]; row < a->cu_rows[a->count]; row++) {
        if (a->ids[row] == mask) {
            return STATUS_OK;
        }
    }
    char *word = NULL, shown[64];
    TRY(tokenizer_decode(a->session.tokenizer, &mask, 1, false, &word, NULL));
    snprintf(shown, sizeof shown, "%s", word);
    free(word);
    RAISE(STATUS_DATA, "the text has no mask token, write %s where a word is asked for: \"%.100s\"",
          shown, text);
}

static status require_masks(const struct session *s, const char *checkpoint)
{
    REQUIRE(strcmp(s->recipe.objective, "mlm") == 0, STATUS_DATA,
            "%s was trained for %s: fill-mask needs a model of masked tokens (mlm)", checkpoint,
            s->recipe.objective);
    REQUIRE(tokenizer_specials_of(s->tokenizer).mask >= 0, STATUS_DATA,
            "%s holds no tokenizer with a mask token", checkpoint);
    return STATUS_OK;
}

static status ask(struct asking *a, const struct request *q)
{
    struct filling *f = a->user;
    char *const *operands = q->asked.operands;
    int count = q->asked.operand_count;
    TRY(asking_open(a, &q->asked));
    TRY(require_masks(&a->session, q->asked.checkpoint));
    TRY(filling_create(f, a));
    for (int i = 0; i < count; i++) {
        TRY(asking_check(operands[i], strlen(operands[i])));
        TRY(take(a, operands[i], strlen(operands[i])));
    }
    TRY(count == 0 ? asking_read(a, NULL, take) : STATUS_OK);
    return asking_finish(a);
}

static status run(const struct asking_request *asked)
{
    const struct request *q = (const struct request *)asked;
    struct filling f = {.q = q};
    struct asking a = {.command = "fill-mask", .answer = answer, .user = &f, .special = true};
    status result = ask(&a, q);
    filling_destroy(&f);
    KEEP_FIRST(result, asking_close(&a));
    return result;
}

status command_fill_mask(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"top-k", OPTION_INTEGER, &q.top, "K", "5", "tokens that are told of each mask", .least = 1,
         .most = TOP_MAX},
    };
    struct options options = {
        .usage = "bireme fill-mask --checkpoint DIR [\"TEXT with [MASK]\"...]",
        .about = "Prints for each mask of each text the most probable tokens with their "
                 "probabilities, a mask a line. Without\ntexts it reads them from standard input, "
                 "one a line, in batches.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "TEXT",
        .operands_least = 0,
        .operands_most = -1,
    };
    return asking_command(&options, false, argc, argv, &q.asked, run);
}
