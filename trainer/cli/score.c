/* bireme score: prints the log-probability of each line of a file. With a reward model, it prints
 * the reward of each line or conversation. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/inference/token_text.h"
#include "trainer/setup/session.h"

struct request {
    struct batch_query_request shared;
    const char *start_token;
    bool tokens, chat;
};

struct score_state {
    struct session session;
    struct token_list ids;     /* of the current line */
    double *log_probabilities; /* of its scored tokens */
    bool only_bos;             /* the end-of-text token does not stand for a missing BOS */
    bool prints_tokens;
    bool json;
    bool is_reward_model;
    struct chat_template *template; /* NULL: not needed, or the tokenizer has none */
    bool warned;                    /* about a special token in a line */
};

static status check_length(const struct session *s, const struct token_list *ids)
{
    REQUIRE(ids->count > 0, STATUS_DATA, "the text is empty, so it has no reward");
    return model_require_positions(model_get_config(s->model), "the text", ids->count, 0,
                                   STATUS_DATA);
}

/* Encodes a line as a prompt with its response. The end-of-text token ends it, as in training. */
static status encode_response(const struct session *s, const char *text, size_t bytes,
                              struct token_list *ids)
{
    ids->count = 0;
    TRY(tokenizer_encode(s->tokenizer, text, bytes, false, ids));
    if (tokenizer_eos(s->tokenizer) >= 0) {
        TRY(token_list_add(ids, tokenizer_eos(s->tokenizer)));
    }
    return check_length(s, ids);
}

/* Prints the reward of state->ids. */
static status print_reward(struct score_state *state)
{
    const struct session *s = &state->session;
    double reward = 0;
    struct log_likelihood_item item = {.ids = state->ids.ids, .count = state->ids.count};
    TRY(log_likelihood_reward(s->kernels, s->model, &item, &reward));
    if (!state->json) {
        printf("%.6f\t%" PRId64 "\n", reward, item.count);
        return STATUS_OK;
    }
    return json_output_print(
        json_pack("{s:f, s:I}", "reward", reward, "tokens", (json_int_t)item.count));
}

/* ---- conversations ---- */

static status encode_conversation(struct score_state *state, const struct chat_message *messages,
                                  int64_t count)
{
    struct chat_text text = {0};
    const struct session *s = &state->session;
    status result =
        chat_encode(state->template, s->tokenizer, messages, count, (struct chat_frame){0}, &text);
    state->ids.count = 0;
    for (int64_t i = 0; i < text.ids.count && result == STATUS_OK; i++) {
        result = token_list_add(&state->ids, text.ids.ids[i]);
    }
    chat_text_free(&text);
    return result;
}

/* Prints the reward of a row with messages. The messages are encoded as in the pairs of `bireme
 * prepare`, so no end-of-text token follows the template. */
static status visit_conversation(void *user, struct jsonl_row *row)
{
    struct score_state *state = user;
    struct chat_message *messages = NULL;
    int64_t count = 0;
    const json_t *value = json_object_get(row->value, "messages");
    TRY(value != NULL ? STATUS_OK : columns_raise_missing(row->value, "messages"));
    TRY(chat_messages_read(value, "messages", &messages, &count));
    status result = encode_conversation(state, messages, count);
    free(messages);
    TRY(result);
    TRY(check_length(&state->session, &state->ids));
    return print_reward(state);
}

/* Warns if a line contains the end-of-turn token of the chat template. It is encoded as text. */
static status warn_template(struct score_state *state, const char *line)
{
    char *text = NULL;
    size_t bytes = 0;
    if (state->template == NULL || state->warned) {
        return STATUS_OK;
    }
    int32_t id = chat_end_of_turn(state->template);
    TRY(tokenizer_decode(state->session.tokenizer, &id, 1, false, &text, &bytes));
    if (bytes > 0 && strstr(line, text) != NULL) {
        state->warned = true;
        log_warning("PLAIN-TEXT",
                    "a line contains %s, which is encoded as plain text; --chat reads rows with "
                    "the field messages and applies the chat template",
                    text);
    }
    free(text);
    return STATUS_OK;
}

/* ---- lines ---- */

