/* bireme translate and bireme summarize: the target of each line with an encoder-decoder.
 *
 * Lines are read into a buffer, and generation runs on batches of similar lengths. The outputs have
 * the order of the lines. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "datasets/rows/text_lines.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/inference/source_text.h"
#include "trainer/setup/derive.h"

struct query {
    struct batch_query_request request;
    struct generate_options options;
    int64_t batch_size, buffer_size;
    struct source_text source;
    struct session session;
    int64_t capacity; /* of the buffer, in lines */
    char **texts;     /* [capacity] */
    struct token_list *sources;
    int64_t count; /* lines in the buffer */
    int64_t truncated_count;
};

/* ---- one buffer ---- */

static void clear_buffer(struct query *q)
{
    while (q->count > 0) {
        free(q->texts[--q->count]);
        token_list_free(&q->sources[q->count]);
    }
}

static status print_json(const char *source, const struct generate_output *output, const char *text)
{
    json_t *ids = json_array();
    for (int64_t i = 0; i < output->tokens.count; i++) {
        json_array_append_new(ids, json_integer(output->tokens.ids[i]));
    }
    return json_output_print(json_pack("{s:s, s:s, s:o, s:b}", "source", source, "text", text,
                                       "ids", ids, "ended", output->ended));
}

/* Returns a text as one line of valid UTF-8. */
static status make_line(const char *text, size_t bytes, char **out)
{
    TRY(generate_clean_text(text, bytes, out));
    for (char *c = *out; (c = strchr(c, '\n')) != NULL;) {
        *c = ' ';
    }
    return STATUS_OK;
}

/* Prints an output as one line. */
static status print_output(const struct query *q, const char *source,
                           const struct generate_output *output)
{
    char *text = NULL, *line = NULL;
    size_t bytes = 0;
    TRY(tokenizer_decode(tokenizer_target(q->session.tokenizer), output->tokens.ids,
                         output->tokens.count, true, &text, &bytes));
    status result = make_line(text, bytes, &line);
    if (result == STATUS_OK && q->request.json) {
        result = print_json(source, output, line);
    } else if (result == STATUS_OK) {
        puts(line);
    }
    free(text);
    free(line);
    return result;
}

/* Generates the targets of all lines in the buffer. Empty lines have empty targets. */
static status generate_targets(struct query *q, struct token_list *sources, int64_t *lines,
                               struct generate_output *outputs)
{
    int64_t count = 0;
    for (int64_t i = 0; i < q->count; i++) {
        if (q->texts[i][0] != '\0') {
            lines[count] = i;
            sources[count++] = q->sources[i];
        }
    }
    TRY(generate_run_sorted(q->session.kernels, q->session.model, q->session.tokenizer, sources,
                            count, q->batch_size, &q->options, outputs));
    for (int64_t i = 0, next = 0; i < q->count; i++) {
        struct generate_output empty = {.ended = true};
        bool has_target = next < count && lines[next] == i;
        TRY(print_output(q, q->texts[i], has_target ? &outputs[next] : &empty));
        next += has_target;
    }
    fflush(stdout);
    return STATUS_OK;
}

static status flush_buffer(struct query *q)
{
    size_t count = (size_t)q->count + 1;
    struct token_list *sources = NULL;
    int64_t *lines = NULL;
    struct generate_output *outputs = NULL;
    status result = ALLOCATE(sources, count, "lines");
    KEEP_FIRST(result, ALLOCATE(lines, count, "lines"));
    KEEP_FIRST(result, ALLOCATE(outputs, count, "lines"));
    if (result == STATUS_OK) {
        result = generate_targets(q, sources, lines, outputs);
    }
    for (size_t i = 0; outputs != NULL && i < count; i++) {
        token_list_free(&outputs[i].tokens);
    }
    free(sources);
    free(lines);
    free(outputs);
    clear_buffer(q);
    return result;
}

/* ---- lines ---- */

/* Removes the tokens before the last one that do not fit. The last one is the end token. */
static status limit_source(struct query *q, struct token_list *source)
{
    int64_t positions = model_positions(model_get_config(q->session.model));
    REQUIRE(source->count <= positions || q->request.truncate, STATUS_DATA,
            "the source has %" PRId64 " tokens, but the model has %" PRId64
            " positions; shorten it, or use --truncate",
            source->count, positions);
    if (source->count > positions) {
        source->ids[positions - 1] = source->ids[source->count - 1];
        source->count = positions;
        q->truncated_count++;
    }
    return STATUS_OK;
}

static status visit_line(void *user, const char *line, size_t bytes, const char *second)
{
    struct query *q = user;
    (void)second;
    TRY(text_input_check(&(struct text){line, bytes}));
    bool is_line = q->request.columns == NULL;
    bytes -= is_line && bytes > 0 && line[bytes - 1] == '\r'; /* line end CR LF */
    TRY(memory_copy_bytes(&q->texts[q->count], line, bytes, "a line"));
    struct text text = {q->texts[q->count], bytes};
    struct token_list *source = &q->sources[q->count++];
    TRY(source_text_encode(q->session.tokenizer, &q->source, &text, source));
    TRY(limit_source(q, source));
    return q->count == q->capacity ? flush_buffer(q) : STATUS_OK;
}

/* ---- the command ---- */

