/* Completions and chat: sequences of the engine, and their output as JSON or as a stream.
 *
 * A beam search has its own cache. It advances by one token each time the job is updated, between
 * two passes of the engine. The first of the n choices of a prompt owns it. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text_buffer.h"
#include "trainer/inference/beam_search.h"
#include "trainer/inference/server/server_impl.h"
#include "trainer/inference/server/token_json_impl.h"
#include "trainer/logging/json_text.h"

/* One choice of an answer: a sequence of the engine. */
struct completion {
    struct server *server;
    struct server_job *job;
    struct generate_options options;
    int32_t end_token;
    int64_t index, prompt;       /* of the choice; of its prompt */
    int64_t slot;                /* of the engine; -1: not started, or removed */
    struct beam_search *search;  /* NULL: none, or it has ended */
    bool is_begun;               /* part of it is in the stream */
    bool has_content;            /* has text other than white space */
    struct text_buffer text;     /* new text that is not sent yet */
    struct engine_token *tokens; /* those with log-probabilities that are not sent yet */
    int64_t token_count, token_capacity;
    int64_t text_offset; /* characters before the first of these tokens */
    const char *finish_reason;
};

static bool is_chat(const struct server_job *job)
{
    return job->request.kind == REQUEST_CHAT;
}

/* ---- set-up ---- */

status server_encode_prompt(struct server *s, const struct request_prompt *prompt,
                            struct token_list *out)
{
    int64_t vocabulary = model_source_vocabulary(model_get_config(s->session.model));
    if (prompt->text != NULL) {
        REQUIRE(strlen(prompt->text) == prompt->bytes, STATUS_DATA,
                "the text contains a NUL character");
        const struct text text = {prompt->text, prompt->bytes};
        return s->has_source ? source_text_encode(s->session.tokenizer, &s->source, &text, out)
                             : generate_encode_prompt(s->session.tokenizer, prompt->text, out);
    }
    TRY(token_list_reserve(out, prompt->ids.count));
    for (int64_t i = 0; i < prompt->ids.count; i++) {
        REQUIRE(prompt->ids.ids[i] < vocabulary, STATUS_DATA,
                "token id %" PRId32 " is outside the vocabulary of %" PRId64, prompt->ids.ids[i],
                vocabulary);
        out->ids[out->count++] = prompt->ids.ids[i];
    }
    return STATUS_OK;
}

static status encode_messages(struct server *s, struct server_job *job)
{
    return chat_encode_prompt(s->template, s->session.tokenizer, job->request.messages,
                              job->request.message_count, s->has_source, &job->prompts[0]);
}

static status check_sources(const struct server *s, const struct server_job *job, const char **code)
{
    for (int64_t i = 0; i < job->prompt_count; i++) {
        int64_t count = job->prompts[i].count;
        REQUIRE(count > 0, STATUS_DATA, "the prompt, which is the source, has no tokens");
        *code = count <= s->max_tokens ? *code : "context_length_exceeded";
        REQUIRE(count <= s->max_tokens, STATUS_DATA,
                "the prompt has %" PRId64 " tokens; a source can have %" PRId64
                "; shorten the prompt",
                count, s->max_tokens);
    }
    return STATUS_OK;
}

static status check_length(const struct server *s, const struct server_job *job, const char **code)
{
    for (int64_t i = 0; i < job->prompt_count; i++) {
        int64_t count = job->prompts[i].count;
        bool fits =
            count < s->max_tokens || (count == s->max_tokens && job->request.max_tokens == 0);
        *code = fits ? *code : "context_length_exceeded";
        REQUIRE(fits, STATUS_DATA,
                "the prompt has %" PRId64 " tokens and leaves no room for a new one: a sequence "
                "can have %" PRId64 " tokens; shorten the prompt",
                count, s->max_tokens);
    }
    return STATUS_OK;
}

