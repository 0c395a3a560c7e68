/* bireme attention: the attention weights of every layer and head for a text, or for a source and
 * its target, as a page or as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/inference/attention_weights.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/inference/source_text.h"
#include "trainer/inference/token_text.h"
#include "trainer/logging/report/report.h"
#include "trainer/setup/derive.h"

/* A larger page is slow in a browser. */
enum { PAGE_BYTES_MAX = 64 << 20 };

struct request {
    struct batch_query_request shared;
    const char *output;
    /* of an encoder-decoder */
    const char *target; /* NULL: generated */
    struct source_text source;
    struct generate_options options;
};

/* The texts of the tokens that an attention reads. */
struct token_texts {
    int64_t count;
    char **items;
};

static status describe_tokens(const struct tokenizer *t, const int32_t *ids, int64_t count,
                              struct token_texts *out)
{
    TRY(ALLOCATE(out->items, count, "the tokens"));
    for (; out->count < count; out->count++) {
        TRY(token_text_describe(t, ids[out->count], &out->items[out->count]));
    }
    return STATUS_OK;
}

static void free_tokens(struct token_texts *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        free(t->items[i]);
    }
    free(t->items);
}

/* ---- JSON ---- */

static json_t *make_tokens(const struct token_texts *t)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->count; i++) {
        json_array_append_new(list, json_string(t->items[i]));
    }
    return list;
}

static json_t *make_weights(const struct attention_weights *w)
{
    json_t *layers = json_array();
    for (int64_t l = 0; l < w->layers; l++) {
        json_t *heads = json_array();
        for (int64_t h = 0; h < w->heads; h++) {
            json_t *rows = json_array();
            for (int64_t q = 0; q < w->queries; q++) {
                const float *row = attention_weights_row(w, l, h, q);
                json_t *values = json_array();
                for (int64_t key = 0; key < w->keys; key++) {
                    json_array_append_new(values, json_real((double)row[key]));
                }
                json_array_append_new(rows, values);
            }
            json_array_append_new(heads, rows);
        }
        json_array_append_new(layers, heads);
    }
    return layers;
}

/* ---- the page ---- */

/* Refuses a text with a page that is too large, and names the longest possible text. */
static status check_page_size(const struct model_config *c, int64_t tokens)
{
    int64_t longest = tokens;
    while (report_attention_bytes(c->layers, c->heads, longest, longest) > PAGE_BYTES_MAX) {
        longest--;
    }
    REQUIRE(longest == tokens, STATUS_USAGE,
            "the text has %" PRId64 " tokens; the page of a model with %" PRId64
            " layers and %" PRId64 " heads has at most %" PRId64
            " tokens; use a shorter text, or --json",
            tokens, c->layers, c->heads, longest);
    return STATUS_OK;
}

/* Checks the size of the page for a source and its target. */
static status check_pair_page_size(const struct model_config *c, int64_t source, int64_t target)
{
    int64_t encoder = c->encoder_layers, decoder = c->layers - encoder;
    int64_t bytes = report_attention_bytes(encoder, c->heads, source, source) +
                    report_attention_bytes(decoder, c->heads, target, target) +
                    report_attention_bytes(decoder, c->heads, target, source);
    REQUIRE(bytes <= PAGE_BYTES_MAX, STATUS_USAGE,
            "the page for %" PRId64 " tokens of the source and %" PRId64
            " of the target has %" PRId64 " MiB, more than %d; use shorter texts, or --json",
            source, target, bytes >> 20, PAGE_BYTES_MAX >> 20);
    return STATUS_OK;
}

static struct report_attention_part make_part(const char *name, const struct attention_weights *w,
                                              const struct token_texts *queries,
                                              const struct token_texts *keys)
{
    return (struct report_attention_part){
        .name = name,
        .queries = (const char *const *)queries->items,
        .keys = (const char *const *)keys->items,
        .query_count = w->queries,
        .key_count = w->keys,
        .layers = w->layers,
        .weights = w->values,
    };
}

