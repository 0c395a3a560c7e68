/* bireme chat: a conversation on standard input and output, line by line.
 *
 * Every answer is generated from the whole conversation under the tokenizer's chat template. Where it no longer fits
 * into the model's positions, its oldest messages are forgotten first, never the system message. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "base/log.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/inference/generate.h"
#include "trainer/setup/session.h"

#define HELP                                                                                       \
    "/reset forgets the conversation, /save FILE writes it as a row of JSON Lines, /quit or the "  \
    "end of the input leaves; Ctrl-C stops an answer, // begins a message with a slash, \\ at "    \
    "the "                                                                                         \
    "end of a line goes on in the next"

struct request {
    const char *checkpoint, *system;
    struct option_list overrides;
    struct generate_options options;
    int64_t seed;
};

struct chat {
    const struct request *request;
    struct session session;
    struct chat_template *template;
    struct chat_message *messages; /* their texts are the conversation's own */
    int64_t count, room;
    int64_t answers; /* given so far, for the draws */
    bool said;       /* the answer that is streamed has said something that is no blank */
};

/* ---- Ctrl-C, while an answer is written ---- */

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static bool is_interrupted(void)
{
    return interrupted != 0;
}

/* With a stack of its own: a product's kernel may use the stack pointer for something else (stop.c). */
static status watch_interrupt(struct sigaction *before)
{
    static _Alignas(64) char memory[64 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    interrupted = 0;
    REQUIRE(sigaltstack(&stack, NULL) == 0 && sigaction(SIGINT, &action, before) == 0,
            STATUS_INTERNAL, "cannot watch for Ctrl-C: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- the conversation ---- */

static status add_message(struct chat *c, enum chat_role role, const char *text, size_t bytes)
{
    if (c->count == c->room) {
        int64_t room = 2 * c->room + 16;
        struct chat_message *grown = realloc(c->messages, (size_t)room * sizeof *grown);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: %lld messages", (long long)room);
        c->messages = grown;
        c->room = room;
    }
    char *copy = malloc(bytes + 1);
    REQUIRE(copy != NULL, STATUS_INTERNAL, "out of memory: a message of %zu bytes", bytes);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    c->messages[c->count++] = (struct chat_message){.role = role, .text = copy, .bytes = bytes};
    return STATUS_OK;
}

static void drop(struct chat *c, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++) {
        free((char *)c->messages[i].text);
    }
    if (count == 0) {
        return;
    }
    c->count -= count;
    for (int64_t i = first; i < c->count; i++) {
        c->messages[i] = c->messages[i + count];
    }
}

static int64_t system_messages(const struct chat *c)
{
    return c->count > 0 && c->messages[0].role == CHAT_SYSTEM;
}

static status reset(struct chat *c)
{
    drop(c, 0, c->count);
    const char *system = c->request->system;
    return system != NULL ? add_message(c, CHAT_SYSTEM, system, strlen(system)) : STATUS_OK;
}

/* The user's message behind this one; count: there is none. */
static int64_t next_question(const struct chat *c, int64_t at)
{
    do {
        at++;
    } while (at < c->count && c->messages[at].role != CHAT_USER);
    return at;
}

/* The system message, if there is one, and all from `first` on, as a prompt. */
static status encode_from(const struct chat *c, int64_t first, struct chat_text *out)
{
    int64_t kept = system_messages(c), count = kept + c->count - first;
    struct chat_message *view = malloc((size_t)count * sizeof *view);
    REQUIRE(view != NULL, STATUS_INTERNAL, "out of memory: %lld messages", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        view[i] = c->messages[i < kept ? i : first + i - kept];
    }
    out->ids.count = out->marks.count = 0;
    status result = chat_encode(c->template, c->session.tokenizer, view, count,
                                (struct chat_frame){.reply = true}, out);
    free(view);
    return result;
}

/* The conversation as a prompt that leaves room for an answer; else its end, from a question on. */
static status encode(struct chat *c, struct chat_text *out)
{
    int64_t positions = model_config_of(c->session.model)->positions;
    int64_t kept = system_messages(c), first = kept;
    TRY(encode_from(c, first, out));
    while (out->ids.count + c->request->options.max_new_tokens > positions &&
           next_question(c, first) < c->count) {
        first = next_question(c, first);
        TRY(encode_from(c, first, out));
    }
    REQUIRE(out->ids.count < positions, STATUS_USAGE,
            "this message makes %lld tokens, the model has %lld positions",
            (long long)out->ids.count, (long long)positions);
    if (first > kept) {
        drop(c, kept, first - kept);
        log_info("(the oldest messages are forgotten: the model has %lld positions)",
                 (long long)positions);
    }
    return STATUS_OK;
}

/* ---- answers ---- */

static void write_answer(void *user, const char *text, size_t bytes)
{
    struct chat *c = user;
    while (!c->said && chat_strips(c->template) && bytes > 0 && strchr(" \t\n", text[0]) != NULL) {
        text++;
        bytes--;
    }
    c->said = c->said || bytes > 0;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static status generate(struct chat *c, const struct chat_text *prompt, char **out, size_t *bytes)
{
    struct session *s = &c->session;
    int32_t end = chat_end_of_turn(c->template);
    int64_t left = model_config_of(s->model)->positions - prompt->ids.count;
    struct generate_options options = c->request->options;
    options.end = &end;
    options.stopped = is_interrupted;
    options.first_text = c->answers++;
    options.max_new_tokens = options.max_new_tokens < left ? options.max_new_tokens : left;
    struct generate_text text = {0};
    c->said = false;
    status result = generate_run(s->kernels, s->model, s->tokenizer, &prompt->ids, 1, &options,
                                 write_answer, c, &text);
    if (result == STATUS_OK) {
        putchar('\n');
        result = generate_decode(s->tokenizer, &options, &text, out, bytes);
    }
    token_list_free(&text.tokens);
    return result;
}

static status answer(struct chat *c)
{
    struct chat_text prompt = {0};
    struct sigaction before;
    char *text = NULL;
    size_t bytes = 0;
    status result = encode(c, &prompt);
    if (result == STATUS_OK) {
        TRY(watch_interrupt(&before));
        result = generate(c, &prompt, &text, &bytes);
        sigaction(SIGINT, &before, NULL);
    }
    chat_text_free(&prompt);
    if (result == STATUS_OK && c->said) {
        result = add_message(c, CHAT_ASSISTANT, text, bytes);
    } else { /* no answer: the message was not heard */
        drop(c, c->count - 1, 1);
    }
    free(text);
    REQUIRE(!ferror(stdout), STATUS_WRITE, "cannot write standard output: %s", strerror(errno));
    return result;
}

/* ---- /save ---- */

/* What is no UTF-8 becomes '?': a model may say any bytes. */
static json_t *json_text(const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    json_t *value = NULL;
    if (copy != NULL) {
        memcpy(copy, text, bytes);
        for (size_t at = 0; at < bytes;) {
            size_t length = 1;
            json_t *one = json_stringn(copy + at, length);
            while (one == NULL && length < 4 && at + length < bytes) {
                one = json_stringn(copy + at, ++length);
            }
            copy[at] = one != NULL ? copy[at] : '?';
            at += one != NULL ? length : 1;
            json_decref(one);
        }
        value = json_stringn(copy, bytes);
    }
    free(copy);
    return value;
}

static status save(const struct chat *c, const char *path)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    REQUIRE(path[0] != '\0', STATUS_USAGE, "/save FILE: the file's name is missing");
    json_t *messages = json_array();
    for (int64_t i = 0; i < c->count; i++) {
        const struct chat_message *m = &c->messages[i];
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", roles[m->role], "content",
                                                  json_text(m->text, m->bytes)));
    }
    json_t *row = json_pack("{s:o}", "messages", messages);
    char *text = row != NULL ? json_dumps(row, JSON_COMPACT) : NULL;
    json_decref(row);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: a conversation");
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in the place of its end */
    status result = file_write(path, text, bytes + 1);
    free(text);
    TRY(result);
    log_info("(saved to %s)", path);
    return STATUS_OK;
}

