/* bireme attention: the attention weights of every layer and head for a text, as a page or as
 * JSON. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/attention_weights.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/inference/token_text.h"
#include "trainer/logging/report/report.h"

/* A larger page is slow in a browser. */
enum { PAGE_BYTES_MAX = 64 << 20 };

struct request {
    struct batch_query_request shared;
    const char *output;
};

static status print_json(const struct batch_query *b, const struct attention_weights *w,
                         char *const *tokens)
{
    json_t *texts = json_array(), *layers = json_array();
    for (int64_t i = 0; i < w->tokens; i++) {
        json_array_append_new(texts, json_string(tokens[i]));
    }
    for (int64_t l = 0; l < w->layers; l++) {
        json_t *heads = json_array();
        for (int64_t h = 0; h < w->heads; h++) {
            json_t *rows = json_array();
            for (int64_t q = 0; q < w->tokens; q++) {
                const float *row = attention_weights_row(w, l, h, q);
                json_t *values = json_array();
                for (int64_t key = 0; key < w->tokens; key++) {
                    json_array_append_new(values, json_real((double)row[key]));
                }
                json_array_append_new(rows, values);
            }
            json_array_append_new(heads, rows);
        }
        json_array_append_new(layers, heads);
    }
    return json_output_print(
        json_pack("{s:s, s:o, s:o}", "text", b->texts[0], "tokens", texts, "attentions", layers));
}

static status write_page(const struct request *q, const struct attention_weights *w,
                         char *const *tokens)
{
    const char *output = q->output;
    const struct report_attention attention = {
        .title = q->shared.checkpoint,
        .tokens = (const char *const *)tokens,
        .count = w->tokens,
        .layers = w->layers,
        .heads = w->heads,
        .weights = w->values,
    };
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for %s", output);
    report_write_attention(&attention, memory);
    status result = fclose(memory) == 0
                        ? file_write(output, text, bytes)
                        : RAISE_STATUS(STATUS_INTERNAL, "out of memory for %s", output);
    free(text);
    if (result == STATUS_OK) {
        log_info("%s", output);
    }
    return result;
}

/* Refuses a text with a page that is too large, and names the longest possible text. */
static status check_page_size(const struct model_config *c, int64_t tokens)
{
    int64_t longest = tokens;
    while (report_attention_bytes(c->layers, c->heads, longest) > PAGE_BYTES_MAX) {
        longest--;
    }
    REQUIRE(longest == tokens, STATUS_USAGE,
            "the text has %" PRId64 " tokens; the page of a model with %" PRId64
            " layers and %" PRId64 " heads has at most %" PRId64
            " tokens; use a shorter text, or --json",
            tokens, c->layers, c->heads, longest);
    return STATUS_OK;
}

static status write_attention(struct batch_query *b, const struct request *q, char **tokens)
{
    struct model_input input = text_batch_input(&b->batch);
    struct attention_weights weights = {0};
    status result = STATUS_OK;
    for (int64_t i = 0; i < input.rows; i++) {
        TRY(token_text_describe(b->session.tokenizer, b->batch.ids[i], &tokens[i]));
    }
    if (q->output != NULL) {
        TRY(check_page_size(model_get_config(b->session.model), input.rows));
    }
    result = attention_weights_compute(b->session.model, &input, &weights);
    if (result == STATUS_OK && q->output != NULL) {
        result = write_page(q, &weights, tokens);
    }
    if (result == STATUS_OK && q->shared.json) {
        result = print_json(b, &weights, tokens);
    }
    attention_weights_free(&weights);
    return result;
}

static status process_batch(struct batch_query *b)
{
    int64_t count = b->batch.cu_rows[b->batch.count];
    char **tokens = calloc((size_t)count, sizeof *tokens);
    REQUIRE(tokens != NULL, STATUS_INTERNAL, "out of memory for %" PRId64 " tokens", count);
    status result = write_attention(b, b->user, tokens);
    for (int64_t i = 0; i < count; i++) {
        free(tokens[i]);
    }
    free(tokens);
    return result;
}

static status process_texts(struct batch_query *b, const struct request *q)
{
    char *const *texts = q->shared.operands;
    int count = q->shared.operand_count;
    TRY(batch_query_open(b, &q->shared));
    REQUIRE(count == 1 || batch_query_is_encoder(b), STATUS_USAGE,
            "two texts need an encoder, for example bert; %s is a decoder and takes one TEXT",
            q->shared.checkpoint);
    b->parse_special_tokens = batch_query_is_encoder(b); /* [MASK] */
    for (int i = 0; i < count; i++) {
        TRY(text_input_check(&(struct text){texts[i], strlen(texts[i])}));
    }
    TRY(batch_query_add(b, texts[0], count == 2 ? texts[1] : NULL));
    return batch_query_finish(b);
}

static status run_attention(const struct batch_query_request *shared)
{
    const struct request *q = (const struct request *)shared;
    REQUIRE(q->output != NULL || shared->json, STATUS_USAGE,
            "attention has no output; add --output FILE.html or --json");
    if (q->output != NULL) {
        TRY(report_check_output(q->output));
    }
    struct batch_query b = {
        .command = "attention", .process_batch = process_batch, .user = (void *)(uintptr_t)q};
    status result = process_texts(&b, q);
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_attention(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"output", OPTION_TEXT, &q.output, "FILE", NULL, "HTML page to write"},
    };
    struct options options = {
        .usage = "bireme attention --checkpoint DIR TEXT [SECOND_TEXT] [--output FILE.html] "
                 "[--json]",
        .description =
            "Computes the attention weights of every layer and head for TEXT; with an encoder, for "
            "the pair TEXT and SECOND_TEXT. --output writes a page with a picture of each head. "
            "The page is one file that loads nothing from the network. --json prints tokens and "
            "attentions[layer][head][query][key].",
        .table = table,
        .count = COUNT(table),
        .operand_name = "TEXT",
        .operands_min = 1,
        .operands_max = 2,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_attention);
}