static status write_page(const struct request *q, const struct report_attention_part *parts,
                         int count, int64_t heads)
{
    const char *output = q->output;
    const struct report_attention attention = {q->shared.checkpoint, heads, parts, count};
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

/* ---- a text ---- */

static status write_attention(struct batch_query *b, const struct request *q,
                              struct token_texts *tokens)
{
    struct model_input input = text_batch_input(&b->batch);
    struct attention_weights weights[ATTENTION_KINDS] = {0};
    const struct attention_weights *w = &weights[ATTENTION_SELF];
    TRY(describe_tokens(b->session.tokenizer, b->batch.ids, input.rows, tokens));
    if (q->output != NULL) {
        TRY(check_page_size(model_get_config(b->session.model), input.rows));
    }
    status result = attention_weights_compute(b->session.model, &input, weights);
    if (result == STATUS_OK && q->output != NULL) {
        const struct report_attention_part part = make_part("Attention", w, tokens, tokens);
        result = write_page(q, &part, 1, w->heads);
    }
    if (result == STATUS_OK && q->shared.json) {
        result = json_output_print(json_pack("{s:s, s:o, s:o}", "text", b->texts[0], "tokens",
                                             make_tokens(tokens), "attentions", make_weights(w)));
    }
    attention_weights_free(weights);
    return result;
}

static status process_batch(struct batch_query *b)
{
    struct token_texts tokens = {0};
    status result = write_attention(b, b->user, &tokens);
    free_tokens(&tokens);
    return result;
}

static status process_texts(struct batch_query *b, const struct request *q)
{
    char *const *texts = q->shared.operands;
    int count = q->shared.operand_count;
    bool has_pair_option = q->target != NULL || q->source.prefix != NULL ||
                           q->source.from != NULL || q->source.to != NULL ||
                           q->options.max_new_tokens != GENERATION_UNSET;
    REQUIRE(!has_pair_option, STATUS_USAGE,
            "--target, --max-new-tokens and the options of the source can only be used with an "
            "encoder-decoder, not with %s",
            recipe_architecture_name(b->session.recipe.model.architecture));
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

/* ---- a source and its target ---- */

struct pair {
    struct token_list source, target; /* inputs of the encoder and of the decoder */
    char *target_text;
    struct token_texts source_tokens, target_tokens;
};

/* Completes the options of generation. The decoding is greedy. */
static status complete_options(const struct session *s, struct request *q)
{
    enum { NEW_TOKENS = 128 };
    const struct model_config *c = model_get_config(s->model);
    const struct generation_context context = {
        .vocabulary = c->vocabulary,
        .positions = c->positions,
        .end_token = tokenizer_eos(tokenizer_target(s->tokenizer)),
        .max_new_tokens = NEW_TOKENS,
        .is_quiet = q->target != NULL,
    };
    q->options.num_beams = 1;
    q->options.whole_text = true;
    q->options.decoder_start = derive_decoder_start(&s->recipe, s->tokenizer);
    TRY(generation_config_complete(s->tokenizer_dir, &context, &q->options));
    return source_text_resolve(s->tokenizer, &q->source, &q->options);
}

/* Appends the tokens of the given target without its last one, as in training. */
static status encode_target(const struct session *s, const struct request *q, struct pair *p)
{
    const struct text text = {q->target, strlen(q->target)};
    TRY(text_input_check(&text));
    TRY(text_pair_encode_sequence(s->tokenizer, NULL, &text, TEXT_TARGET, q->source.target,
                                  &p->target));
    p->target.count--;
    return memory_copy_text(&p->target_text, q->target, "the target");
}

/* Appends the tokens of the most probable target. */
static status generate_target(const struct session *s, const struct request *q, struct pair *p)
{
    struct generate_output output = {0};
    char *text = NULL;
    size_t bytes = 0;
    status result = generate_run(s->kernels, s->model, s->tokenizer, &p->source, 1, &q->options,
                                 NULL, NULL, &output);
    if (result == STATUS_OK) {
        result = token_list_append(&p->target, output.tokens.ids, output.tokens.count);
    }
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &q->options, &output, &text, &bytes);
    }
    if (result == STATUS_OK) {
        result = generate_clean_text(text, bytes, &p->target_text);
    }
    free(text);
    token_list_free(&output.tokens);
    return result;
}