static status choose_seed(struct request *q)
{
    if (!q->has_seed) {
        REQUIRE(getentropy(&q->options.sampler.seed, sizeof q->options.sampler.seed) == 0,
                STATUS_INTERNAL, "cannot read random numbers for a seed: %s", strerror(errno));
    }
    return STATUS_OK;
}

static bool has_beams(const struct server_job *job)
{
    return job->request.options.num_beams > 1;
}

/* Sets the options that only a beam search has. The defaults of an encoder-decoder are those
 * of its generation_config.json. */
static void set_beam_options(const struct server *s, struct completion *c)
{
    const struct server_job *job = c->job;
    struct generate_options *o = &c->options;
    int64_t room = s->max_tokens - (s->has_source ? 1 : job->prompts[c->prompt].count);
    o->max_new_tokens = number_min(o->max_new_tokens, room);
    if (isnan(o->length_penalty)) {
        o->length_penalty = s->has_source ? s->defaults.length_penalty : 1;
    }
    if (!job->request.has_early_stopping) {
        o->early_stopping = s->has_source && s->defaults.early_stopping;
    }
}

static status make_completions(struct server *s, struct server_job *job)
{
    const struct request *q = &job->request;
    job->completion_count = job->prompt_count * q->n;
    TRY(ALLOCATE(job->completions, job->completion_count, "choices"));
    for (int64_t i = 0; i < job->completion_count; i++) {
        struct completion *c = &job->completions[i];
        *c = (struct completion){.server = s,
                                 .job = job,
                                 .options = q->options,
                                 .index = i,
                                 .prompt = i / q->n,
                                 .slot = -1};
        c->options.max_new_tokens = q->max_tokens >= 0 ? q->max_tokens : s->max_tokens;
        if (s->has_source) {
            c->options.decoder_start = s->defaults.decoder_start;
            c->options.constraints = s->defaults.constraints;
            c->options.whole_text = true;
        }
        if (is_chat(job) && !s->has_source) { /* a target has the end token */
            c->end_token = chat_end_of_turn(s->template);
            c->options.end_token = &c->end_token;
        }
        if (has_beams(job)) {
            set_beam_options(s, c);
        }
    }
    return STATUS_OK;
}

static status check_beams(const struct server *s, const struct request *q)
{
    REQUIRE(q->options.num_beams <= s->options->max_num_seqs || q->options.num_beams == 1,
            STATUS_DATA,
            "%" PRId64 " beams are too many; the server runs at most %" PRId64 " (--max-num-seqs)",
            q->options.num_beams, s->options->max_num_seqs);
    return STATUS_OK;
}

status completion_prepare(struct server *s, struct server_job *job, const char **code)
{
    struct request *q = &job->request;
    *code = "unsupported_model";
    REQUIRE(s->engine != NULL, STATUS_DATA,
            "this model does not generate text; /v1/models lists what it can answer");
    REQUIRE(!s->has_source || !q->echo, STATUS_DATA,
            "echo: the text of an encoder-decoder does not continue its prompt");
    REQUIRE(!is_chat(job) || s->template != NULL, STATUS_DATA,
            "the tokenizer of this model has no chat template; use /v1/completions");
    *code = NULL;
    TRY(check_beams(s, q));
    int64_t prompts = is_chat(job) ? 1 : q->prompt_count;
    REQUIRE(prompts * q->n <= REQUEST_PROMPTS_MAX, STATUS_DATA,
            "the request has %" PRId64 " choices; at most %d are allowed", prompts * q->n,
            REQUEST_PROMPTS_MAX);
    TRY(ALLOCATE(job->prompts, prompts, "prompts"));
    job->prompt_count = prompts;
    if (is_chat(job)) {
        TRY(encode_messages(s, job));
    }
    for (int64_t i = 0; !is_chat(job) && i < prompts; i++) {
        TRY(server_encode_prompt(s, &q->prompts[i], &job->prompts[i]));
    }
    TRY(s->has_source ? check_sources(s, job, code) : check_length(s, job, code));
    for (int64_t i = 0; i < prompts; i++) {
        job->prompt_tokens += job->prompts[i].count;
    }
    TRY(choose_seed(q));
    return make_completions(s, job);
}