/* ---- the command ---- */

/* What goes wrong with one line is told, and the conversation goes on; lost output and memory end it. */
static status tolerate(status result)
{
    bool serious =
        result == STATUS_WRITE || result == STATUS_INTERNAL || result == STATUS_NOT_FINITE;
    if (result == STATUS_OK || serious) {
        return result;
    }
    status_print();
    return STATUS_OK;
}

static bool is_command(const char *line, const char *name, const char **rest)
{
    size_t length = strlen(name);
    bool is = strncmp(line, name, length) == 0 && strchr(" \t", line[length]) != NULL;
    *rest = is ? line + length + strspn(line + length, " \t") : "";
    return is;
}

static status use_line(struct chat *c, const char *line, bool *leave)
{
    const char *rest;
    if (is_command(line, "/quit", &rest) || is_command(line, "/exit", &rest)) {
        *leave = true;
        return STATUS_OK;
    }
    if (is_command(line, "/reset", &rest)) {
        log_info("(forgotten)");
        return reset(c);
    }
    if (is_command(line, "/save", &rest)) {
        return tolerate(save(c, rest));
    }
    if (line[0] == '/' && line[1] != '/') {
        log_info("%s", HELP);
        return STATUS_OK;
    }
    line += line[0] == '/';
    TRY(add_message(c, CHAT_USER, line, strlen(line)));
    return tolerate(answer(c));
}

/* What was typed: a line, or several, each but the last with a backslash at its end. */
struct typed {
    char *line, *text;
    size_t line_room, bytes, room;
};