/* Creates the inputs of encoder and decoder. The decoder's input begins with the start token. */
static status create_pair(const struct session *s, const struct request *q, struct pair *p)
{
    const char *source = q->shared.operands[0];
    const struct text text = {source, strlen(source)};
    const struct model_config *model = model_get_config(s->model);
    TRY(text_input_check(&text));
    TRY(source_text_encode(s->tokenizer, &q->source, &text, &p->source));
    TRY(model_require_positions(model, "the source", p->source.count, 0, STATUS_DATA));
    TRY(token_list_add(&p->target, q->options.decoder_start));
    TRY(q->target != NULL ? encode_target(s, q, p) : generate_target(s, q, p));
    TRY(model_require_positions(model, "the target", p->target.count, 0, STATUS_DATA));
    TRY(describe_tokens(s->tokenizer, p->source.ids, p->source.count, &p->source_tokens));
    return describe_tokens(tokenizer_target(s->tokenizer), p->target.ids, p->target.count,
                           &p->target_tokens);
}

static void free_pair(struct pair *p)
{
    token_list_free(&p->source);
    token_list_free(&p->target);
    free_tokens(&p->source_tokens);
    free_tokens(&p->target_tokens);
    free(p->target_text);
}

static status compute_pair(const struct session *s, const struct pair *p,
                           struct attention_weights weights[ATTENTION_KINDS])
{
    int64_t sources = p->source.count, targets = p->target.count;
    const int32_t source_rows[] = {0, (int32_t)sources}, target_rows[] = {0, (int32_t)targets};
    int32_t *positions = NULL; /* of both sides */
    int64_t longest = number_max(sources, targets);
    TRY(ALLOCATE(positions, longest, "the positions"));
    for (int32_t i = 0; i < longest; i++) {
        positions[i] = i;
    }
    const struct model_input input = {
        .rows = targets,
        .tokens = p->target.ids,
        .positions = positions,
        .segments = 1,
        .cu_rows = target_rows,
        .longest = targets,
        .source = {.rows = sources,
                   .tokens = p->source.ids,
                   .positions = positions,
                   .cu_rows = source_rows,
                   .longest = sources},
    };
    status result = attention_weights_compute(s->model, &input, weights);
    free(positions);
    return result;
}

static status print_pair(const struct request *q, const struct pair *p,
                         const struct attention_weights w[ATTENTION_KINDS])
{
    return json_output_print(json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "source", q->shared.operands[0], "target",
        p->target_text, "encoder_tokens", make_tokens(&p->source_tokens), "decoder_tokens",
        make_tokens(&p->target_tokens), "encoder_attentions", make_weights(&w[ATTENTION_SELF]),
        "decoder_attentions", make_weights(&w[ATTENTION_DECODER]), "cross_attentions",
        make_weights(&w[ATTENTION_CROSS])));
}

static status write_pair(const struct session *s, const struct request *q, const struct pair *p)
{
    struct attention_weights w[ATTENTION_KINDS] = {0};
    const struct token_texts *source = &p->source_tokens, *target = &p->target_tokens;
    if (q->output != NULL) {
        TRY(check_pair_page_size(model_get_config(s->model), source->count, target->count));
    }
    status result = compute_pair(s, p, w);
    if (result == STATUS_OK && q->output != NULL) {
        const struct report_attention_part parts[] = {
            make_part("Encoder", &w[ATTENTION_SELF], source, source),
            make_part("Decoder", &w[ATTENTION_DECODER], target, target),
            make_part("Cross-attention", &w[ATTENTION_CROSS], target, source),
        };
        result = write_page(q, parts, COUNT(parts), w[ATTENTION_SELF].heads);
    }
    if (result == STATUS_OK && q->shared.json) {
        result = print_pair(q, p, w);
    }
    attention_weights_free(w);
    return result;
}

