/* bireme generate: text from a causal model, streamed to standard output as it comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/command.h"
#include "trainer/cli/line_reader.h"
#include "trainer/cli/options.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/generate.h"
#include "trainer/setup/session.h"

struct request {
    const char *checkpoint, *prompt, *prompt_file;
    struct option_list stops, overrides;
    struct generate_options options;
    int64_t seed, batch_size;
    bool json, echo;
    bool chat; /* prompts are what a user says */
    const char *system;
    struct chat_template *template; /* with chat alone */
};

struct prompts {
    char **texts; /* [count] */
    struct token_list *ids;
    int64_t count;
    int64_t lines, empty, first_empty; /* of the prompt file */
};

static void prompts_destroy(struct prompts *p)
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

/* Each line of the file that is not empty is a prompt. */
static status take_prompt(void *user, const char *line, size_t bytes)
{
    struct prompts *p = user;
    bytes -= bytes > 0 && line[bytes - 1] == '\r'; /* a line's end as on Windows */
    p->lines++;
    REQUIRE(memchr(line, '\0', bytes) == NULL, STATUS_DATA, "a zero byte in a prompt");
    if (bytes == 0) {
        p->first_empty = p->empty++ == 0 ? p->lines : p->first_empty;
        return STATUS_OK;
    }
    char **more = realloc(p->texts, (size_t)(p->count + 1) * sizeof *more);
    REQUIRE(more != NULL, STATUS_INTERNAL, "out of memory for %lld prompts", (long long)p->count);
    p->texts = more;
    p->texts[p->count] = strndup(line, bytes);
    REQUIRE(p->texts[p->count] != NULL, STATUS_INTERNAL, "out of memory for a prompt");
    p->count++;
    return STATUS_OK;
}

static status read_prompts(const struct request *q, struct prompts *p)
{
    if (q->prompt_file == NULL) {
        p->texts = calloc(1, sizeof *p->texts);
        REQUIRE(p->texts != NULL && (p->texts[0] = strdup(q->prompt)) != NULL, STATUS_INTERNAL,
                "out of memory for a prompt");
        p->count = 1;
        return STATUS_OK;
    }
    const char *name = strcmp(q->prompt_file, "-") == 0 ? "standard input" : q->prompt_file;
    TRY(lines_read(q->prompt_file, take_prompt, p));
    REQUIRE(p->count > 0, STATUS_DATA, "%s holds no prompt", name);
    if (p->empty > 0) {
        log_warning("EMPTY-PROMPT", "%s:%lld: %lld empty line%s left out", name,
                    (long long)p->first_empty, (long long)p->empty, text_plural(p->empty));
    }
    return STATUS_OK;
}

/* A byte-pair token mostly begins with its blank: after one that stands alone, what follows is rare. */
static void warn_of_blanks(const struct tokenizer *t, const struct prompts *p)
{
    for (int64_t i = 0; i < p->count && tokenizer_kind_of(t) == TOKENIZER_BPE; i++) {
        size_t length = strlen(p->texts[i]);
        if (length > 0 && p->texts[i][length - 1] == ' ') {
            log_warning("BLANK",
                        "the prompt \"%.60s%s\" ends in a blank, which the next word's token holds "
                        "itself: leave it out",
                        p->texts[i], length > 60 ? "..." : "");
            return;
        }
    }
}

static status encode_plain(const struct tokenizer *t, const char *text, struct token_list *ids)
{
    TRY(tokenizer_put_begin(t, ids));
    TRY(tokenizer_encode(t, text, strlen(text), true, ids));
    if (ids->count == 0) { /* nothing said: begin as a document begins */
        int32_t eos = tokenizer_eos(t);
        REQUIRE(eos >= 0, STATUS_USAGE,
                "an empty prompt needs a tokenizer with an end-of-text token; give --prompt");
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = eos;
    }
    return STATUS_OK;
}

/* A conversation that begins with this message, up to its answer. */
static status encode_message(const struct request *q, const struct tokenizer *t, const char *text,
                             struct token_list *ids)
{
    struct chat_message messages[2];
    struct chat_text out = {0};
    int64_t count = 0;
    if (q->system != NULL) {
        messages[count++] = (struct chat_message){
            .role = CHAT_SYSTEM, .text = q->system, .bytes = strlen(q->system)};
    }
    messages[count++] =
        (struct chat_message){.role = CHAT_USER, .text = text, .bytes = strlen(text)};
    status result =
        chat_encode(q->template, t, messages, count, (struct chat_frame){.reply = true}, &out);
    token_list_free(&out.marks);
    *ids = out.ids;
    return result;
}

