#include "trainer/cli/batch_query.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/prediction/text_input.h"

/* Requires that the operand FILE exists. A text in its place is a common mistake. */
static status check_file(const struct options *options, const char *checkpoint)
{
    const char *path = options->operand_count > 0 ? options->operands[0] : "-";
    bool is_file = options->operand_name != NULL && strcmp(options->operand_name, "FILE") == 0;
    bool is_missing =
        is_file && strcmp(path, "-") != 0 && access(path, F_OK) != 0 && errno == ENOENT;
    REQUIRE(!is_missing, STATUS_NO_INPUT,
            "there is no file %s; the argument must be a file; pass a text on standard input: "
            "echo 'TEXT' | %.*s--checkpoint %s ...",
            path, (int)strcspn(options->usage, "-"), options->usage, checkpoint);
    return STATUS_OK;
}

status batch_query_run_command(const struct options *options, bool has_truncate, int argc,
                               char **argv, struct batch_query_request *q,
                               status (*run)(const struct batch_query_request *q))
{
    const struct option checkpoint = {
        "checkpoint", OPTION_TEXT,     &q->checkpoint,
        "DIR",        OPTION_REQUIRED, "run folder, checkpoints/ folder, one checkpoint or final/"};
    const struct option truncate = {
        "truncate",
        OPTION_FLAG,
        &q->truncate,
        NULL,
        NULL,
        "truncate texts that have more tokens than the model has positions; otherwise such a text "
        "is an error"};
    const struct option last[] = {
        {"set", OPTION_LIST, &q->overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "print one JSON object per line"},
    };
    struct option_table table = {.count = 0};
    struct options all = *options;
    bool help = false;
    TRY(options_add(&table, &checkpoint, 1));
    TRY(options_add(&table, options->table, options->count));
    TRY(options_add(&table, &truncate, has_truncate ? 1 : 0));
    TRY(options_add(&table, last, COUNT(last)));
    all.table = table.rows;
    all.count = table.count;
    TRY(options_parse(&all, argc, argv, &help));
    q->operands = all.operands;
    q->operand_count = all.operand_count;
    q->path = all.operand_count > 0 ? all.operands[0] : NULL;
    status result = help ? STATUS_OK : check_file(&all, q->checkpoint);
    if (result == STATUS_OK && !help) {
        result = run(q);
    }
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
    TRY(b->accepts_seq2seq ? STATUS_OK : weights_require_single_stack(s, checkpoint));
    TRY(weights_require_tokenizer(s, checkpoint, b->command));
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
    return text_batch_create(&b->session, &b->batch);
}

static void clear_batch(struct batch_query *b)
{
    for (int i = 0; i < b->batch.count; i++) {
        free(b->texts[i]);
    }
    text_batch_clear(&b->batch);
}

status batch_query_close(struct batch_query *b)
{
    clear_batch(b);
    text_batch_destroy(&b->batch);
    status result = session_stop(&b->session);
    KEEP_FIRST(result, comm_destroy(&b->world));
    return result;
}

/* ---- texts ---- */

struct text_visit {
    struct batch_query *b;
    bool has_columns;
    text_lines_visit visit;
};

static status visit_text(void *user, const char *line, size_t bytes, const char *second)
{
    const struct text_visit *v = user;
    TRY(text_input_check(&(struct text){line, bytes}));
    bool has_return = !v->has_columns && bytes > 0 && line[bytes - 1] == '\r';
    char *text = NULL;
    TRY(memory_copy_bytes(&text, line, bytes - has_return, "a line"));
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
    status result = b->batch.count > 0 ? b->process_batch(b) : STATUS_OK;
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
        TRY(text_input_encode_masked(&b->session, &one, &two, ids, first));
    } else {
        TRY(text_pair_encode(t, &one, &two, b->truncate ? positions : 0, ids, first, &removed));
    }
    b->truncated_count += removed > 0;
    return STATUS_OK;
}

status batch_query_add_tokens(struct batch_query *b, const char *text, const struct token_list *ids,
                              int64_t first)
{
    TRY(text_batch_check(&b->batch, ids));
    if (!text_batch_fits(&b->batch, ids->count)) {
        TRY(batch_query_flush(b));
    }
    TRY(memory_copy_text(&b->texts[b->batch.count], text, "a line"));
    text_batch_add(&b->batch, ids, first);
    return STATUS_OK;
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

void batch_query_log_truncated(int64_t count, const struct model *model)
{
    if (count > 0) {
        log_info("truncated %" PRId64 " text%s to the %" PRId64 " positions of the model", count,
                 text_plural(count), model_positions(model_get_config(model)));
    }
}

status batch_query_finish(struct batch_query *b)
{
    TRY(batch_query_flush(b));
    batch_query_log_truncated(b->truncated_count, b->session.model);
    return STATUS_OK;
}
