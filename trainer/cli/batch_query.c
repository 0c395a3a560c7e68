#include "trainer/cli/batch_query.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/inference/finite_outputs.h"
#include "trainer/setup/derive.h"
#include "trainer/weights/open.h"

enum { OPTIONS_MAX = 16, SHARED_OPTIONS = 4 };

status batch_query_run_command(const struct options *options, bool has_truncate, int argc,
                               char **argv, struct batch_query_request *q,
                               status (*run)(const struct batch_query_request *q))
{
    const struct option checkpoint = {
        "checkpoint", OPTION_TEXT,     &q->checkpoint,
        "DIR",        OPTION_REQUIRED, "run folder, checkpoints/ folder, one checkpoint or final/"};
    const struct option last[] = {
        {"truncate", OPTION_FLAG, &q->truncate, NULL, NULL,
         "truncate texts that have more tokens than the model has positions; otherwise such a text "
         "is an error"},
        {"set", OPTION_LIST, &q->overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "print one JSON object per line"},
    };
    struct option table[OPTIONS_MAX] = {checkpoint};
    struct options all = *options;
    int count = 1, first = has_truncate ? 0 : 1;
    bool help = false;
    REQUIRE(options->count <= OPTIONS_MAX - SHARED_OPTIONS, STATUS_INTERNAL, "%d options",
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

bool batch_query_is_encoder(const struct batch_query *b)
{
    return recipe_architecture_is_encoder(b->session.recipe.model.architecture);
}

static status require_usable(const struct batch_query *b, const char *checkpoint)
{
    const struct session *s = &b->session;
    TRY(weights_require_single_stack(s, checkpoint));
    REQUIRE(s->tokenizer != NULL, STATUS_DATA,
            "%s contains no tokenizer, but %s needs one; import or train with a tokenizer",
            checkpoint, b->command);
    struct tokenizer_specials special = tokenizer_get_specials(s->tokenizer);
    REQUIRE(!batch_query_is_encoder(b) || (special.cls >= 0 && special.sep >= 0), STATUS_DATA,
            "the tokenizer of %s has no [CLS] or no [SEP] token, which an encoder needs",
            checkpoint);
    REQUIRE(device_is_host(s->device), STATUS_UNAVAILABLE,
            "%s runs on the CPU only in this version; add --set train.device=cpu", b->command);
    return STATUS_OK;
}

status batch_query_open(struct batch_query *b, const struct batch_query_request *q)
{
    b->truncate = q->truncate;
    TRY(comm_self_create(&b->world));
    TRY(weights_open_checkpoint(&b->session, b->world, q->checkpoint, q->overrides.items,
                                q->overrides.count, 0));
    TRY(require_usable(b, q->checkpoint));
    int64_t micro = derive_rows(&b->session.recipe);
    int64_t positions = model_get_config(b->session.model)->positions;
    b->max_rows = micro > positions ? micro : positions;
    b->ids = calloc(3 * (size_t)b->max_rows, sizeof *b->ids);
    REQUIRE(b->ids != NULL, STATUS_INTERNAL, "out of memory for a batch of %" PRId64 " tokens",
            b->max_rows);
    b->positions = b->ids + b->max_rows;
    b->token_type_ids = b->positions + b->max_rows;
    return STATUS_OK;
}

static void clear_batch(struct batch_query *b)
{
    while (b->count > 0) {
        free(b->texts[--b->count]);
    }
}

status batch_query_close(struct batch_query *b)
{
    clear_batch(b);
    free(b->ids);
    status result = session_stop(&b->session);
    KEEP_FIRST(result, comm_destroy(&b->world));
    return result;
}

/* ---- texts ---- */

status batch_query_check_text(const char *text, size_t bytes)
{
    REQUIRE(strlen(text) == bytes, STATUS_DATA, "byte %zu is NUL, so this is not text",
            strlen(text) + 1);
    json_t *valid = json_stringn(text, bytes);
    bool is_valid = valid != NULL;
    json_decref(valid);
    REQUIRE(is_valid, STATUS_DATA, "the text is not valid UTF-8; " UTF8_REMEDY);
    return STATUS_OK;
}

struct text_visit {
    struct batch_query *b;
    bool has_columns;
    text_lines_visit visit;
};

static status visit_text(void *user, const char *line, size_t bytes, const char *second)
{
    const struct text_visit *v = user;
    TRY(batch_query_check_text(line, bytes));
    bool has_return = !v->has_columns && bytes > 0 && line[bytes - 1] == '\r';
    char *text = strndup(line, bytes - has_return);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a line of %zu bytes", bytes);
    status result = v->visit(v->b, text, bytes - has_return, second);
    free(text);
    return result;
}

status batch_query_read_texts(struct batch_query *b, const struct text_lines *source,
                              text_lines_visit visit)
{
    struct text_visit v = {b, source->columns != NULL, visit};
    return text_lines_read(source, visit_text, &v);
}

/* ---- the batch ---- */

status batch_query_flush(struct batch_query *b)
{
    status result = b->count > 0 ? b->process_batch(b) : STATUS_OK;
    clear_batch(b);
    return result;
}

/* Encodes a text or a pair. Sets *first to the number of ids in the first segment. Truncates the
 * ids to the positions of the model if b->truncate. */
static status encode_text(struct batch_query *b, const char *text, const char *pair,
                          struct token_list *ids, int64_t *first)
{
    const struct tokenizer *t = b->session.tokenizer;
    int64_t positions = model_positions(model_get_config(b->session.model)), removed = 0;
    struct text one = {text, strlen(text)}, two = {pair, pair != NULL ? strlen(pair) : 0};
    if (b->parse_special_tokens) {
        TRY(tokenizer_encode_pair(t, text, one.count, pair, two.count, true, 0, ids, first));
    } else {
        TRY(text_pair_encode(t, &one, &two, b->truncate ? positions : 0, ids, first, &removed));
    }
    b->truncated_count += removed > 0;
    return STATUS_OK;
}

static status append_to_batch(struct batch_query *b, const char *text, const struct token_list *ids,
                              int64_t first)
{
    int32_t row = b->cu_rows[b->count];
    b->texts[b->count] = strdup(text);
    REQUIRE(b->texts[b->count] != NULL, STATUS_INTERNAL, "out of memory for a line of %zu bytes",
            strlen(text));
    for (int64_t i = 0; i < ids->count; i++) {
        b->ids[row + i] = ids->ids[i];
        b->positions[row + i] = (int32_t)i;
        b->token_type_ids[row + i] = batch_query_is_encoder(b) && i >= first;
    }
    b->cu_rows[++b->count] = (int32_t)(row + ids->count);
    return STATUS_OK;
}

status batch_query_add_tokens(struct batch_query *b, const char *text, const struct token_list *ids,
                              int64_t first)
{
    int64_t positions = model_positions(model_get_config(b->session.model));
    REQUIRE(ids->count > 0, STATUS_DATA, "the text has no tokens");
    REQUIRE(ids->count <= positions, STATUS_DATA,
            "the text has %" PRId64 " tokens%s, but the model has %" PRId64 " positions",
            ids->count, batch_query_is_encoder(b) ? " including [CLS] and [SEP]" : "", positions);
    if (b->count == BATCH_QUERY_TEXTS || b->cu_rows[b->count] + ids->count > b->max_rows) {
        TRY(batch_query_flush(b));
    }
    return append_to_batch(b, text, ids, first);
}

status batch_query_add(struct batch_query *b, const char *text, const char *pair)
{
    struct token_list ids = {0};
    int64_t first = 0;
    status result = encode_text(b, text, pair, &ids, &first);
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, text, &ids, first);
    }
    token_list_free(&ids);
    return result;
}

