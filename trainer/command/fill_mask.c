/* bireme fill-mask: which tokens a masked language model expects at each [MASK] of a text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/command/command.h"
#include "trainer/command/options.h"
#include "trainer/command/report.h"
#include "trainer/session.h"

enum { TOP_MAX = 1000, BATCH_TEXTS = 32 };

struct request {
    const char *checkpoint;
    struct option_list overrides;
    int64_t top;
    bool json;
};

/* Texts that go through the model together: rows one after the other, and the masked ones. */
struct texts {
    char *text[BATCH_TEXTS];
    int32_t cu_rows[BATCH_TEXTS + 1], masks[BATCH_TEXTS + 1]; /* first row, first mask of each */
    int count;
    int64_t rows;                                               /* most */
    int32_t *ids, *positions, *segments, *masked_rows, *memory; /* [rows] each */
    float *logits;                                              /* [V] */
    int32_t *best;                                              /* [top] */
};

static status texts_create(struct texts *t, const struct session *s, const struct request *q)
{
    int64_t micro = session_rows(&s->recipe), positions = model_config_of(s->model)->positions;
    t->rows = micro > positions ? micro : positions;
    t->memory = calloc(4 * (size_t)t->rows, sizeof *t->memory);
    t->logits = calloc((size_t)model_config_of(s->model)->vocabulary, sizeof *t->logits);
    t->best = calloc((size_t)q->top, sizeof *t->best);
    REQUIRE(t->memory != NULL && t->logits != NULL && t->best != NULL, STATUS_INTERNAL,
            "out of memory for texts of %lld tokens", (long long)t->rows);
    t->ids = t->memory;
    t->positions = t->ids + t->rows;
    t->segments = t->positions + t->rows;
    t->masked_rows = t->segments + t->rows;
    return STATUS_OK;
}

static void texts_clear(struct texts *t)
{
    while (t->count > 0) {
        free(t->text[--t->count]);
    }
}

static void texts_destroy(struct texts *t)
{
    texts_clear(t);
    free(t->memory);
    free(t->logits);
    free(t->best);
}

/* [CLS] text [SEP], at the end of the batch; *full: there is no room, and nothing was added. */
static status texts_add(struct texts *t, const struct session *s, const char *text, bool *full)
{
    struct tokenizer_specials special = tokenizer_specials_of(s->tokenizer);
    struct token_list ids = {0};
    int64_t most = model_positions(model_config_of(s->model));
    int32_t row = t->cu_rows[t->count], mask = t->masks[t->count];
    status result = tokenizer_encode(s->tokenizer, text, strlen(text), true, &ids);
    int64_t tokens = ids.count + 2;
    REQUIRE_GOTO(result, done, result != STATUS_OK || tokens <= most, STATUS_DATA,
                 "a text of %lld tokens with [CLS] and [SEP], the model has %lld positions",
                 (long long)tokens, (long long)most);
    *full = t->count == BATCH_TEXTS || row + tokens > t->rows;
    if (result != STATUS_OK || *full) {
        goto done;
    }
    for (int64_t i = 0; i < tokens; i++) {
        int32_t id = i == 0 ? special.cls : i + 1 == tokens ? special.sep : ids.ids[i - 1];
        t->ids[row + i] = id;
        t->positions[row + i] = (int32_t)i;
        if (id == special.mask) {
            t->masked_rows[mask++] = (int32_t)(row + i);
        }
    }
    REQUIRE_GOTO(result, done, mask > t->masks[t->count], STATUS_DATA,
                 "the text has no mask token: \"%.100s\"", text);
    t->text[t->count] = strdup(text);
    REQUIRE_GOTO(result, done, t->text[t->count] != NULL, STATUS_INTERNAL, "out of memory");
    t->count++;
    t->cu_rows[t->count] = (int32_t)(row + tokens);
    t->masks[t->count] = mask;
done:
    token_list_free(&ids);
    return result;
}

/* The `top` largest logits' ids into t->best, the largest first; returns the logarithm of the sum of exponentials. */
static double choose(const struct texts *t, int64_t vocabulary, int64_t top)
{
    int64_t kept = 0;
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        int64_t at = kept < top ? kept++ : top;
        for (; at > 0 && t->logits[v] > t->logits[t->best[at - 1]]; at--) {
            if (at < top) {
                t->best[at] = t->best[at - 1];
            }
        }
        if (at < top) {
            t->best[at] = (int32_t)v;
        }
    }
    for (int64_t v = 0; v < vocabulary; v++) {
        sum += exp((double)t->logits[v] - (double)t->logits[t->best[0]]);
    }
    return t->logits[t->best[0]] + log(sum);
}

