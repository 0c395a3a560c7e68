/* bireme chat: a conversation on standard input and output, line by line.
 *
 * Each response is generated from the whole conversation, encoded with the chat template of the
 * tokenizer. If the conversation does not fit into the positions of the model, the oldest messages
 * are left out of the prompt first. The system message is never left out. At most a quarter of the
 * positions is reserved for the response; a longer one continues on the last positions. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "base/input/line_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/terminal.h"
#include "base/text_buffer.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/source_text.h"
#include "trainer/logging/json_text.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

#define HELP                                                                                       \
    "Commands: /reset drops the conversation, /save FILE appends it as a row of JSON Lines, "      \
    "/quit "                                                                                       \
    "or end of input exits. Ctrl-C stops a response. A message that starts with a slash is "       \
    "written with //. A backslash at the end of a line continues the message on the next line."

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
    struct generate_options options;
    bool has_source; /* the model is an encoder-decoder: the conversation is its source */
    struct chat_message *messages; /* each text is allocated separately */
    int64_t count, capacity;
    int64_t first;  /* the first message of the prompt after the system message */
    status failure; /* the first tolerated error; the exit code if the input is no terminal */
    int64_t response_count; /* generated so far; selects the random numbers of a response */
    bool has_output;        /* the current response has produced text other than white space */
};

/* ---- Ctrl-C during a response ---- */

static volatile sig_atomic_t interrupted;

static void handle_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static bool is_interrupted(void)
{
    return interrupted != 0;
}

/* Installs the handler on a separate stack. A GEMM kernel may use the stack pointer as a general
 * register (see stop_signal.c). */