static status open_session(struct query *q, struct comm *world)
{
    enum { NEW_TOKENS = 128 };
    const struct batch_query_request *r = &q->request;
    struct session *s = &q->session;
    TRY(weights_open_checkpoint(s, world, r->checkpoint, r->overrides.items, r->overrides.count,
                                q->batch_size));
    TRY(weights_require_seq2seq(s, r->checkpoint));
    TRY(weights_require_tokenizer(s, r->checkpoint, "this command"));
    q->options.decoder_start = derive_decoder_start(&s->recipe, s->tokenizer);
    const struct generation_context context = {
        .vocabulary = model_get_config(s->model)->vocabulary,
        .positions = model_get_config(s->model)->positions,
        .end_token = tokenizer_eos(tokenizer_target(s->tokenizer)),
        .max_new_tokens = NEW_TOKENS,
    };
    TRY(generation_config_complete(s->tokenizer_dir, &context, &q->options));
    return source_text_resolve(s->tokenizer, &q->source, &q->options);
}

static status read_lines(struct query *q)
{
    const struct text_lines source = {
        .path = q->request.path, .columns = q->request.columns, .field = "source"};
    bool is_terminal = q->request.path == NULL && isatty(STDIN_FILENO);
    q->capacity = is_terminal ? 1 : q->buffer_size;
    TRY(ALLOCATE(q->texts, q->capacity, "the lines"));
    TRY(ALLOCATE(q->sources, q->capacity, "the lines"));
    TRY(text_lines_read(&source, visit_line, q));
    TRY(flush_buffer(q));
    batch_query_log_truncated(q->truncated_count, q->session.model);
    return STATUS_OK;
}

static status run_query(const struct batch_query_request *request)
{
    struct query *q = (struct query *)request; /* its first member */
    struct comm *world = NULL;
    TRY(comm_self_create(&world));
    status result = open_session(q, world);
    if (result == STATUS_OK) {
        result = read_lines(q);
    }
    clear_buffer(q);
    free(q->texts);
    free(q->sources);
    KEEP_FIRST(result, session_stop(&q->session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

static status run_command(const char *usage, const char *description, const char *examples,
                          int argc, char **argv)
{
    struct query q = {.options = generation_config_unset()};
    struct generate_options *o = &q.options;
    const struct option table[] = {
        BATCH_QUERY_COLUMNS(&q.request, "source"),
        {"source-prefix", OPTION_TEXT, &q.source.prefix, "TEXT", NULL,
         "text before each source, for example 'translate English to Spanish: '"},
        {"source-lang", OPTION_TEXT, &q.source.from, "CODE", NULL,
         "language of the sources, for example en_XX, of a model with language tokens "
         "(default: the one in its tokenizer.json)"},
        {"target-lang", OPTION_TEXT, &q.source.to, "CODE", NULL,
         "language of the targets: es_XX of a model with language tokens, or es of one with "
         "tokens such as >>es<<"},
        {"max-new-tokens", OPTION_INTEGER, &o->max_new_tokens, "N", NULL,
         "maximum number of tokens of a target (default: 128)", .min = 1,
         .max = GENERATE_TOKENS_MAX},
        {"min-new-tokens", OPTION_INTEGER, &o->constraints.min_new_tokens, "N", NULL,
         "minimum number of tokens of a target (default: 0)", .min = 0, .max = GENERATE_TOKENS_MAX},
        {"num-beams", OPTION_INTEGER, &o->num_beams, "B", NULL,
         "number of beams; 1: always the most probable token (default: 1)", .min = 1,
         .max = GENERATE_BEAMS_MAX},
        {"length-penalty", OPTION_NUMBER, &o->length_penalty, "L", NULL,
         "beam search: beams are ranked by log-probability / tokens^L; tokens includes the end "
         "token (default: 1)",
         .min = -GENERATE_LENGTH_PENALTY_MAX, .max = GENERATE_LENGTH_PENALTY_MAX},
        {"no-repeat-ngram-size", OPTION_INTEGER, &o->constraints.no_repeat_ngram_size, "N", NULL,
         "no N tokens occur twice in the same order; 0: they may (default: 0)", .min = 0,
         .max = GENERATE_NGRAM_MAX},
        {"early-stopping", OPTION_FLAG, &o->early_stopping, NULL, NULL,
         "beam search ends as soon as --num-beams targets have ended"},
        {"batch-size", OPTION_INTEGER, &q.batch_size, "N", "16", "number of sources in a batch",
         .min = 1, .max = 4096},
        {"buffer-size", OPTION_INTEGER, &q.buffer_size, "N", "1024",
         "number of lines to read before the first target is printed; 1 on a terminal", .min = 1,
         .max = 1e6},
    };
    const struct options options = {.usage = usage,
                                    .description = description,
                                    .table = table,
                                    .count = COUNT(table),
                                    .examples = examples,
                                    .operand_name = "FILE",
                                    .operands_max = 1};
    return batch_query_run_command(&options, true, argc, argv, &q.request, run_query);
}

#define SETTINGS                                                                                   \
    "The source is a line, the target is printed as a line. Sources of similar lengths form a\n"   \
    "batch. The settings of generation_config.json of an imported model replace the defaults.\n"   \
    "Without FILE, standard input is read."

status command_translate(int argc, char **argv)
{
    return run_command("bireme translate --checkpoint DIR [FILE]",
                       "Translates each line of a file with an encoder-decoder.\n" SETTINGS,
                       "bireme translate --checkpoint runs/pairs pairs.en >out.txt\n"
                       "bireme translate --checkpoint models/t5 --num-beams 4 \\\n"
                       "    --source-prefix 'translate English to German: ' \\\n"
                       "    pairs.en",
                       argc, argv);
}

status command_summarize(int argc, char **argv)
{
    return run_command("bireme summarize --checkpoint DIR [FILE]",
                       "Summarizes each line of a file with an encoder-decoder.\n" SETTINGS,
                       "bireme summarize --checkpoint models/bart \\\n"
                       "    --num-beams 4 articles.txt",
                       argc, argv);
}
