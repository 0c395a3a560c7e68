/* bireme generate: text from a causal model, or the target of a source from an encoder-decoder. A
 * single text is streamed to standard output. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "datasets/chat/chat.h"
#include "datasets/rows/text_lines.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/source_text.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

struct request {
    const char *checkpoint, *prompt, *prompt_file, *columns;
    struct option_list stops, overrides;
    struct generate_options options;
    struct source_text source; /* of an encoder-decoder */
    int64_t seed, batch_size;
    bool json, echo, no_echo, no_cache, no_slide;
    bool has_source; /* the model is an encoder-decoder, and the prompts are sources */
    bool chat;       /* the prompts are user messages */
    const char *system;
    struct chat_template *template; /* only if chat */
    int32_t end_of_turn;
};

struct prompts {
    char **texts; /* [count] */
    struct token_list *ids;
    int64_t count;
    int64_t lines, empty_lines, first_empty_line; /* of the prompt file */
};

static void destroy_prompts(struct prompts *p)
{
    for (int64_t i = 0; p->ids != NULL && i < p->count; i++) {
        token_list_free(&p->ids[i]);
    }
    for (int64_t i = 0; i < p->count; i++) {
        free(p->texts[i]);
    }
    free(p->ids);
    free(p->texts);
}

/* Adds a line or row of the prompt file as a prompt. Skips an empty one. */
static status visit_prompt(void *user, const char *line, size_t bytes, const char *second)
{
    struct prompts *p = user;
    (void)second;
    bytes -= bytes > 0 && line[bytes - 1] == '\r'; /* line end CR LF */
    p->lines++;
    REQUIRE(memchr(line, '\0', bytes) == NULL, STATUS_DATA,
            "the prompt contains a NUL byte; check that the file is text");
    if (bytes == 0) {
        p->first_empty_line = p->empty_lines++ == 0 ? p->lines : p->first_empty_line;
        return STATUS_OK;
    }
    TRY(GROW(p->texts, p->count + 1, "prompts"));
    TRY(memory_copy_bytes(&p->texts[p->count], line, bytes, "a prompt"));
    p->count++;
    return STATUS_OK;
}

static status read_prompts(const struct request *q, struct prompts *p)
{
    if (q->prompt_file == NULL) {
        TRY(ALLOCATE(p->texts, 1, "a prompt"));
        TRY(memory_copy_text(&p->texts[0], q->prompt, "a prompt"));
        p->count = 1;
        return STATUS_OK;
    }
    const char *name = strcmp(q->prompt_file, "-") == 0 ? "standard input" : q->prompt_file;
    const struct text_lines source = {
        .path = q->prompt_file, .columns = q->columns, .field = "prompt"};
    TRY(text_lines_read(&source, visit_prompt, p));
    REQUIRE(p->count > 0, STATUS_DATA, "%s contains no prompt; write one prompt per line", name);
    if (p->empty_lines > 0) {
        log_warning("EMPTY-PROMPT", "%s:%" PRId64 ": skipped %" PRId64 " empty line%s", name,
                    p->first_empty_line, p->empty_lines, text_plural(p->empty_lines));
    }
    return STATUS_OK;
}

/* Warns about a prompt that ends with a space. Most BPE tokens begin with a space, so text after a
 * separate space token is rare in the training data. */
static void warn_trailing_space(const struct tokenizer *t, const struct prompts *p)
{
    for (int64_t i = 0; i < p->count && tokenizer_get_kind(t) == TOKENIZER_BPE; i++) {
        size_t length = strlen(p->texts[i]);
        if (length > 0 && p->texts[i][length - 1] == ' ') {
            log_warning("BLANK",
                        "the prompt '%.60s%s' ends with a space, but the token of the next word "
                        "already contains one; remove the space",
                        p->texts[i], length > 60 ? "..." : "");
            return;
        }
    }
}

/* Warns about a prompt that begins or ends with a backslash and an n. A shell does not replace them
 * by a line break. */
static void warn_escape(const char *prompt)
{
    size_t length = prompt != NULL ? strlen(prompt) : 0;
    if (length >= 2 &&
        (strncmp(prompt, "\\n", 2) == 0 || strcmp(prompt + length - 2, "\\n") == 0)) {
        log_warning("ESCAPE",
                    "the prompt contains a backslash and an n, not a line break; in bash, "
                    "write --prompt $'\\n'");
    }
}

