#include "trainer/cli/batch_query.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "datasets/tokenizer/text_pair.h"

enum { FLAGS_MAX = 16, SHARED_FLAGS = 4 };

status asking_command(const struct options *options, bool truncates, int argc, char **argv,
                      struct asking_request *q, status (*run)(const struct asking_request *q))
{
    const struct option checkpoint = {
        "checkpoint", OPTION_TEXT,     &q->checkpoint,
        "DIR",        OPTION_REQUIRED, "a run folder, its checkpoints/, one of these, or final/"};
    const struct option last[] = {
        {"truncate", OPTION_FLAG, &q->truncate, NULL, NULL,
         "cut texts with more tokens than the model has positions; else they are an error"},
        {"set", OPTION_LIST, &q->overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "one JSON object a line"},
    };
    struct option table[FLAGS_MAX] = {checkpoint};
    struct options all = *options;
    int count = 1, first = truncates ? 0 : 1;
    bool help = false;
    REQUIRE(options->count <= FLAGS_MAX - SHARED_FLAGS, STATUS_INTERNAL, "%d flags",
            options->count);
    for (int i = 0; i < options->count; i++) {
        table[count++] = options->table[i];
    }
    for (size_t i = (size_t)first; i < sizeof last / sizeof last[0]; i++) {
        table[count++] = last[i];
    }
    all.table = table;
    all.count = count;
    TRY(options_parse(&all, argc, argv, &help));
    q->operands = all.operands;
    q->operand_count = all.operand_count;
    q->path = all.operand_count > 0 ? all.operands[0] : NULL;
    status result = help ? STATUS_OK : run(q);
    free(q->overrides.items);
    return result;
}

bool asking_is_encoder(const struct asking *a)
{
    const char *architecture = a->session.recipe.model.architecture;
    return strcmp(architecture, "bert") == 0 || strcmp(architecture, "roberta") == 0;
}

static status require_usable(const struct asking *a, const char *checkpoint)
{
    const struct session *s = &a->session;
    REQUIRE(s->tokenizer != NULL, STATUS_DATA, "%s holds no tokenizer: %s needs one", checkpoint,
            a->command);
    struct tokenizer_specials special = tokenizer_specials_of(s->tokenizer);
    REQUIRE(!asking_is_encoder(a) || (special.cls >= 0 && special.sep >= 0), STATUS_DATA,
            "the tokenizer of %s has no [CLS] and [SEP]", checkpoint);
    REQUIRE(device_is_host(s->device), STATUS_UNAVAILABLE,
            "%s: on the CPU only in this version; add --set train.device=cpu", a->command);
    return STATUS_OK;
}

status asking_open(struct asking *a, const struct asking_request *q)
{
    a->truncate = q->truncate;
    TRY(comm_self_create(&a->world));
    TRY(session_open_checkpoint(&a->session, a->world, q->checkpoint, q->overrides.items,
                                q->overrides.count, 0));
    TRY(require_usable(a, q->checkpoint));
    int64_t micro = session_rows(&a->session.recipe);
    int64_t positions = model_config_of(a->session.model)->positions;
    a->rows = micro > positions ? micro : positions;
    a->ids = calloc(3 * (size_t)a->rows, sizeof *a->ids);
    REQUIRE(a->ids != NULL, STATUS_INTERNAL, "out of memory for texts of %lld tokens",
            (long long)a->rows);
    a->positions = a->ids + a->rows;
    a->segments = a->positions + a->rows;
    return STATUS_OK;
}

static void clear(struct asking *a)
{
    while (a->count > 0) {
        free(a->text[--a->count]);
    }
}

status asking_close(struct asking *a)
{
    clear(a);
    free(a->ids);
    status result = session_stop(&a->session);
    KEEP_FIRST(result, comm_destroy(&a->world));
    return result;
}

/* ---- lines ---- */

status asking_check(const char *text, size_t bytes)
{
    REQUIRE(strlen(text) == bytes, STATUS_DATA, "byte %zu is 0: this is no text", strlen(text) + 1);
    json_t *valid = json_stringn(text, bytes);
    bool is = valid != NULL;
    json_decref(valid);
    REQUIRE(is, STATUS_DATA, "this is not valid UTF-8");
    return STATUS_OK;
}

struct reading {
    struct asking *a;
    lines_visit take;
};

