/* bireme score: the log-probability of each line of a file, or its reward by a reward model. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/setup/session.h"
#include "trainer/weights/open.h"

struct score_state {
    struct session session;
    struct token_list ids; /* of the current line */
    bool json;
    bool is_reward_model;
};

/* Encodes a line as a prompt with its response. It ends with the end-of-text token, as in
 * training. */
static status encode_response(const struct session *s, const char *text, size_t bytes,
                              struct token_list *ids)
{
    int64_t positions = model_get_config(s->model)->positions;
    ids->count = 0;
    TRY(tokenizer_encode(s->tokenizer, text, bytes, false, ids));
    if (tokenizer_eos(s->tokenizer) >= 0) {
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = tokenizer_eos(s->tokenizer);
    }
    REQUIRE(ids->count > 0, STATUS_DATA, "the line is empty, so it has no reward");
    REQUIRE(ids->count <= positions, STATUS_DATA,
            "the line has %" PRId64 " tokens, but the model has %" PRId64 " positions; shorten it",
            ids->count, positions);
    return STATUS_OK;
}

static status print_reward(struct score_state *state, const char *text, size_t bytes)
{
    const struct session *s = &state->session;
    double reward = 0;
    TRY(encode_response(s, text, bytes, &state->ids));
    struct log_likelihood_item item = {.ids = state->ids.ids, .count = state->ids.count};
    TRY(log_likelihood_reward(s->kernels, s->model, &item, &reward));
    if (!state->json) {
        printf("%.6f\t%" PRId64 "\n", reward, item.count);
        return STATUS_OK;
    }
    return json_output_print(
        json_pack("{s:f, s:I}", "reward", reward, "tokens", (json_int_t)item.count));
}

static status encode_line(const struct session *s, const char *text, size_t bytes,
                          struct token_list *ids)
{
    const struct tokenizer *t = s->tokenizer;
    int64_t positions = model_get_config(s->model)->positions;
    ids->count = 0;
    TRY(tokenizer_append_bos(t, ids));
    /* The first token can only be scored after another token. */
    if (ids->count == 0 && tokenizer_eos(t) >= 0) {
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = tokenizer_eos(t);
    }
    TRY(tokenizer_encode(t, text, bytes, false, ids));
    REQUIRE(ids->count - 1 <= positions, STATUS_DATA,
            "the line has %" PRId64 " tokens to score, but the model has %" PRId64
            " positions; split it",
            ids->count - 1, positions);
    return STATUS_OK;
}

static status print_score(bool json, const struct log_likelihood_result *r)
{
    if (!json) {
        printf("%.6f\t%" PRId64 "\n", r->log_probability, r->tokens);
        return STATUS_OK;
    }
    json_t *mean = r->tokens > 0 ? json_real(r->log_probability / (double)r->tokens) : json_null();
    return json_output_print(json_pack("{s:f, s:I, s:o}", "log_probability", r->log_probability,
                                       "tokens", (json_int_t)r->tokens, "mean", mean));
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
        return print_reward(state, text, bytes);
    }
    TRY(encode_line(s, text, bytes, ids));
    if (ids->count >= 2) {
        struct log_likelihood_item item = {ids->ids, ids->count, ids->count - 1};
        TRY(log_likelihood_run(s->kernels, s->model, s->recipe.model.max_position_embeddings, &item,
                               1, &r));
    }
    return print_score(state->json, &r);
}

static status open_model(struct score_state *state, struct comm *world,
                         const struct batch_query_request *q)
{
    struct session *s = &state->session;
    TRY(weights_open_checkpoint(s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                0));
    state->is_reward_model = s->recipe.objective == OBJECTIVE_REWARD;
    TRY(state->is_reward_model ? STATUS_OK : weights_require_causal(s, q->checkpoint));
    REQUIRE(s->tokenizer != NULL, STATUS_DATA, "%s contains no tokenizer, but score needs one",
            q->checkpoint);
    return STATUS_OK;
}

static status run_score(const struct batch_query_request *q)
{
    struct comm *world = NULL;
    struct score_state state = {.json = q->json};
    TRY(comm_self_create(&world));
    status result = open_model(&state, world, q);
    if (result == STATUS_OK) {
        const struct text_lines source = {.path = q->path, .columns = q->columns, .field = "text"};
        result = text_lines_read(&source, visit_text, &state);
    }
    token_list_free(&state.ids);
    KEEP_FIRST(result, session_stop(&state.session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_score(int argc, char **argv)
{
    struct batch_query_request q = {0};
    const struct option table[] = {BATCH_QUERY_COLUMNS(&q, "text")};
    struct options options = {
        .usage = "bireme score --checkpoint DIR [FILE] [options]",
        .description = "Prints the natural log-probability and the number of scored tokens of each "
                       "line of FILE or of standard input; 0 and 0 for an empty line. If the "
                       "tokenizer has an end-of-text token, the line is scored as the text that "
                       "follows it. Otherwise the first token of the line is not scored. "
                       "A line with more tokens than the model has positions is an error.\n\n"
                       "With a reward model, each line is a prompt with its response. Prints the "
                       "reward and the number of tokens.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q, run_score);
}