void completion_destroy(struct server_job *job)
{
    for (int64_t i = 0; i < job->completion_count; i++) {
        text_buffer_free(&job->completions[i].text);
        free(job->completions[i].tokens);
    }
    free(job->completions);
    job->completions = NULL;
}

/* ---- output ---- */

static json_t *make_envelope(const struct server *s, const struct server_job *job,
                             const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:o}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created, "model", server_model_json(s, job), "choices",
                     choices);
}

static json_t *make_usage(const struct server_job *job)
{
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)job->prompt_tokens,
                     "completion_tokens", (json_int_t)job->completion_tokens, "total_tokens",
                     (json_int_t)(job->prompt_tokens + job->completion_tokens));
}

/* Takes the log-probabilities that are not sent yet. Returns null if they were not requested. */
static json_t *take_log_probabilities(struct completion *c)
{
    const struct tokenizer *t = tokenizer_target(c->server->session.tokenizer);
    if (c->job->request.top_logprobs < 0) {
        return json_null();
    }
    json_t *value = is_chat(c->job)
                        ? token_json_chat(t, c->tokens, c->token_count)
                        : token_json_completion(t, c->tokens, c->token_count, &c->text_offset);
    c->token_count = 0;
    return value;
}

/* Takes the text that is not sent yet. */
static json_t *take_text(struct completion *c)
{
    json_t *text = json_text_create(c->text.count > 0 ? c->text.bytes : "", c->text.count);
    c->text.count = 0;
    return text;
}

static json_t *make_finish_reason(const struct completion *c)
{
    return c->finish_reason != NULL ? json_string(c->finish_reason) : json_null();
}

/* Returns a choice of a complete answer. */
static json_t *make_choice(struct completion *c)
{
    json_t *text = take_text(c), *log_probabilities = take_log_probabilities(c);
    if (is_chat(c->job)) {
        return json_pack("{s:I, s:{s:s, s:o}, s:o, s:o}", "index", (json_int_t)c->index, "message",
                         "role", "assistant", "content", text, "logprobs", log_probabilities,
                         "finish_reason", make_finish_reason(c));
    }
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)c->index, "text", text,
                     "logprobs", log_probabilities, "finish_reason", make_finish_reason(c));
}

/* Returns a choice of an event of a stream. */
static json_t *make_chunk_choice(struct completion *c)
{
    if (!is_chat(c->job)) {
        return make_choice(c);
    }
    json_t *delta = json_object();
    if (!c->is_begun) {
        json_object_set_new(delta, "role", json_string("assistant"));
    }
    if (!c->is_begun || c->text.count > 0) {
        json_object_set_new(delta, "content", take_text(c));
    }
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)c->index, "delta", delta,
                     "logprobs", take_log_probabilities(c), "finish_reason", make_finish_reason(c));
}

static void send_chunk(struct completion *c)
{
    const char *object = is_chat(c->job) ? "chat.completion.chunk" : "text_completion";
    json_t *choice = make_chunk_choice(c);
    c->is_begun = true;
    server_job_write_json(c->job,
                          make_envelope(c->server, c->job, object, json_pack("[o]", choice)));
}

/* Sends the whole answer, or the end of a stream. */
static void send_end(const struct server *s, struct server_job *job)
{
    if (!job->request.stream) {
        const char *object = is_chat(job) ? "chat.completion" : "text_completion";
        json_t *choices = json_array();
        for (int64_t i = 0; i < job->completion_count; i++) {
            json_array_append_new(choices, make_choice(&job->completions[i]));
        }
        json_t *answer = make_envelope(s, job, object, choices);
        json_object_set_new(answer, "usage", make_usage(job));
        server_job_write_json(job, answer);
        return;
    }
    if (job->request.has_stream_usage) {
        const char *object = is_chat(job) ? "chat.completion.chunk" : "text_completion";
        json_t *last = make_envelope(s, job, object, json_array());
        json_object_set_new(last, "usage", make_usage(job));
        server_job_write_json(job, last);
    }
    server_job_write(job, "data: [DONE]\n\n", 14);
}