/* Encodes a line after its start token, as lm-evaluation-harness does by default. The first token
 * can only be scored after another token. */
static status encode_line(struct score_state *state, const char *text, size_t bytes)
{
    const struct tokenizer *t = state->session.tokenizer;
    struct token_list *ids = &state->ids;
    int64_t positions = model_get_config(state->session.model)->positions;
    ids->count = 0;
    TRY(tokenizer_append_bos(t, ids));
    if (ids->count == 0 && !state->only_bos && tokenizer_eos(t) >= 0) {
        TRY(token_list_add(ids, tokenizer_eos(t)));
    }
    TRY(tokenizer_encode(t, text, bytes, false, ids));
    REQUIRE(ids->count - 1 <= positions, STATUS_DATA,
            "the line has %" PRId64 " tokens to score, but the model has %" PRId64
            " positions; split it",
            ids->count - 1, positions);
    return STATUS_OK;
}

/* Returns an array with id, text and log-probability of each scored token. */
static status build_tokens(const struct score_state *state, int64_t count, json_t **out)
{
    const int32_t *ids = state->ids.ids + (state->ids.count - count);
    *out = json_array();
    for (int64_t i = 0; i < count; i++) {
        char *text = NULL;
        TRY(token_text_describe(state->session.tokenizer, ids[i], &text));
        json_array_append_new(*out, json_pack("{s:i, s:s, s:f}", "id", (int)ids[i], "token", text,
                                              "log_probability", state->log_probabilities[i]));
        free(text);
    }
    return STATUS_OK;
}

static status print_json(const struct score_state *state, const struct log_likelihood_result *r)
{
    json_t *mean = r->tokens > 0 ? json_real(r->log_probability / (double)r->tokens) : json_null();
    json_t *tokens = NULL;
    json_t *line = json_pack("{s:f, s:I, s:o}", "log_probability", r->log_probability, "tokens",
                             (json_int_t)r->tokens, "mean", mean);
    status result = state->prints_tokens ? build_tokens(state, r->tokens, &tokens) : STATUS_OK;
    if (tokens != NULL) {
        json_object_set_new(line, "token_scores", tokens);
    }
    if (result != STATUS_OK) {
        json_decref(line);
        return result;
    }
    return json_output_print(line);
}

static status print_score(const struct score_state *state, const struct log_likelihood_result *r)
{
    const int32_t *ids = state->ids.ids + (state->ids.count - r->tokens);
    printf("%.6f\t%" PRId64 "\n", r->log_probability, r->tokens);
    for (int64_t i = 0; state->prints_tokens && i < r->tokens; i++) {
        char *text = NULL;
        TRY(token_text_quote(state->session.tokenizer, ids[i], &text));
        printf("\t%.6f\t%d\t%s\n", state->log_probabilities[i], ids[i], text);
        free(text);
    }
    return STATUS_OK;
}

/* Prints the score of a line. An empty line has 0 tokens and the log-probability 0. */
static status visit_text(void *user, const char *text, size_t bytes, const char *second)
{
    (void)second;
    struct score_state *state = user;
    const struct session *s = &state->session;
    struct token_list *ids = &state->ids;
    struct log_likelihood_result r = {0};
    if (state->is_reward_model) {
        TRY(warn_template(state, text));
        TRY(encode_response(s, text, bytes, ids));
        return print_reward(state);
    }
    TRY(encode_line(state, text, bytes));
    if (ids->count >= 2) {
        struct log_likelihood_item item = {ids->ids, ids->count, ids->count - 1,
                                           state->log_probabilities};
        TRY(log_likelihood_run(s->kernels, s->model, s->recipe.model.max_position_embeddings, &item,
                               1, &r));
    }
    return state->json ? print_json(state, &r) : print_score(state, &r);
}

/* Opens the chat template of a reward model, if it exists. With --chat, it must exist. */
static status open_template(struct score_state *state, bool chat)
{
    const struct session *s = &state->session;
    char path[FILE_PATH_BYTES];
    REQUIRE(!chat || state->is_reward_model, STATUS_USAGE,
            "--chat: only a reward model scores conversations; omit --chat to score lines");
    if (chat) {
        return chat_open(s->tokenizer_dir, s->tokenizer, &state->template);
    }
    TRY(file_join(path, s->tokenizer_dir, CHAT_FILE));
    if (state->is_reward_model && file_exists(path) &&
        chat_open(s->tokenizer_dir, s->tokenizer, &state->template) != STATUS_OK) {
        status_clear(); /* only a warning needs the template */
        state->template = NULL;
    }
    return STATUS_OK;
}