static status take_line(void *user, const char *line, size_t bytes)
{
    const struct reading *r = user;
    TRY(asking_check(line, bytes));
    bool windows = bytes > 0 && line[bytes - 1] == '\r';
    char *text = strndup(line, bytes - windows);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory");
    status result = r->take(r->a, text, bytes - windows);
    free(text);
    return result;
}

status asking_read(struct asking *a, const char *path, lines_visit take)
{
    struct reading r = {a, take};
    return lines_read(path, take_line, &r);
}

/* ---- the batch ---- */

status asking_flush(struct asking *a)
{
    status result = a->count > 0 ? a->answer(a) : STATUS_OK;
    clear(a);
    return result;
}

/* The text's ids, at most as many as the model has positions; *first: those of the first segment. */
static status encode(struct asking *a, const char *text, const char *pair, struct token_list *ids,
                     int64_t *first)
{
    const struct tokenizer *t = a->session.tokenizer;
    int64_t most = model_positions(model_config_of(a->session.model)), cut = 0;
    struct text one = {text, strlen(text)}, two = {pair, pair != NULL ? strlen(pair) : 0};
    if (a->special) {
        TRY(tokenizer_encode_pair(t, text, one.count, pair, two.count, true, 0, ids, first));
    } else {
        TRY(texts_encode(t, &one, &two, a->truncate ? most : 0, ids, first, &cut));
    }
    a->cut += cut > 0;
    return STATUS_OK;
}

static status place(struct asking *a, const char *text, const struct token_list *ids, int64_t first)
{
    int32_t row = a->cu_rows[a->count];
    a->text[a->count] = strdup(text);
    REQUIRE(a->text[a->count] != NULL, STATUS_INTERNAL, "out of memory");
    for (int64_t i = 0; i < ids->count; i++) {
        a->ids[row + i] = ids->ids[i];
        a->positions[row + i] = (int32_t)i;
        a->segments[row + i] = asking_is_encoder(a) && i >= first;
    }
    a->cu_rows[++a->count] = (int32_t)(row + ids->count);
    return STATUS_OK;
}

status asking_add_tokens(struct asking *a, const char *text, const struct token_list *ids,
                         int64_t first)
{
    int64_t most = model_positions(model_config_of(a->session.model));
    REQUIRE(ids->count > 0, STATUS_DATA, "a text without a token");
    REQUIRE(ids->count <= most, STATUS_DATA,
            "a text of %lld tokens%s, the model has %lld positions", (long long)ids->count,
            asking_is_encoder(a) ? " with [CLS] and [SEP]" : "", (long long)most);
    if (a->count == ASKING_TEXTS || a->cu_rows[a->count] + ids->count > a->rows) {
        TRY(asking_flush(a));
    }
    return place(a, text, ids, first);
}

status asking_add(struct asking *a, const char *text, const char *pair)
{
    struct token_list ids = {0};
    int64_t first = 0;
    status result = encode(a, text, pair, &ids, &first);
    if (result == STATUS_OK) {
        result = asking_add_tokens(a, text, &ids, first);
    }
    token_list_free(&ids);
    return result;
}

int64_t asking_labels(const struct asking *a)
{
    return model_config_of(a->session.model)->labels;
}

status asking_outputs(struct asking *a, const int32_t *rows, int64_t count, float *outputs)
{
    const struct session *s = &a->session;
    struct model_input input = asking_input(a);
    struct tensor hidden;
    input.output_rows = rows;
    input.outputs = count;
    TRY(model_forward(s->model, &input, &hidden));
    struct model_labels head = model_labels_of(s->model, &input, NULL);
    return classifier_logits(s->kernels, tensor_view(outputs, DTYPE_F32, count, asking_labels(a)),
                             hidden, head.weight, head.bias);
}

status asking_finish(struct asking *a)
{
    TRY(asking_flush(a));
    if (a->cut > 0) {
        log_info("%lld text%s cut to the model's %lld positions", (long long)a->cut,
                 a->cut == 1 ? " was" : "s were",
                 (long long)model_positions(model_config_of(a->session.model)));
    }
    return STATUS_OK;
}

struct model_input asking_input(const struct asking *a)
{
    return (struct model_input){
        .rows = a->cu_rows[a->count],
        .tokens = a->ids,
        .positions = a->positions,
        .segments = a->count,
        .cu_rows = a->cu_rows,
        .longest = model_config_of(a->session.model)->positions,
        .segment_ids = a->segments,
    };
}