/* Encodes the system message and this user message as a prompt for a response. */
static status encode_message(const struct request *q, const struct tokenizer *t, const char *text,
                             struct token_list *ids)
{
    struct chat_message messages[2];
    int64_t count = 0;
    if (q->system != NULL) {
        messages[count++] = (struct chat_message){
            .role = CHAT_SYSTEM, .text = q->system, .bytes = strlen(q->system)};
    }
    messages[count++] =
        (struct chat_message){.role = CHAT_USER, .text = text, .bytes = strlen(text)};
    return chat_encode_prompt(q->template, t, messages, count, q->has_source, ids);
}

static status encode_prompts(const struct request *q, const struct tokenizer *t,
                             const struct model_config *model, struct prompts *p)
{
    TRY(ALLOCATE(p->ids, p->count, "prompts"));
    for (int64_t i = 0; i < p->count; i++) {
        const struct text text = {p->texts[i], strlen(p->texts[i])};
        TRY(q->chat         ? encode_message(q, t, p->texts[i], &p->ids[i])
            : q->has_source ? source_text_encode(t, &q->source, &text, &p->ids[i])
                            : generate_encode_prompt(t, p->texts[i], &p->ids[i]));
        char name[32];
        snprintf(name, sizeof name, "prompt %" PRId64, i + 1);
        TRY(model_require_positions(model, name, p->ids[i].count, !q->has_source, STATUS_USAGE));
    }
    return STATUS_OK;
}

/* Prints the prompt before the first bytes of its continuation, so that messages about the prompt
 * come before it. */
static void print_echo(const char **echo)
{
    if (*echo != NULL) {
        fputs(*echo, stdout);
    }
    *echo = NULL;
}