static status encode_prompts(const struct request *q, const struct tokenizer *t, int64_t positions,
                             struct prompts *p)
{
    p->ids = calloc((size_t)p->count, sizeof *p->ids);
    REQUIRE(p->ids != NULL, STATUS_INTERNAL, "out of memory for %lld prompts", (long long)p->count);
    for (int64_t i = 0; i < p->count; i++) {
        TRY(q->chat ? encode_message(q, t, p->texts[i], &p->ids[i])
                    : encode_plain(t, p->texts[i], &p->ids[i]));
        REQUIRE(p->ids[i].count < positions, STATUS_USAGE,
                "prompt %lld has %lld tokens and leaves no room: the model has %lld positions",
                (long long)i + 1, (long long)p->ids[i].count, (long long)positions);
    }
    return STATUS_OK;
}

static void write_bytes(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static json_t *text_or_null(const char *bytes, size_t count)
{
    json_t *value = json_stringn(bytes, count); /* NULL where the bytes are no UTF-8 */
    return value != NULL ? value : json_null();
}

static status print_json(const struct request *q, const char *prompt, int64_t sample,
                         const struct generate_text *text, const char *bytes, size_t count)
{
    json_t *line = json_object();
    json_object_set_new(line, "prompt", text_or_null(prompt, strlen(prompt)));
    json_object_set_new(line, "sample", json_integer(sample));
    json_object_set_new(line, "text", text_or_null(bytes, count));
    json_t *ids = json_array();
    for (int64_t i = 0; i < text->tokens.count; i++) {
        json_array_append_new(ids, json_integer(text->tokens.ids[i]));
    }
    json_object_set_new(line, "ids", ids);
    json_object_set_new(line, "ended", json_boolean(text->ended));
    if (q->options.num_beams > 1) {
        json_object_set_new(line, "log_probability", json_real(text->log_probability));
    }
    return report_print(line);
}

/* Where several texts are written, a line before each says whose it is. */
static void print_heading(const struct request *q, const struct prompts *p, int64_t prompt,
                          int64_t sample)
{
    int64_t samples = q->options.num_samples;
    if (q->json || p->count * samples == 1) {
        return;
    }
    printf("----- ");
    if (p->count > 1) {
        printf("prompt %lld of %lld%s", (long long)prompt + 1, (long long)p->count,
               samples > 1 ? ", " : "");
    }
    if (samples > 1) {
        printf("sample %lld of %lld", (long long)sample + 1, (long long)samples);
    }
    printf(" -----\n");
}

static status print_text(const struct request *q, const struct tokenizer *t, const char *prompt,
                         int64_t sample, const struct generate_text *text)
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
    options.first_text = first * samples;
    struct generate_text *texts = calloc((size_t)(count * samples), sizeof *texts);
    REQUIRE(texts != NULL, STATUS_INTERNAL, "out of memory for %lld texts",
            (long long)(count * samples));
    bool stream = p->count == 1 && samples == 1 && !q->json && q->options.num_beams == 1;
    if (stream && q->echo) {
        fputs(p->texts[0], stdout);
    }
    status result = generate_run(s->kernels, s->model, s->tokenizer, p->ids + first, count,
                                 &options, stream ? write_bytes : NULL, NULL, texts);
    for (int64_t i = 0; i < count * samples; i++) {
        if (result == STATUS_OK && !stream) {
            print_heading(q, p, first + i / samples, i % samples);
            result =
                print_text(q, s->tokenizer, p->texts[first + i / samples], i % samples, &texts[i]);
        }
        token_list_free(&texts[i].tokens);
    }
    if (stream && result == STATUS_OK) {
        putchar('\n');
    }
    free(texts);
    return result;
}

static status generate_all(const struct request *q, struct session *s, struct prompts *p)
{
    TRY(read_prompts(q, p));
    TRY(encode_prompts(q, s->tokenizer, model_config_of(s->model)->positions, p));
    if (!q->chat) {
        warn_of_blanks(s->tokenizer, p);
    }
    for (int64_t first = 0; first < p->count; first += q->batch_size) {
        int64_t left = p->count - first;
        TRY(generate_batch(q, s, p, first, left < q->batch_size ? left : q->batch_size));
    }
    return STATUS_OK;
}