int64_t batch_query_label_count(const struct batch_query *b)
{
    return model_get_config(b->session.model)->labels;
}

status batch_query_head_outputs(struct batch_query *b, const int32_t *rows, int64_t count,
                                float *outputs)
{
    const struct session *s = &b->session;
    struct model_input input = batch_query_model_input(b);
    struct tensor hidden;
    input.output_rows = rows;
    input.outputs = count;
    TRY(model_forward(s->model, &input, &hidden));
    struct model_label_head head = model_get_label_head(s->model, &input, NULL);
    int64_t labels = batch_query_label_count(b);
    TRY(classifier_logits(s->kernels, tensor_view(outputs, DTYPE_F32, count, labels), hidden,
                          head.weight, head.bias));
    return finite_outputs_check(outputs, count * labels);
}

status batch_query_finish(struct batch_query *b)
{
    TRY(batch_query_flush(b));
    if (b->truncated_count > 0) {
        log_info("truncated %" PRId64 " text%s to the %" PRId64 " positions of the model",
                 b->truncated_count, text_plural(b->truncated_count),
                 model_positions(model_get_config(b->session.model)));
    }
    return STATUS_OK;
}

struct model_input batch_query_model_input(const struct batch_query *b)
{
    return (struct model_input){
        .rows = b->cu_rows[b->count],
        .tokens = b->ids,
        .positions = b->positions,
        .segments = b->count,
        .cu_rows = b->cu_rows,
        .longest = model_get_config(b->session.model)->positions,
        .token_type_ids = b->token_type_ids,
    };
}