static status add_line(struct typed *t, size_t bytes)
{
    if (t->bytes + bytes >= t->room) {
        size_t room = 2 * (t->bytes + bytes) + 1;
        char *grown = realloc(t->text, room);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: a message of %zu bytes", room);
        t->text = grown;
        t->room = room;
    }
    memcpy(t->text + t->bytes, t->line, bytes + 1);
    t->bytes += bytes;
    return STATUS_OK;
}

/* *heard: false at the end of the input. */
static status read_message(struct typed *t, bool person, bool *heard)
{
    bool goes_on = true;
    t->bytes = 0;
    *heard = false;
    while (goes_on) {
        if (person) {
            fputs(*heard ? ". " : "> ", stderr);
        }
        ssize_t got = getline(&t->line, &t->line_room, stdin);
        if (got < 0) {
            return STATUS_OK;
        }
        while (got > 0 && strchr("\r\n", t->line[got - 1]) != NULL) {
            t->line[--got] = '\0';
        }
        goes_on = got > 0 && t->line[got - 1] == '\\';
        if (goes_on) {
            t->line[got - 1] = '\n';
        }
        TRY(add_line(t, (size_t)got));
        *heard = true;
    }
    return STATUS_OK;
}

static status converse(struct chat *c)
{
    bool person = isatty(STDIN_FILENO) != 0, leave = false;
    struct typed typed = {0};
    status result = reset(c);
    log_info("template %s; " HELP, chat_name(c->template));
    while (result == STATUS_OK && !leave) {
        bool heard = false;
        result = read_message(&typed, person, &heard);
        if (result != STATUS_OK || !heard) {
            break;
        }
        if (typed.text[strspn(typed.text, " \t\n")] != '\0') {
            result = use_line(c, typed.text, &leave);
        }
    }
    free(typed.line);
    free(typed.text);
    drop(c, 0, c->count);
    free(c->messages);
    return result;
}

static status open_template(struct chat *c, const struct request *q)
{
    REQUIRE(c->session.tokenizer != NULL, STATUS_DATA,
            "%s holds no tokenizer, so there is no talking to it", q->checkpoint);
    return chat_open(c->session.tokenizer_dir, c->session.tokenizer, &c->template);
}

static status run(struct request *q)
{
    struct comm *world = NULL;
    struct chat c = {.request = q};
    q->options.sampler.seed = (uint64_t)q->seed;
    TRY(comm_self_create(&world));
    status result = session_open_checkpoint(&c.session, world, q->checkpoint, q->overrides.items,
                                            q->overrides.count, 256);
    if (result == STATUS_OK) {
        result = session_require_causal(&c.session, q->checkpoint);
    }
    if (result == STATUS_OK) {
        result = open_template(&c, q);
    }
    if (result == STATUS_OK) {
        result = converse(&c);
    }
    chat_close(&c.template);
    KEEP_FIRST(result, session_stop(&c.session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_chat(int argc, char **argv)
{
    struct request q = {.options = {.use_cache = true, .num_beams = 1, .num_samples = 1}};
    struct generate_options *o = &q.options;
    bool help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q.checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/; its tokenizer has a chat "
         "template"},
        {"system", OPTION_TEXT, &q.system, "TEXT", NULL, "the system message"},
        {"max-new-tokens", OPTION_INTEGER, &o->max_new_tokens, "N", "256",
         "tokens of an answer at most", .least = 1, .most = 1e9},
        {"temperature", OPTION_NUMBER, &o->sampler.temperature, "T", "0.7",
         "flattens (above 1) or sharpens; 0: always the most probable token", .least = 0,
         .most = 1e3},
        {"top-k", OPTION_INTEGER, &o->sampler.top_k, "K", "0",
         "only the K most probable tokens; 0: all", .least = 0, .most = 1e9},
        {"top-p", OPTION_NUMBER, &o->sampler.top_p, "P", "1",
         "only the most probable tokens that make up P", .least = 1e-9, .most = 1},
        {"repetition-penalty", OPTION_NUMBER, &o->sampler.repetition_penalty, "P", "1",
         "above 1: makes what was said less probable", .least = 1e-9, .most = 1e3},
        {"seed", OPTION_INTEGER, &q.seed, "S", "0", "of the draws", .least = 0, .most = 9e15},
        {"set", OPTION_LIST, &q.overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here, e.g. train.precision=fp32"},
    };
    struct options options = {.usage = "bireme chat --checkpoint DIR [flags]",
                              .about = "Answers each line of standard input, with the "
                                       "conversation so far before it.\n" HELP ".",
                              .table = table,
                              .count = sizeof table / sizeof table[0]};
    TRY(options_parse(&options, argc, argv, &help));
    status result = help ? STATUS_OK : run(&q);
    free(q.overrides.items);
    return result;
}