/* user: the prompt that is not printed yet, or NULL. */
static void write_bytes(void *user, const char *text, size_t bytes)
{
    print_echo(user);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

/* Creates a JSON string, or null if the bytes are not valid UTF-8. */
static json_t *make_json_string(const char *bytes, size_t count)
{
    json_t *value = json_stringn(bytes, count);
    return value != NULL ? value : json_null();
}

static status print_json(const struct request *q, const char *prompt, int64_t sample,
                         const struct generate_output *text, const char *bytes, size_t count)
{
    json_t *line = json_object();
    json_object_set_new(line, "prompt", make_json_string(prompt, strlen(prompt)));
    json_object_set_new(line, "sample", json_integer(sample));
    json_object_set_new(line, "text", make_json_string(bytes, count));
    json_t *ids = json_array();
    for (int64_t i = 0; i < text->tokens.count; i++) {
        json_array_append_new(ids, json_integer(text->tokens.ids[i]));
    }
    json_object_set_new(line, "ids", ids);
    json_object_set_new(line, "ended", json_boolean(text->ended));
    if (q->options.num_beams > 1) {
        json_object_set_new(line, "log_probability", json_real(text->log_probability));
    }
    return json_output_print(line);
}

/* Prints a line before each text that names its prompt and sample, unless there is only one
 * text. */
static void print_heading(const struct request *q, const struct prompts *p, int64_t prompt,
                          int64_t sample)
{
    int64_t samples = q->options.num_samples;
    if (q->json || p->count * samples == 1) {
        return;
    }
    printf("----- ");
    if (p->count > 1) {
        printf("prompt %" PRId64 " of %" PRId64 "%s", prompt + 1, p->count,
               samples > 1 ? ", " : "");
    }
    if (samples > 1) {
        printf("sample %" PRId64 " of %" PRId64, sample + 1, samples);
    }
    printf(" -----\n");
}

static status print_text(const struct request *q, const struct tokenizer *t, const char *prompt,
                         int64_t sample, struct generate_output *text)
{
    char *bytes = NULL;
    size_t count = 0;
    TRY(generate_decode(t, &q->options, text, &bytes, &count));
    status result = STATUS_OK;
    if (q->json) {
        result = print_json(q, prompt, sample, text, bytes, count);
    } else {
        if (q->echo) {
            fputs(prompt, stdout);
        }
        fwrite(bytes, 1, count, stdout);
        putchar('\n');
    }
    free(bytes);
    return result;
}

static status generate_batch(const struct request *q, struct session *s, const struct prompts *p,
                             int64_t first, int64_t count)
{
    int64_t samples = q->options.num_samples;
    struct generate_options options = q->options;
    options.first_sequence = first * samples;
    struct generate_output *texts = NULL;
    TRY(ALLOCATE(texts, count * samples, "texts"));
    bool stream = p->count == 1 && samples == 1 && !q->json && q->options.num_beams == 1;
    const char *echo = stream && q->echo ? p->texts[0] : NULL;
    status result = generate_run(s->kernels, s->model, s->tokenizer, p->ids + first, count,
                                 &options, stream ? write_bytes : NULL, &echo, texts);
    for (int64_t i = 0; i < count * samples; i++) {
        if (result == STATUS_OK && !stream) {
            print_heading(q, p, first + i / samples, i % samples);
            result =
                print_text(q, s->tokenizer, p->texts[first + i / samples], i % samples, &texts[i]);
        }
        token_list_free(&texts[i].tokens);
    }
    if (stream && result == STATUS_OK) {
        print_echo(&echo);
        putchar('\n');
    }
    free(texts);
    return result;
}

static status generate_all(const struct request *q, struct session *s, struct prompts *p)
{
    TRY(read_prompts(q, p));
    warn_escape(q->prompt);
    TRY(encode_prompts(q, s->tokenizer, model_get_config(s->model), p));
    if (!q->chat && !q->has_source) {
        warn_trailing_space(s->tokenizer, p);
    }
    for (int64_t first = 0; first < p->count; first += q->batch_size) {
        int64_t left = p->count - first;
        TRY(generate_batch(q, s, p, first, number_min(left, q->batch_size)));
    }
    return STATUS_OK;
}

/* Sets the options that are not given on the command line. */
static status complete_options(struct request *q, const struct session *s)
{
    enum { NEW_TOKENS = 100 };
    struct generate_options *o = &q->options;
    q->has_source = recipe_architecture_has_decoder(s->recipe.model.architecture);
    q->echo = q->echo && !q->has_source;
    o->whole_text = q->has_source;
    o->decoder_start = derive_decoder_start(&s->recipe, s->tokenizer);
    const struct model_config *c = model_get_config(s->model);
    const struct generation_context context = {
        .vocabulary = c->vocabulary,
        .positions = q->has_source ? c->positions : INT64_MAX, /* a text of a decoder can slide */
        .end_token = tokenizer_eos(tokenizer_target(s->tokenizer)),
        .max_new_tokens = NEW_TOKENS,
        .temperature = q->has_source ? 0 : 1,
    };
    TRY(generation_config_complete(q->has_source ? s->tokenizer_dir : NULL, &context, o));
    REQUIRE(q->has_source || (q->source.from == NULL && q->source.to == NULL), STATUS_USAGE,
            "--source-lang and --target-lang can only be used with an encoder-decoder, not with %s",
            recipe_architecture_name(s->recipe.model.architecture));
    TRY(q->has_source ? source_text_resolve(s->tokenizer, &q->source, o) : STATUS_OK);
    REQUIRE(o->num_samples <= o->num_beams || o->num_beams == 1, STATUS_USAGE,
            "--num-samples %" PRId64 " is larger than --num-beams %" PRId64
            "; give at least as many beams as samples",
            o->num_samples, o->num_beams);
    return STATUS_OK;
}

/* Adds the stop strings of the command line to the options. */
static status add_stops(struct request *q)
{
    REQUIRE(q->stops.count <= GENERATE_STOPS_MAX, STATUS_USAGE, "--stop takes at most %d texts",
            GENERATE_STOPS_MAX);
    for (int i = 0; i < q->stops.count; i++) {
        REQUIRE(q->stops.items[i][0] != '\0', STATUS_USAGE, "--stop: the text is empty");
        q->options.stops[q->options.stop_count++] = q->stops.items[i];
    }
    return STATUS_OK;
}

/* Opens the model and completes the options for it. */
static status open_model(struct request *q, struct comm *world, struct session *s)
{
    int64_t texts = q->batch_size * q->options.num_samples;
    /* Beam search has one prompt at a time. */
    int64_t rows = number_max(texts, GENERATE_BEAMS_MAX);
    TRY(weights_open_checkpoint(s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                rows));
    TRY(weights_require_generator(s, q->checkpoint));
    TRY(weights_require_tokenizer(s, q->checkpoint, "generate"));
    return complete_options(q, s);
}

static status open_chat(struct request *q, const struct session *s)
{
    TRY(chat_open(s->tokenizer_dir, s->tokenizer, &q->template));
    q->end_of_turn = chat_end_of_turn(q->template);
    q->options.end_token = q->has_source ? NULL : &q->end_of_turn; /* a target has the end token */
    return STATUS_OK;
}

static status run_generate(struct request *q)
{
    struct comm *world = NULL;
    struct session s = {0};
    struct prompts p = {0};
    q->options.sampler.seed = (uint64_t)q->seed;
    TRY(add_stops(q));
    TRY(comm_self_create(&world));
    status result = open_model(q, world, &s);
    if (result == STATUS_OK && q->chat) {
        result = open_chat(q, &s);
    }
    if (result == STATUS_OK) {
        result = generate_all(q, &s, &p);
    }
    chat_close(&q->template);
    destroy_prompts(&p);
    KEEP_FIRST(result, session_stop(&s));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

/* ---- the command line ---- */

static status add_prompt_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"checkpoint", OPTION_TEXT, &q->checkpoint, "DIR", OPTION_REQUIRED,
         "run folder, checkpoints/ folder, one checkpoint or final/"},
        {"prompt", OPTION_TEXT, &q->prompt, "TEXT", NULL,
         "text to continue; the source of an encoder-decoder"},
        {"prompt-file", OPTION_TEXT, &q->prompt_file, "FILE", NULL,
         "file with one prompt per line; -: standard input"},
        {"source-lang", OPTION_TEXT, &q->source.from, "CODE", NULL,
         "language of the sources of an encoder-decoder with language tokens, for example "
         "en_XX"},
        {"target-lang", OPTION_TEXT, &q->source.to, "CODE", NULL,
         "language of the targets, as in translate"},
        {"columns", OPTION_TEXT, &q->columns, "prompt=COLUMN", NULL,
         "with --prompt-file: read a column of *.csv, *.tsv or JSON Lines instead of lines"},
    };
    return options_add(table, rows, COUNT(rows));
}