static status install_interrupt_handler(struct sigaction *before)
{
    static _Alignas(64) char memory[64 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle_interrupt;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    interrupted = 0;
    REQUIRE(sigaltstack(&stack, NULL) == 0 && sigaction(SIGINT, &action, before) == 0,
            STATUS_INTERNAL, "cannot install the handler for Ctrl-C: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- the conversation ---- */

static status add_message(struct chat *c, enum chat_role role, const char *text, size_t bytes)
{
    TRY(RESERVE(c->messages, c->capacity, c->count + 1, "messages"));
    char *copy = NULL;
    TRY(ALLOCATE(copy, bytes + 1, "a message"));
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    c->messages[c->count++] = (struct chat_message){.role = role, .text = copy, .bytes = bytes};
    return STATUS_OK;
}

static void drop_messages(struct chat *c, int64_t first, int64_t count)
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

static int64_t count_system_messages(const struct chat *c)
{
    return c->count > 0 && c->messages[0].role == CHAT_SYSTEM;
}

static status reset_conversation(struct chat *c)
{
    drop_messages(c, 0, c->count);
    const char *system = c->request->system;
    c->first = system != NULL;
    return system != NULL ? add_message(c, CHAT_SYSTEM, system, strlen(system)) : STATUS_OK;
}

/* Returns the index of the next user message after `index`, or count if there is none. */
static int64_t find_next_user_message(const struct chat *c, int64_t index)
{
    do {
        index++;
    } while (index < c->count && c->messages[index].role != CHAT_USER);
    return index;
}

/* Encodes the system message, if any, and all messages from `first` on as a prompt. */
static status encode_messages_from(const struct chat *c, int64_t first, struct token_list *out)
{
    int64_t system_count = count_system_messages(c), count = system_count + c->count - first;
    struct chat_message *view = NULL;
    TRY(ALLOCATE(view, count, "messages"));
    for (int64_t i = 0; i < count; i++) {
        view[i] = c->messages[i < system_count ? i : first + i - system_count];
    }
    out->count = 0;
    status result =
        chat_encode_prompt(c->template, c->session.tokenizer, view, count, c->has_source, out);
    free(view);
    return result;
}

/* Encodes the conversation as a prompt that leaves space for a response. Leaves out the oldest
 * messages before a user message until the prompt fits. A target has its own positions. */
static status encode_conversation(struct chat *c, struct token_list *out)
{
    int64_t positions = model_get_config(c->session.model)->positions, first = c->first;
    int64_t wanted = c->options.max_new_tokens, quarter = positions / 4;
    int64_t reserved = c->has_source ? 0 : number_min(wanted, quarter);
    TRY(encode_messages_from(c, first, out));
    while (out->count + reserved > positions && find_next_user_message(c, first) < c->count) {
        first = find_next_user_message(c, first);
        TRY(encode_messages_from(c, first, out));
    }
    TRY(model_require_positions(model_get_config(c->session.model), "this message", out->count,
                                !c->has_source, STATUS_USAGE));
    if (first > c->first) {
        log_info("the oldest messages no longer fit into the %" PRId64 " positions of the model",
                 positions);
    }
    c->first = first;
    return STATUS_OK;
}

/* ---- responses ---- */

/* Streams text to standard output. Skips leading white space if the template strips it. */
static void write_response(void *user, const char *text, size_t bytes)
{
    struct chat *c = user;
    while (!c->has_output && chat_strips(c->template) && bytes > 0 &&
           strchr(" \t\n", text[0]) != NULL) {
        text++;
        bytes--;
    }
    c->has_output = c->has_output || bytes > 0;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static status generate_response(struct chat *c, const struct token_list *prompt, char **out,
                                size_t *bytes)
{
    struct session *s = &c->session;
    int32_t end = chat_end_of_turn(c->template);
    struct generate_options options = c->options;
    options.end_token = c->has_source ? NULL : &end; /* a target has the end token */
    options.should_stop = is_interrupted;
    options.first_sequence = c->response_count++;
    options.slide = true;
    struct generate_output text = {0};
    c->has_output = false;
    status result = generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options,
                                 write_response, c, &text);
    if (result == STATUS_OK) {
        putchar('\n');
        result = generate_decode(s->tokenizer, &options, &text, out, bytes);
    }
    token_list_free(&text.tokens);
    return result;
}

static status respond_to_conversation(struct chat *c)
{
    struct token_list prompt = {0};
    struct sigaction before;
    char *text = NULL;
    size_t bytes = 0;
    status result = encode_conversation(c, &prompt);
    if (result == STATUS_OK) {
        TRY(install_interrupt_handler(&before));
        result = generate_response(c, &prompt, &text, &bytes);
        sigaction(SIGINT, &before, NULL);
    }
    token_list_free(&prompt);
    if (result == STATUS_OK && c->has_output) {
        result = add_message(c, CHAT_ASSISTANT, text, bytes);
    } else { /* Without a response, the message is not part of the conversation. */
        drop_messages(c, c->count - 1, 1);
    }
    free(text);
    TRY(terminal_flush(true));
    return result;
}

/* ---- /save ---- */

/* Appends a line. If the last line of the file is not complete, a newline ends it first. */
static status append_row(const char *path, const char *line, size_t bytes)
{
    int file;
    char last = '\n';
    TRY(file_open_output(path, O_RDWR | O_APPEND, &file));
    int64_t end = lseek(file, 0, SEEK_END);
    status result = STATUS_OK;
    if (end > 0 && pread(file, &last, 1, end - 1) == 1 && last != '\n') {
        result = file_append(file, path, &end, "\n", 1);
    }
    if (result == STATUS_OK) {
        result = file_append(file, path, &end, line, bytes);
    }
    if (close(file) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", path, strerror(errno));
    }
    return result;
}

static status save_conversation(const struct chat *c, const char *path)
{
    REQUIRE(path[0] != '\0', STATUS_USAGE, "/save needs a file name: /save FILE");
    json_t *messages = json_array();
    for (int64_t i = 0; i < c->count; i++) {
        const struct chat_message *m = &c->messages[i];
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", chat_role_name(m->role),
                                                  "content", json_text_create(m->text, m->bytes)));
    }
    json_t *row = json_pack("{s:o}", "messages", messages);
    char *text = row != NULL ? json_dumps(row, JSON_COMPACT) : NULL;
    json_decref(row);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for the conversation");
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* replaces the NUL */
    status result = append_row(path, text, bytes + 1);
    free(text);
    TRY(result);
    log_info("appended to %s", path);
    return STATUS_OK;
}

/* ---- the command ---- */

/* Prints an error of one line and lets the conversation continue. Returns errors of the output, of
 * memory and of the model, which end the program. */
static status tolerate_error(struct chat *c, status result)
{
    bool is_fatal =
        result == STATUS_WRITE || result == STATUS_INTERNAL || result == STATUS_NOT_FINITE;
    if (result == STATUS_OK || is_fatal) {
        return result;
    }
    status_print();
    c->failure = c->failure == STATUS_OK ? result : c->failure;
    return STATUS_OK;
}

/* Returns whether the line is this command, and sets *rest to its argument. */
static bool is_command(const char *line, const char *name, const char **rest)
{
    size_t length = strlen(name);
    bool matches = strncmp(line, name, length) == 0 && strchr(" \t", line[length]) != NULL;
    *rest = matches ? line + length + strspn(line + length, " \t") : "";
    return matches;
}

static status process_line(struct chat *c, const char *line, bool *quit)
{
    const char *rest;
    if (is_command(line, "/quit", &rest) || is_command(line, "/exit", &rest)) {
        *quit = true;
        return STATUS_OK;
    }
    if (is_command(line, "/reset", &rest)) {
        log_info("new conversation");
        return reset_conversation(c);
    }
    if (is_command(line, "/save", &rest)) {
        return tolerate_error(c, save_conversation(c, rest));
    }
    if (line[0] == '/' && line[1] != '/') {
        log_text("%s", HELP);
        return STATUS_OK;
    }
    line += line[0] == '/';
    TRY(add_message(c, CHAT_USER, line, strlen(line)));
    return tolerate_error(c, respond_to_conversation(c));
}

/* A message that is read from standard input. A backslash at the end of a line continues it. */
struct message_input {
    struct line_reader lines;
    struct text_buffer text; /* text.bytes[text.count] is NUL */
};

/* Appends a line with its NUL, which the next line replaces. */
static status append_line(struct message_input *input)
{
    TRY(text_buffer_append(&input->text, input->lines.line, input->lines.bytes + 1));
    input->text.count--;
    return STATUS_OK;
}

/* Reads the next message. Sets *found to false at the end of the input. */
static status read_message(struct message_input *input, bool is_terminal, bool *found)
{
    struct line_reader *lines = &input->lines;
    bool continues = true;
    input->text.count = 0;
    *found = false;
    while (continues) {
        bool has_line;
        if (is_terminal) {
            fputs(*found ? ". " : "> ", stderr);
        }
        TRY(line_reader_next(lines, &has_line));
        if (!has_line) {
            return STATUS_OK;
        }
        TRY(line_reader_check_length(lines));
        while (lines->bytes > 0 && lines->line[lines->bytes - 1] == '\r') {
            lines->line[--lines->bytes] = '\0';
        }
        continues = lines->bytes > 0 && lines->line[lines->bytes - 1] == '\\';
        if (continues) {
            lines->line[lines->bytes - 1] = '\n';
        }
        TRY(append_line(input));
        *found = true;
    }
    return STATUS_OK;
}

static status run_conversation(struct chat *c)
{
    bool is_terminal = isatty(STDIN_FILENO) != 0, quit = false;
    struct message_input input = {0};
    TRY(line_reader_open(NULL, &input.lines));
    status result = reset_conversation(c);
    log_info("chat template: %s", chat_name(c->template));
    log_text("%s", HELP);
    while (result == STATUS_OK && !quit) {
        bool found = false;
        result = read_message(&input, is_terminal, &found);
        if (result != STATUS_OK || !found) {
            break;
        }
        const char *text = input.text.bytes;
        if (text[strspn(text, " \t\n")] != '\0') {
            result = process_line(c, input.text.bytes, &quit);
        }
    }
    line_reader_close(&input.lines);
    text_buffer_free(&input.text);
    drop_messages(c, 0, c->count);
    free(c->messages);
    return result == STATUS_OK && !is_terminal ? c->failure : result;
}

static status open_template(struct chat *c, const struct request *q)
{
    TRY(weights_require_tokenizer(&c->session, q->checkpoint, "chat"));
    return chat_open(c->session.tokenizer_dir, c->session.tokenizer, &c->template);
}

/* Sets the start token and the limits of an encoder-decoder. The output streams, so there are no
 * beams. */
static status complete_options(struct chat *c)
{
    const struct session *s = &c->session;
    const struct model_config *config = model_get_config(s->model);
    struct source_text source = {0};
    c->has_source = recipe_architecture_has_decoder(s->recipe.model.architecture);
    const struct generation_context context = {
        .vocabulary = config->vocabulary,
        .positions = config->positions,
        .end_token = s->tokenizer != NULL ? tokenizer_eos(s->tokenizer) : -1,
        .max_new_tokens = c->options.max_new_tokens,
        .temperature = c->options.sampler.temperature,
    };
    c->options.decoder_start = derive_decoder_start(&s->recipe, s->tokenizer);
    c->options.whole_text = c->has_source;
    TRY(generation_config_complete(c->has_source ? s->tokenizer_dir : NULL, &context, &c->options));
    return c->has_source ? source_text_resolve(s->tokenizer, &source, &c->options) : STATUS_OK;
}

static status run_chat(struct request *q)
{
    struct comm *world = NULL;
    struct chat c = {.request = q, .options = q->options};
    c.options.sampler.seed = (uint64_t)q->seed;
    c.options.num_beams = 1;
    TRY(comm_self_create(&world));
    status result = weights_open_checkpoint(&c.session, world, q->checkpoint, q->overrides.items,
                                            q->overrides.count, 256);
    if (result == STATUS_OK) {
        result = weights_require_generator(&c.session, q->checkpoint);
    }
    if (result == STATUS_OK) {
        result = open_template(&c, q);
    }
    if (result == STATUS_OK) {
        result = complete_options(&c);
    }
    if (result == STATUS_OK) {
        result = run_conversation(&c);
    }
    chat_close(&c.template);
    KEEP_FIRST(result, session_stop(&c.session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_chat(int argc, char **argv)
{
    struct request q = {.options = generation_config_unset()};
    struct generate_options *o = &q.options;
    bool help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q.checkpoint, "DIR", OPTION_REQUIRED,
         "run folder, checkpoints/ folder, one checkpoint or final/; its tokenizer needs a chat "
         "template"},
        {"system", OPTION_TEXT, &q.system, "TEXT", NULL, "text of the system message"},
        {"max-new-tokens", OPTION_INTEGER, &o->max_new_tokens, "N", "256",
         "maximum number of tokens of a response", .min = 1, .max = GENERATE_TOKENS_MAX},
        {"temperature", OPTION_NUMBER, &o->sampler.temperature, "T", "0.7",
         "sampling temperature; 0: always take the most probable token", .min = 0,
         .max = GENERATE_TEMPERATURE_MAX},
        {"top-k", OPTION_INTEGER, &o->sampler.top_k, "K", "0",
         "sample from the K most probable tokens; 0: all", .min = 0, .max = 1e9},
        {"top-p", OPTION_NUMBER, &o->sampler.top_p, "P", "1",
         "sample from the most probable tokens with a total probability of P",
         .min = GENERATE_TOP_P_MIN, .max = 1},
        {"repetition-penalty", OPTION_NUMBER, &o->sampler.repetition_penalty, "R", "1",
         "a value above 1 makes tokens that already occurred less probable",
         .min = GENERATE_REPETITION_PENALTY_MIN, .max = GENERATE_REPETITION_PENALTY_MAX},
        {"seed", OPTION_INTEGER, &q.seed, "S", "0", "seed of the random numbers", .min = 0,
         .max = 9e15},
        {"set", OPTION_LIST, &q.overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe, e.g. train.precision=fp32"},
    };
    struct options options = {
        .usage = "bireme chat --checkpoint DIR [options]",
        .description =
            "Reads messages from standard input, one per line, and prints the response of the "
            "model to each. The prompt of a response is the whole conversation. If the input is "
            "not a terminal, the exit code is the code of the first message without a "
            "response.\n\n" HELP,
        .table = table,
        .count = COUNT(table),
        .examples = "bireme chat --checkpoint runs/mine_sft\n"
                    "bireme chat --checkpoint runs/mine_sft \\\n"
                    "    --system 'Answer in one sentence.' --temperature 0"};
    TRY(options_parse(&options, argc, argv, &help));
    status result = help ? STATUS_OK : run_chat(&q);
    free(q.overrides.items);
    return result;
}