static status open_model(struct score_state *state, struct comm *world,
                         const struct batch_query_request *q)
{
    struct session *s = &state->session;
    TRY(weights_open_checkpoint(s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                0));
    state->is_reward_model = s->recipe.objective == OBJECTIVE_REWARD;
    TRY(state->is_reward_model ? STATUS_OK : weights_require_causal(s, q->checkpoint));
    TRY(weights_require_tokenizer(s, q->checkpoint, "score"));
    TRY(open_template(state, ((const struct request *)q)->chat));
    REQUIRE(!state->prints_tokens || !state->is_reward_model, STATUS_USAGE,
            "--tokens: a reward model has one reward for the whole line; remove --tokens");
    REQUIRE(!state->only_bos || !state->is_reward_model, STATUS_USAGE,
            "--start-token bos: a reward model scores whole texts; remove --start-token");
    return ALLOCATE(state->log_probabilities, model_get_config(s->model)->positions,
                    "the scores of a line");
}

static status read_texts(struct score_state *state, const struct request *r)
{
    const struct batch_query_request *q = &r->shared;
    const struct text_lines source = {.path = q->path, .columns = q->columns, .field = "text"};
    return r->chat ? text_lines_read_rows(q->path, q->columns, visit_conversation, state)
                   : text_lines_read(&source, visit_text, state);
}

static status run_score(const struct batch_query_request *q)
{
    struct comm *world = NULL;
    const struct request *request = (const struct request *)q;
    struct score_state state = {.json = q->json,
                                .prints_tokens = request->tokens,
                                .only_bos = strcmp(request->start_token, "bos") == 0};
    TRY(comm_self_create(&world));
    status result = open_model(&state, world, q);
    if (result == STATUS_OK) {
        result = read_texts(&state, request);
    }
    chat_close(&state.template);
    token_list_free(&state.ids);
    free(state.log_probabilities);
    KEEP_FIRST(result, session_stop(&state.session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_score(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        BATCH_QUERY_COLUMNS(&q.shared, "text, or messages with --chat"),
        {"chat", OPTION_FLAG, &q.chat, NULL, NULL,
         "reward model: read JSON Lines with the field messages instead of lines, and apply the "
         "chat template of the tokenizer"},
        {"start-token", OPTION_CHOICE, &q.start_token, "KIND", "bos_or_eos",
         "token before each line. bos: the beginning-of-text token, if the post-processor of the "
         "tokenizer adds one, and otherwise none. bos_or_eos: the end-of-text token takes the "
         "place of a missing beginning-of-text token",
         .choices = "bos_or_eos|bos"},
        {"tokens", OPTION_FLAG, &q.tokens, NULL, NULL,
         "after each line, also print a line for each scored token: a tab, log-probability, id and "
         "text"},
    };
    struct options options = {
        .usage = "bireme score --checkpoint DIR [FILE] [options]",
        .description = "Prints the natural log-probability and the number of scored tokens of each "
                       "line of FILE or of standard input; 0 and 0 for an empty line. The line is "
                       "scored as the text that follows the start token, as in "
                       "lm-evaluation-harness: the beginning-of-text token if the tokenizer adds "
                       "one, otherwise the end-of-text token. If there is no start token, the "
                       "first token of the line is not scored. A line with more tokens than the "
                       "model has positions is an error.\n\n"
                       "With a reward model, each line is a prompt with its response. If the model "
                       "was trained on messages, use --chat. Prints the reward and the number of "
                       "tokens.",
        .table = table,
        .count = COUNT(table),
        .examples = "echo 'the License' |\n"
                    "    bireme score --checkpoint runs/mine --tokens\n"
                    "bireme score --checkpoint runs/mine_reward --chat \\\n"
                    "    conversations.jsonl",
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_score);
}