static status add_token_options(struct generate_options *o, struct option_table *table)
{
    const struct option rows[] = {
        {"max-new-tokens", OPTION_INTEGER, &o->max_new_tokens, "N", NULL,
         "maximum number of new tokens (default: 100)", .min = 1, .max = GENERATE_TOKENS_MAX},
        {"min-new-tokens", OPTION_INTEGER, &o->constraints.min_new_tokens, "N", NULL,
         "no end token before this number of new tokens (default: 0)", .min = 0,
         .max = GENERATE_TOKENS_MAX},
        {"temperature", OPTION_NUMBER, &o->sampler.temperature, "T", NULL,
         "sampling temperature; 0: always take the most probable token (default: 1; 0 for an "
         "encoder-decoder)",
         .min = 0, .max = GENERATE_TEMPERATURE_MAX},
        {"top-k", OPTION_INTEGER, &o->sampler.top_k, "K", "0",
         "sample from the K most probable tokens; 0: all", .min = 0, .max = 1e9},
        {"top-p", OPTION_NUMBER, &o->sampler.top_p, "P", "1",
         "sample from the most probable tokens with a total probability of P",
         .min = GENERATE_TOP_P_MIN, .max = 1},
        {"repetition-penalty", OPTION_NUMBER, &o->sampler.repetition_penalty, "R", NULL,
         "a value above 1 makes tokens that already occurred less probable (default: 1)",
         .min = GENERATE_REPETITION_PENALTY_MIN, .max = GENERATE_REPETITION_PENALTY_MAX},
        {"no-repeat-ngram-size", OPTION_INTEGER, &o->constraints.no_repeat_ngram_size, "N", NULL,
         "no N tokens occur twice in the same order; 0: they may (default: 0)", .min = 0,
         .max = GENERATE_NGRAM_MAX},
    };
    return options_add(table, rows, COUNT(rows));
}