static status run(struct request *q)
{
    struct comm *world = NULL;
    struct session s = {0};
    struct prompts p = {0};
    q->options.sampler.seed = (uint64_t)q->seed;
    REQUIRE(q->stops.count <= GENERATE_STOPS_MAX, STATUS_USAGE, "--stop: at most %d texts",
            GENERATE_STOPS_MAX);
    for (int i = 0; i < q->stops.count; i++) {
        REQUIRE(q->stops.items[i][0] != '\0', STATUS_USAGE, "--stop: an empty text");
        q->options.stops[q->options.stop_count++] = q->stops.items[i];
    }
    int64_t texts = q->batch_size * q->options.num_samples * q->options.num_beams;
    int64_t rows = texts > 256 ? texts : 256;
    TRY(comm_self_create(&world));
    status result = session_open_checkpoint(&s, world, q->checkpoint, q->overrides.items,
                                            q->overrides.count, rows);
    if (result == STATUS_OK) {
        result = session_require_causal(&s, q->checkpoint);
    }
    if (result == STATUS_OK && s.tokenizer == NULL) {
        result =
            status_raise(STATUS_DATA, __FILE__, __LINE__,
                         "%s holds no tokenizer, so no text can be made from it", q->checkpoint);
    }
    int32_t end = -1;
    if (result == STATUS_OK && q->chat) {
        result = chat_open(s.tokenizer_dir, s.tokenizer, &q->template);
    }
    if (result == STATUS_OK && q->chat) {
        end = chat_end_of_turn(q->template);
        q->options.end = &end;
    }
    if (result == STATUS_OK) {
        result = generate_all(q, &s, &p);
    }
    chat_close(&q->template);
    prompts_destroy(&p);
    KEEP_FIRST(result, session_stop(&s));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_generate(int argc, char **argv)
{
    struct request q = {.options = {.use_cache = true}};
    struct generate_options *o = &q.options;
    bool no_cache = false, help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q.checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/"},
        {"prompt", OPTION_TEXT, &q.prompt, "TEXT", NULL, "what the text begins with"},
        {"prompt-file", OPTION_TEXT, &q.prompt_file, "FILE", NULL,
         "one prompt a line; empty lines are left out; -: standard input"},
        {"max-new-tokens", OPTION_INTEGER, &o->max_new_tokens, "N", "100", "tokens at most",
         .least = 1, .most = 1e9},
        {"temperature", OPTION_NUMBER, &o->sampler.temperature, "T", "1",
         "flattens (above 1) or sharpens; 0: always the most probable token", .least = 0,
         .most = 1e3},
        {"top-k", OPTION_INTEGER, &o->sampler.top_k, "K", "0",
         "only the K most probable tokens; 0: all", .least = 0, .most = 1e9},
        {"top-p", OPTION_NUMBER, &o->sampler.top_p, "P", "1",
         "only the most probable tokens that make up P", .least = 1e-9, .most = 1},
        {"repetition-penalty", OPTION_NUMBER, &o->sampler.repetition_penalty, "R", "1",
         "above 1: tokens that are there already become less probable", .least = 1e-3, .most = 1e3},
        {"num-beams", OPTION_INTEGER, &o->num_beams, "B", "1",
         "beam search as in Hugging Face (early_stopping=False): B hypotheses are kept, the best N "
         "written; does not sample",
         .least = 1, .most = 256},
        {"length-penalty", OPTION_NUMBER, &o->length_penalty, "L", "1",
         "beams: log-probability / tokens^L decides, the end token counted", .least = -10,
         .most = 10},
        {"num-samples", OPTION_INTEGER, &o->num_samples, "N", "1", "texts for each prompt",
         .least = 1, .most = 4096},
        {"batch-size", OPTION_INTEGER, &q.batch_size, "N", "8", "prompts that run together",
         .least = 1, .most = 4096},
        {"stop", OPTION_LIST, &q.stops, "TEXT...", NULL, "end a text before any of these"},
        {"seed", OPTION_INTEGER, &q.seed, "S", "0", "of the draws", .least = 0, .most = 9e15},
        {"set", OPTION_LIST, &q.overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here, e.g. train.precision=fp32"},
        {"chat", OPTION_FLAG, &q.chat, NULL, NULL,
         "answer each prompt as a user's message, by the tokenizer's chat template; implies "
         "--no-echo"},
        {"system", OPTION_TEXT, &q.system, "TEXT", NULL, "with --chat: the system message"},
        {"no-echo", OPTION_FLAG, &q.echo, NULL, NULL, "leave the prompt out"},
        {"no-cache", OPTION_FLAG, &no_cache, NULL, NULL,
         "compute every token from the beginning (to check the cache)"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "one JSON object a text"},
    };
    struct options options = {
        "bireme generate --checkpoint DIR --prompt TEXT [flags]",
        "Writes text from a causal model to standard output; before each of several "
        "texts a line\n\"----- prompt 1 of 2, sample 1 of 3 -----\".",
        table, sizeof table / sizeof table[0]};
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    q.echo = !q.echo && !q.chat;
    o->use_cache = !no_cache;
    status result = STATUS_OK;
    if (q.prompt != NULL && q.prompt_file != NULL) {
        result =
            status_raise(STATUS_USAGE, __FILE__, __LINE__, "give either --prompt or --prompt-file");
    }
    if (q.system != NULL && !q.chat) {
        result = status_raise(STATUS_USAGE, __FILE__, __LINE__, "--system needs --chat");
    }
    q.prompt = q.prompt != NULL ? q.prompt : "";
    if (o->num_samples > o->num_beams && o->num_beams > 1) {
        result = status_raise(STATUS_USAGE, __FILE__, __LINE__,
                              "--num-samples %lld is more than --num-beams %lld",
                              (long long)o->num_samples, (long long)o->num_beams);
    }
    if (result == STATUS_OK) {
        result = run(&q);
    }
    free(q.stops.items);
    free(q.overrides.items);
    return result;
}