/* The list of what is expected at one mask. */
static status expected_at(const struct texts *t, const struct session *s, struct tensor hidden,
                          int32_t mask, int64_t top, json_t **out)
{
    struct model *m = s->model;
    int64_t vocabulary = model_config_of(m)->vocabulary;
    TRY(classifier_logits(s->kernels, tensor_view(t->logits, DTYPE_F32, 1, vocabulary),
                          tensor_rows(hidden, mask, 1), model_head(m), model_head_bias(m)));
    double all = choose(t, vocabulary, top);
    *out = json_array();
    for (int64_t i = 0; i < top && i < vocabulary; i++) {
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(s->tokenizer, &t->best[i], 1, false, &text, &bytes));
        json_t *token = json_stringn(text, bytes);
        free(text);
        json_array_append_new(*out, json_pack("{s:o, s:i, s:f}", "text",
                                              token != NULL ? token : json_null(), "token",
                                              (int)t->best[i], "probability",
                                              exp((double)t->logits[t->best[i]] - all)));
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

static status answer(struct texts *t, const struct session *s, const struct request *q,
                     struct tensor hidden, int index)
{
    json_t *masks = json_array();
    status result = STATUS_OK;
    for (int32_t m = t->masks[index]; m < t->masks[index + 1] && result == STATUS_OK; m++) {
        json_t *list = NULL;
        result = expected_at(t, s, hidden, m, q->top, &list);
        json_array_append_new(masks, list);
    }
    if (result == STATUS_OK && q->json) {
        return report_print(json_pack("{s:s, s:o}", "text", t->text[index], "masks", masks));
    }
    if (result == STATUS_OK) {
        print_plainly(masks);
    }
    json_decref(masks);
    return result;
}

/* All that were added, and empties the batch. */
static status answer_all(struct texts *t, const struct session *s, const struct request *q)
{
    struct tensor hidden;
    struct model_input input = {
        .rows = t->cu_rows[t->count],
        .tokens = t->ids,
        .positions = t->positions,
        .segments = t->count,
        .cu_rows = t->cu_rows,
        .longest = model_config_of(s->model)->positions,
        .segment_ids = t->segments,
        .output_rows = t->masked_rows,
        .outputs = t->masks[t->count],
    };
    if (t->count == 0) {
        return STATUS_OK;
    }
    TRY(model_forward(s->model, &input, &hidden));
    for (int i = 0; i < t->count; i++) {
        TRY(answer(t, s, q, hidden, i));
    }
    texts_clear(t);
    return STATUS_OK;
}

static status take(struct texts *t, const struct session *s, const struct request *q,
                   const char *text)
{
    bool full = false;
    TRY(texts_add(t, s, text, &full));
    if (full) {
        TRY(answer_all(t, s, q));
        TRY(texts_add(t, s, text, &full));
    }
    return STATUS_OK;
}

static status take_lines(struct texts *t, const struct session *s, const struct request *q)
{
    char *text = NULL;
    size_t capacity = 0;
    status result = STATUS_OK;
    for (ssize_t got; result == STATUS_OK && (got = getline(&text, &capacity, stdin)) >= 0;) {
        text[strcspn(text, "\n")] = '\0';
        result = take(t, s, q, text);
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || !ferror(stdin), STATUS_DATA,
                 "standard input: cannot read: %s", strerror(errno));
done:
    free(text);
    return result;
}

static status require_masks(const struct session *s, const char *checkpoint)
{
    REQUIRE(strcmp(s->recipe.objective, "mlm") == 0, STATUS_DATA,
            "%s was trained for %s: fill-mask needs a model of masked tokens (mlm)", checkpoint,
            s->recipe.objective);
    REQUIRE(s->tokenizer != NULL && tokenizer_specials_of(s->tokenizer).mask >= 0, STATUS_DATA,
            "%s holds no tokenizer with a mask token", checkpoint);
    REQUIRE(device_is_host(s->device), STATUS_UNAVAILABLE,
            "fill-mask: on the CPU only in this version; add --set train.device=cpu");
    return STATUS_OK;
}

static status run(const struct request *q, char *const *operands, int count)
{
    struct comm *world = NULL;
    struct session s = {0};
    struct texts t = {0};
    TRY(comm_self_create(&world));
    status result = session_open_checkpoint(&s, world, q->checkpoint, q->overrides.items,
                                            q->overrides.count, 0);
    if (result == STATUS_OK) {
        result = require_masks(&s, q->checkpoint);
    }
    if (result == STATUS_OK) {
        result = texts_create(&t, &s, q);
    }
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = take(&t, &s, q, operands[i]);
    }
    if (result == STATUS_OK && count == 0) {
        result = take_lines(&t, &s, q);
    }
    if (result == STATUS_OK) {
        result = answer_all(&t, &s, q);
    }
    texts_destroy(&t);
    KEEP_FIRST(result, session_stop(&s));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_fill_mask(int argc, char **argv)
{
    struct request q = {0};
    bool help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q.checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/"},
        {"top-k", OPTION_INTEGER, &q.top, "K", "5", "tokens that are told of each mask", .least = 1,
         .most = TOP_MAX},
        {"set", OPTION_LIST, &q.overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "one JSON object a text"},
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
    TRY(options_parse(&options, argc, argv, &help));
    status result = help ? STATUS_OK : run(&q, options.operands, options.operand_count);
    free(q.overrides.items);
    return result;
}