static status add_beam_options(struct generate_options *o, struct option_table *table)
{
    const struct option rows[] = {
        {"num-beams", OPTION_INTEGER, &o->num_beams, "B", NULL,
         "number of beams; above 1: beam search as in Hugging Face, prints the best --num-samples "
         "beams and does not sample (default: 1)",
         .min = 1, .max = GENERATE_BEAMS_MAX},
        {"length-penalty", OPTION_NUMBER, &o->length_penalty, "L", NULL,
         "beam search: beams are ranked by log-probability / tokens^L; tokens includes the end "
         "token (default: 1)",
         .min = -GENERATE_LENGTH_PENALTY_MAX, .max = GENERATE_LENGTH_PENALTY_MAX},
        {"early-stopping", OPTION_FLAG, &o->early_stopping, NULL, NULL,
         "beam search ends as soon as --num-beams texts have ended"},
    };
    return options_add(table, rows, COUNT(rows));
}

static status add_text_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"num-samples", OPTION_INTEGER, &q->options.num_samples, "N", "1",
         "number of texts for each prompt", .min = 1, .max = GENERATE_SAMPLES_MAX},
        {"batch-size", OPTION_INTEGER, &q->batch_size, "N", "8", "number of prompts in a batch",
         .min = 1, .max = 4096},
        {"stop", OPTION_LIST, &q->stops, "TEXT...", NULL,
         "end the text before any of these strings"},
        {"seed", OPTION_INTEGER, &q->seed, "S", "0", "seed of the random numbers", .min = 0,
         .max = 9e15},
        {"set", OPTION_LIST, &q->overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe, e.g. train.precision=fp32"},
        {"chat", OPTION_FLAG, &q->chat, NULL, NULL,
         "treat each prompt as a user message and apply the chat template of the tokenizer; "
         "implies --no-echo"},
        {"system", OPTION_TEXT, &q->system, "TEXT", NULL,
         "with --chat: text of the system message"},
        {"no-echo", OPTION_FLAG, &q->no_echo, NULL, NULL, "do not print the prompt"},
        {"no-cache", OPTION_FLAG, &q->no_cache, NULL, NULL,
         "recompute all tokens for each new token, without the key-value cache (for tests)"},
        {"no-slide", OPTION_FLAG, &q->no_slide, NULL, NULL,
         "stop at the number of positions of the model; by default a longer text continues on its "
         "last positions. Beam search always stops there"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "print one JSON object per text"},
    };
    return options_add(table, rows, COUNT(rows));
}

static status parse_request(struct request *q, int argc, char **argv, bool *help)
{
    struct option_table table = {.count = 0};
    TRY(add_prompt_options(q, &table));
    TRY(add_token_options(&q->options, &table));
    TRY(add_beam_options(&q->options, &table));
    TRY(add_text_options(q, &table));
    struct options options = {
        "bireme generate --checkpoint DIR (--prompt TEXT | --prompt-file FILE) [options]",
        "Generates text with a causal language model, or the target of a source with an\n"
        "encoder-decoder. The settings of generation_config.json of an imported encoder-decoder\n"
        "replace the defaults. If there are several texts, the line\n"
        "\"----- prompt 1 of 2, sample 1 of 3 -----\" is printed before each.",
        table.rows, table.count,
        "bireme generate --checkpoint runs/mine --prompt 'The' \\\n"
        "    --temperature 0.8 --top-k 40 --seed 1\n"
        "bireme generate --checkpoint runs/mine_sft --chat \\\n"
        "    --prompt 'What does ls do?'\n"
        "bireme generate --checkpoint runs/mine \\\n"
        "    --prompt-file prompts.txt --num-samples 2 --json"};
    return options_parse(&options, argc, argv, help);
}

static status check_request(const struct request *q)
{
    REQUIRE(q->prompt == NULL || q->prompt_file == NULL, STATUS_USAGE,
            "--prompt and --prompt-file exclude each other; give one of them");
    REQUIRE(q->columns == NULL || q->prompt_file != NULL, STATUS_USAGE,
            "--columns can only be used with --prompt-file");
    REQUIRE(q->system == NULL || q->chat, STATUS_USAGE, "--system can only be used with --chat");
    return STATUS_OK;
}

status command_generate(int argc, char **argv)
{
    struct request q = {.options = generation_config_unset()};
    bool help = false;
    TRY(parse_request(&q, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    status result = check_request(&q);
    q.echo = !q.no_echo && !q.chat;
    q.options.use_cache = !q.no_cache;
    q.options.slide = !q.no_slide;
    q.options.no_slide_option = "--no-slide";
    q.prompt = q.prompt != NULL ? q.prompt : "";
    if (result == STATUS_OK) {
        result = run_generate(&q);
    }
    free(q.stops.items);
    free(q.overrides.items);
    return result;
}