static status process_pair(const struct batch_query *b, struct request *q)
{
    struct pair p = {0};
    REQUIRE(q->shared.operand_count == 1, STATUS_USAGE,
            "%s is an encoder-decoder and takes one TEXT, the source; give the target with "
            "--target",
            q->shared.checkpoint);
    TRY(complete_options(&b->session, q));
    status result = create_pair(&b->session, q, &p);
    if (result == STATUS_OK) {
        result = write_pair(&b->session, q, &p);
    }
    free_pair(&p);
    return result;
}

/* ---- the command ---- */

static status run_attention(const struct batch_query_request *shared)
{
    struct request *q = (struct request *)shared; /* its first member */
    REQUIRE(q->output != NULL || shared->json, STATUS_USAGE,
            "attention has no output; add --output FILE.html or --json");
    if (q->output != NULL) {
        TRY(report_check_output(q->output));
        TRY(report_check_suffix(q->output, report_page_suffixes, REPORT_PAGE_SUFFIXES,
                                "the output is an HTML page"));
    }
    struct batch_query b = {
        .command = "attention", .process_batch = process_batch, .user = q, .accepts_seq2seq = true};
    status result = batch_query_open(&b, shared);
    if (result == STATUS_OK) {
        bool is_pair = recipe_architecture_has_decoder(b.session.recipe.model.architecture);
        result = is_pair ? process_pair(&b, q) : process_texts(&b, q);
    }
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_attention(int argc, char **argv)
{
    struct request q = {.options = generation_config_unset()};
    const struct option table[] = {
        {"output", OPTION_TEXT, &q.output, "FILE", NULL, "HTML page to write"},
        {"target", OPTION_TEXT, &q.target, "TEXT", NULL,
         "target of an encoder-decoder (default: the most probable token at each step)"},
        {"max-new-tokens", OPTION_INTEGER, &q.options.max_new_tokens, "N", NULL,
         "without --target: maximum number of tokens of the target (default: 128)", .min = 1,
         .max = GENERATE_TOKENS_MAX},
        {"source-prefix", OPTION_TEXT, &q.source.prefix, "TEXT", NULL,
         "text before the source, for example 'translate English to Spanish: '"},
        {"source-lang", OPTION_TEXT, &q.source.from, "CODE", NULL,
         "language of the source, as in translate"},
        {"target-lang", OPTION_TEXT, &q.source.to, "CODE", NULL,
         "language of the target, as in translate"},
    };
    struct options options = {
        .usage = "bireme attention --checkpoint DIR TEXT [SECOND_TEXT] [--output FILE.html] "
                 "[--json]",
        .description =
            "Computes the attention weights of every layer and head for TEXT; with an encoder, for "
            "the pair TEXT and SECOND_TEXT; with an encoder-decoder, for the source TEXT and its "
            "target. --output writes a page with a picture of each head. The page is one file that "
            "loads nothing from the network. --json prints tokens and "
            "attentions[layer][head][query][key]; with an encoder-decoder, encoder_attentions, "
            "decoder_attentions and cross_attentions.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme attention --checkpoint runs/mine \\\n"
                    "    'The file is closed.' --output attention.html\n"
                    "bireme attention --checkpoint runs/bert_manual \\\n"
                    "    'a pointer' 'a null pointer' --json >weights.json",
        .operand_name = "TEXT",
        .operands_min = 1,
        .operands_max = 2,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_attention);
}