/* ---- input from the engine ---- */

static status append_token(struct completion *c, const struct engine_token *token)
{
    TRY(RESERVE(c->tokens, c->token_capacity, c->token_count + 1, "tokens"));
    c->tokens[c->token_count++] = *token;
    return STATUS_OK;
}

static int32_t get_end_token(const struct completion *c)
{
    return c->options.end_token != NULL
               ? *c->options.end_token
               : tokenizer_eos(tokenizer_target(c->server->session.tokenizer));
}

static void count_tokens(struct completion *c, int64_t count)
{
    struct server_metrics *metrics = &c->server->metrics;
    struct server_job *job = c->job;
    job->completion_tokens += count;
    atomic_fetch_add(&metrics->generation_tokens, (long long)count);
    if (job->first_token_seconds == 0) {
        job->first_token_seconds = clock_seconds();
        atomic_fetch_add(&metrics->first_tokens, 1);
        atomic_fetch_add(&metrics->first_token_microseconds,
                         (long long)(1e6 * (job->first_token_seconds - job->arrival_seconds)));
    }
}

static status receive_token(void *user, const struct engine_token *token)
{
    struct completion *c = user;
    bool has_log_probabilities = c->job->request.top_logprobs >= 0;
    if (!token->is_prompt) {
        count_tokens(c, 1);
        has_log_probabilities = has_log_probabilities && token->id != get_end_token(c);
    }
    return has_log_probabilities ? append_token(c, token) : STATUS_OK;
}

static void receive_text(void *user, const char *text, size_t bytes)
{
    struct completion *c = user;
    bool strips = is_chat(c->job) && chat_strips(c->server->template);
    while (strips && !c->has_content && bytes > 0 && strchr(" \t\n", text[0]) != NULL) {
        text++;
        bytes--;
    }
    c->has_content = c->has_content || bytes > 0;
    if (text_buffer_append(&c->text, text, bytes) != STATUS_OK) {
        server_job_fail_pending(c->job, STATUS_INTERNAL);
        return;
    }
    if (c->job->request.stream && bytes > 0) {
        send_chunk(c);
    }
}

/* ---- the sequences of a job ---- */

/* Begins the output with the prompt. The first token has no log-probability. */
static status begin_echo(struct completion *c)
{
    const struct request *q = &c->job->request;
    const struct request_prompt *prompt = &q->prompts[c->prompt];
    const struct token_list *ids = &c->job->prompts[c->prompt];
    char *decoded = NULL;
    const char *text = prompt->text;
    size_t bytes = prompt->bytes;
    if (text == NULL) {
        TRY(tokenizer_decode(c->server->session.tokenizer, ids->ids, ids->count, false, &decoded,
                             &bytes));
        text = decoded;
    }
    status result = text_buffer_append(&c->text, text, bytes);
    free(decoded);
    TRY(result);
    const struct engine_token first = {
        .id = ids->ids[0], .is_prompt = true, .top_count = -1}; /* -1: no log-probability */
    return q->top_logprobs >= 0 ? append_token(c, &first) : STATUS_OK;
}

static status start_sequence(struct server *s, struct server_job *job, bool *is_full)
{
    struct completion *c = &job->completions[job->completions_started];
    const struct request *q = &job->request;
    const struct engine_request request = {
        .prompt = &job->prompts[c->prompt],
        .options = &c->options,
        .sample = (uint64_t)c->index,
        .has_log_probabilities = q->top_logprobs >= 0,
        .has_prompt_log_probabilities = q->echo && q->top_logprobs >= 0,
        .top_count = (int)number_max(q->top_logprobs, 0),
        .receive_token = receive_token,
        .stream = receive_text,
        .user = c,
    };
    TRY(engine_add(s->engine, &request, &c->slot));
    *is_full = c->slot < 0;
    if (*is_full) {
        return STATUS_OK;
    }
    job->completions_started++;
    if (q->echo) {
        TRY(begin_echo(c));
    }
    if (q->stream && (is_chat(job) || q->echo)) {
        send_chunk(c); /* the role, or the prompt */
    }
    return STATUS_OK;
}

