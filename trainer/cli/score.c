/* bireme score: the log-probability of each line of a text, or what a reward model says of it. */
#include <stdio.h>
#include <string.h>

#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/line_reader.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/setup/session.h"

struct scoring {
    struct session session;
    struct token_list ids; /* of a line */
    bool json;
    bool rewards; /* the checkpoint is a reward model */
};

/* A line as an answer behind its prompt: it ends with the end-of-text token, as those that were learnt do. */
static status encode_answer(const struct session *s, const char *text, size_t bytes,
                            struct token_list *ids)
{
    int64_t positions = model_config_of(s->model)->positions;
    ids->count = 0;
    TRY(tokenizer_encode(s->tokenizer, text, bytes, false, ids));
    if (tokenizer_eos(s->tokenizer) >= 0) {
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = tokenizer_eos(s->tokenizer);
    }
    REQUIRE(ids->count > 0, STATUS_DATA, "an empty line has no reward");
    REQUIRE(ids->count <= positions, STATUS_DATA, "%lld tokens, the model has %lld positions",
            (long long)ids->count, (long long)positions);
    return STATUS_OK;
}

static status reward_line(struct scoring *c, const char *text, size_t bytes)
{
    const struct session *s = &c->session;
    double reward = 0;
    TRY(encode_answer(s, text, bytes, &c->ids));
    struct score_item item = {.ids = c->ids.ids, .count = c->ids.count};
    TRY(score_reward(s->kernels, s->model, &item, &reward));
    if (!c->json) {
        printf("%.6f\t%lld\n", reward, (long long)item.count);
        return STATUS_OK;
    }
    return report_print(
        json_pack("{s:f, s:I}", "reward", reward, "tokens", (json_int_t)item.count));
}

static status encode_line(const struct session *s, const char *text, size_t bytes,
                          struct token_list *ids)
{
    const struct tokenizer *t = s->tokenizer;
    int64_t positions = model_config_of(s->model)->positions;
    ids->count = 0;
    TRY(tokenizer_put_begin(t, ids));
    if (ids->count == 0 && tokenizer_eos(t) >= 0) { /* so that the first token is scored too */
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = tokenizer_eos(t);
    }
    TRY(tokenizer_encode(t, text, bytes, false, ids));
    REQUIRE(ids->count - 1 <= positions, STATUS_DATA,
            "%lld tokens to score, the model has %lld positions: cut the line in pieces",
            (long long)ids->count - 1, (long long)positions);
    return STATUS_OK;
}

static status print_score(bool json, const struct score_result *r)
{
    if (!json) {
        printf("%.6f\t%lld\n", r->log_probability, (long long)r->tokens);
        return STATUS_OK;
    }
    json_t *mean = r->tokens > 0 ? json_real(r->log_probability / (double)r->tokens) : json_null();
    return report_print(json_pack("{s:f, s:I, s:o}", "log_probability", r->log_probability,
                                  "tokens", (json_int_t)r->tokens, "mean", mean));
}

/* Each line gets one, also an empty one: no tokens, and a log-probability of 0. */
static status score_line(void *user, const char *text, size_t bytes)
{
    struct scoring *c = user;
    const struct session *s = &c->session;
    struct token_list *ids = &c->ids;
    struct score_result r = {0};
    if (c->rewards) {
        return reward_line(c, text, bytes);
    }
    TRY(encode_line(s, text, bytes, ids));
    if (ids->count >= 2) {
        struct score_item item = {ids->ids, ids->count, ids->count - 1};
        TRY(score_run(s->kernels, s->model, s->recipe.model.max_position_embeddings, &item, 1, &r));
    }
    return print_score(c->json, &r);
}

static status open_model(struct scoring *c, struct comm *world, const struct asking_request *q)
{
    struct session *s = &c->session;
    TRY(session_open_checkpoint(s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                0));
    c->rewards = strcmp(s->recipe.objective, "reward") == 0;
    TRY(c->rewards ? STATUS_OK : session_require_causal(s, q->checkpoint));
    REQUIRE(s->tokenizer != NULL, STATUS_DATA, "%s holds no tokenizer", q->checkpoint);
    return STATUS_OK;
}

static status run(const struct asking_request *q)
{
    struct comm *world = NULL;
    struct scoring c = {.json = q->json};
    TRY(comm_self_create(&world));
    status result = open_model(&c, world, q);
    if (result == STATUS_OK) {
        result = lines_read(q->path, score_line, &c);
    }
    token_list_free(&c.ids);
    KEEP_FIRST(result, session_stop(&c.session));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_score(int argc, char **argv)
{
    struct asking_request q = {0};
    struct options options = {
        .usage = "bireme score --checkpoint DIR [FILE]",
        .about = "Prints the natural log-probability of each line and its number of tokens: a line "
                 "for each line, 0 and\n0 for an empty one. A line with more tokens than the model "
                 "has positions is an error.\n"
                 "Where the tokenizer has an end-of-text token, a line is scored as what follows "
                 "it.\nOf a reward model: each line's reward, a prompt with its answer, and its "
                 "number of tokens.",
        .operand = "FILE",
        .operands_most = 1,
    };
    return asking_command(&options, false, argc, argv, &q, run);
}