/* Begins the search that generates all choices of the next prompt. */
static status start_search(struct server *s, struct server_job *job, bool *is_full)
{
    struct completion *c = &job->completions[job->completions_started];
    const struct session *session = &s->session;
    *is_full = s->beams + c->options.num_beams > s->options->max_num_seqs;
    if (*is_full) {
        return STATUS_OK;
    }
    TRY(beam_search_create(session->kernels, session->model, session->tokenizer,
                           &job->prompts[c->prompt], &c->options, &c->search));
    s->beams += c->options.num_beams;
    job->completions_started += job->request.n;
    return STATUS_OK;
}

status completion_start(struct server *s, struct server_job *job, bool *is_full)
{
    return has_beams(job) ? start_search(s, job, is_full) : start_sequence(s, job, is_full);
}

static status end_completion(struct server *s, struct completion *c)
{
    enum engine_end end = engine_get_end(s->engine, c->slot);
    c->finish_reason = end == ENGINE_LENGTH ? "length" : "stop";
    engine_remove(s->engine, c->slot);
    c->slot = -1;
    c->job->completions_ended++;
    if (c->job->request.stream) {
        send_chunk(c);
    }
    return STATUS_OK;
}

static void destroy_search(struct server *s, struct completion *c)
{
    if (c->search != NULL) {
        beam_search_destroy(&c->search);
        s->beams -= c->options.num_beams;
    }
}

static status end_choice(struct server *s, struct completion *c, struct generate_output *output)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(generate_decode(s->session.tokenizer, &c->options, output, &text, &bytes));
    receive_text(c, text, bytes);
    free(text);
    c->finish_reason = output->ended || output->stopped ? "stop" : "length";
    count_tokens(c, output->tokens.count + output->ended);
    c->job->completions_ended++;
    return STATUS_OK;
}

/* Moves the best hypotheses of an ended search to the choices of its prompt. */
static status end_search(struct server *s, struct completion *first)
{
    int64_t n = first->options.num_samples;
    struct generate_output *outputs = NULL;
    TRY(ALLOCATE(outputs, n, "choices"));
    beam_search_take(first->search, outputs);
    destroy_search(s, first);
    status result = STATUS_OK;
    for (int64_t i = 0; i < n; i++) {
        if (result == STATUS_OK) {
            result = end_choice(s, first + i, &outputs[i]);
        }
        token_list_free(&outputs[i].tokens);
    }
    free(outputs);
    return result;
}

static status update_search(struct server *s, struct completion *c, bool stop)
{
    bool done = stop;
    TRY(stop ? beam_search_stop(c->search) : beam_search_advance(c->search, &done));
    atomic_fetch_add(&s->metrics.passes, !stop);
    return done ? end_search(s, c) : STATUS_OK;
}

status completion_update(struct server *s, struct server_job *job, bool stop)
{
    for (int64_t i = 0; i < job->completions_started; i++) {
        struct completion *c = &job->completions[i];
        if (c->search != NULL) {
            TRY(update_search(s, c, stop));
        }
        if (c->slot >= 0 && stop) {
            TRY(engine_stop(s->engine, c->slot));
        }
        if (c->slot >= 0 && engine_get_end(s->engine, c->slot) != ENGINE_RUNS) {
            TRY(end_completion(s, c));
        }
    }
    if (job->completions_ended == job->completion_count) {
        send_end(s, job);
        server_job_end(job);
    }
    return STATUS_OK;
}

void completion_cancel(struct server *s, struct server_job *job)
{
    for (int64_t i = 0; i < job->completions_started; i++) {
        struct completion *c = &job->completions[i];
        destroy_search(s, c);
        if (c->slot >= 0) {
            engine_remove(s->engine, c->slot);
            c->slot = -1;
        }
    }
}
