#include "trainer/inference/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/inference/output_text_impl.h"
#include "trainer/inference/slots_impl.h"

struct state {
    struct engine_request request; /* its prompt is not valid after engine_add */
    enum engine_end end;
    uint64_t order;  /* of arrival */
    size_t streamed; /* bytes passed to stream so far */
};

struct engine {
    struct slots slots;
    const struct tokenizer *tokenizer;
    struct sampler *sampler;
    struct state *states; /* [slots] */
    float *changed;       /* [V] logits after the repetition penalty and the constraints */
    uint64_t added;       /* sequences so far */
};

status engine_create(struct kernels *k, struct model *m, const struct tokenizer *t,
                     const struct engine_limits *limits, struct engine **out)
{
    *out = NULL;
    struct engine *e = NULL;
    TRY(ALLOCATE(e, 1, "sequences"));
    bool has_few = limits->has_prompt_log_probabilities && limits->slots < KERNELS_FEW_ROWS;
    const struct slots_limits slots_limits = {
        .slots = limits->slots,
        .max_tokens = limits->max_tokens,
        .source_tokens = limits->source_tokens,
        .chunk_tokens = limits->chunk_tokens,
        .logits_rows = has_few ? KERNELS_FEW_ROWS : limits->slots,
        .use_cache = limits->use_cache,
    };
    e->tokenizer = tokenizer_target(t);
    status result = ALLOCATE(e->states, limits->slots, "sequences");
    if (result == STATUS_OK) {
        result = slots_create(&e->slots, k, m, &slots_limits);
    }
    if (result == STATUS_OK) {
        result = sampler_create(e->slots.vocabulary, &e->sampler);
    }
    if (result == STATUS_OK) {
        result = ALLOCATE(e->changed, e->slots.vocabulary, "the logits");
    }
    if (result != STATUS_OK) {
        engine_destroy(&e);
    }
    *out = e;
    return result;
}

void engine_destroy(struct engine **e)
{
    if (*e != NULL) {
        slots_destroy(&(*e)->slots);
        sampler_destroy(&(*e)->sampler);
        free((*e)->states);
        free((*e)->changed);
        free(*e);
        *e = NULL;
    }
}

static int64_t find_free_slot(const struct engine *e)
{
    for (int64_t i = 0; i < e->slots.limits.slots; i++) {
        if (!e->slots.sequences[i].is_used) {
            return i;
        }
    }
    return -1;
}

status engine_add(struct engine *e, const struct engine_request *request, int64_t *slot)
{
    const struct generate_options *o = request->options;
    bool has_source = e->slots.limits.source_tokens > 0;
    struct token_list start = generate_start_list(o);
    const struct token_list *tokens = has_source ? &start : request->prompt;
    int64_t prompt = tokens->count, limit = prompt + o->max_new_tokens;
    int64_t room = e->slots.limits.max_tokens;
    REQUIRE(!has_source || request->prompt->count <= e->slots.limits.source_tokens, STATUS_USAGE,
            "a source has %" PRId64 " tokens; at most %" PRId64 " are possible; shorten it",
            request->prompt->count, e->slots.limits.source_tokens);
    REQUIRE(prompt < room || (prompt == room && o->max_new_tokens == 0), STATUS_USAGE,
            "a prompt has %" PRId64
            " tokens and leaves no room for a new token: the model has %" PRId64
            " positions; shorten the prompt",
            prompt, room);
    *slot = find_free_slot(e);
    if (*slot < 0) {
        return STATUS_OK;
    }
    limit = limit < room || (o->slide && !has_source) ? limit : room;
    TRY(slots_begin(&e->slots, *slot, has_source ? request->prompt : NULL, tokens, limit));
    e->states[*slot] = (struct state){.request = *request, .order = e->added++};
    return STATUS_OK;
}

void engine_remove(struct engine *e, int64_t slot)
{
    slots_release(&e->slots, slot);
    e->states[slot] = (struct state){0};
}

enum engine_end engine_get_end(const struct engine *e, int64_t slot)
{
    return e->states[slot].end;
}

bool engine_is_running(const struct engine *e)
{
    for (int64_t i = 0; i < e->slots.limits.slots; i++) {
        if (e->slots.sequences[i].is_used && e->states[i].end == ENGINE_RUNS) {
            return true;
        }
    }
    return false;
}

const int32_t *engine_get_tokens(const struct engine *e, int64_t slot, int64_t *count)
{
    const struct slots_sequence *s = &e->slots.sequences[slot];
    *count = s->tokens.count - s->prompt_tokens;
    return s->tokens.ids + s->prompt_tokens;
}

/* ---- tokens ---- */

static void end_sequence(struct engine *e, int64_t slot, enum engine_end end)
{
    e->states[slot].end = end;
    e->slots.sequences[slot].is_ended = true;
}

/* Ends the sequence if it contains a stop string and streams the bytes that are final. */
static status update_output(struct engine *e, int64_t slot)
{
    struct state *s = &e->states[slot];
    const struct generate_options *o = s->request.options;
    if (o->stop_count == 0 && s->request.stream == NULL) {
        return STATUS_OK;
    }
    char *text = NULL;
    size_t ready = 0;
    bool has_stop = false;
    int64_t count = 0;
    const int32_t *ids = engine_get_tokens(e, slot, &count);
    TRY(output_text_decode(e->tokenizer, o, ids, count, s->end != ENGINE_RUNS, &text, &ready,
                           &has_stop));
    if (has_stop) {
        end_sequence(e, slot, ENGINE_STOP);
    }
    if (s->request.stream != NULL && ready > s->streamed) {
        s->request.stream(s->request.user, text + s->streamed, ready - s->streamed);
        s->streamed = ready;
    }
    free(text);
    return STATUS_OK;
}

/* Lists the most probable tokens, descending; equal ones by ascending id. */
static void list_top(const float *logits, int64_t vocabulary, int wanted, struct engine_token *out)
{
    out->top_count = 0;
    for (int64_t id = 0; id < vocabulary && wanted > 0; id++) {
        int at = out->top_count;
        if (at == wanted && logits[id] <= logits[out->top_ids[at - 1]]) {
            continue;
        }
        at -= at == wanted;
        for (; at > 0 && logits[id] > logits[out->top_ids[at - 1]]; at--) {
            out->top_ids[at] = out->top_ids[at - 1];
        }
        out->top_ids[at] = (int32_t)id;
        out->top_count += out->top_count < wanted;
    }
}

/* Computes the log-probabilities of token out->id and of the most probable tokens. */
static status describe_token(const struct engine *e, int top_count, const float *logits,
                             struct engine_token *out)
{
    double log_sum = 0;
    TRY(sampler_log_sum(logits, e->slots.vocabulary, &log_sum));
    list_top(logits, e->slots.vocabulary, top_count, out);
    for (int i = 0; i < out->top_count; i++) {
        out->top_log_probabilities[i] = logits[out->top_ids[i]] - log_sum;
    }
    out->log_probability = logits[out->id] - log_sum;
    return STATUS_OK;
}

static int32_t get_end_token(const struct engine *e, const struct generate_options *o)
{
    return o->end_token != NULL ? *o->end_token : tokenizer_eos(e->tokenizer);
}

/* Chooses the next token of a sequence. */
static status choose_token(struct engine *e, int64_t slot, int32_t *out)
{
    const struct slots_sequence *s = &e->slots.sequences[slot];
    const struct engine_request *q = &e->states[slot].request;
    const struct sampler_settings *settings = &q->options->sampler;
    const float *logits = s->logits;
    const struct constraints *constraints = &q->options->constraints;
    int64_t ids = e->tokenizer != NULL ? tokenizer_vocab_size(e->tokenizer) : e->slots.vocabulary;
    if (settings->repetition_penalty != 1 ||
        constraints_are_active(constraints, ids, e->slots.vocabulary)) {
        memcpy(e->changed, logits, (size_t)e->slots.vocabulary * sizeof *logits);
        sampler_apply_penalty(e->sampler, settings->repetition_penalty, e->changed, s->tokens.ids,
                              s->tokens.count);
        const struct constraints_sequence sequence = {.ids = s->tokens.ids,
                                                      .count = s->tokens.count,
                                                      .prompt_tokens = s->prompt_tokens,
                                                      .limit = s->limit,
                                                      .end_token = get_end_token(e, q->options),
                                                      .tokenizer_ids = ids};
        constraints_apply(constraints, &sequence, e->changed, e->slots.vocabulary);
        logits = e->changed;
    }
    return sampler_choose(e->sampler, settings, logits, q->sample, (uint64_t)s->tokens.count, out);
}

static status send_token(const struct engine *e, int64_t slot, const float *logits,
                         struct engine_token *token)
{
    const struct engine_request *q = &e->states[slot].request;
    if (q->receive_token == NULL) {
        return STATUS_OK;
    }
    if (token->is_prompt ? q->has_prompt_log_probabilities : q->has_log_probabilities) {
        TRY(describe_token(e, q->top_count, logits, token));
    }
    return q->receive_token(q->user, token);
}

static status sample_token(struct engine *e, int64_t slot)
{
    struct slots_sequence *s = &e->slots.sequences[slot];
    struct engine_token token = {0};
    TRY(choose_token(e, slot, &token.id));
    TRY(send_token(e, slot, s->logits, &token));
    if (token.id == get_end_token(e, e->states[slot].request.options)) {
        end_sequence(e, slot, ENGINE_END_TOKEN);
    } else {
        TRY(token_list_append(&s->tokens, &token.id, 1));
        if (s->tokens.count >= s->limit) {
            end_sequence(e, slot, ENGINE_LENGTH);
        }
    }
    return update_output(e, slot);
}

status engine_stop(struct engine *e, int64_t slot)
{
    if (e->states[slot].end != ENGINE_RUNS) {
        return STATUS_OK;
    }
    end_sequence(e, slot, ENGINE_LENGTH);
    return update_output(e, slot);
}

/* ---- passes ---- */

/* Sends the log-probabilities of the prompt tokens that follow rows [first, first + rows). */
static status send_prompt_tokens(struct engine *e, int64_t slot, struct tensor hidden,
                                 int64_t first, int64_t rows)
{
    struct slots *d = &e->slots;
    const struct slots_sequence *s = &d->sequences[slot];
    rows = first + rows < s->prompt_tokens ? rows : s->prompt_tokens - 1 - first;
    for (int64_t done = 0, count = 0; done < rows; done += count) {
        float *logits = NULL;
        count = number_min(rows - done, d->limits.logits_rows);
        count = number_min(count, KERNELS_FEW_ROWS);
        slots_begin_pass(d);
        TRY(slots_read_logits(d, hidden, done, count, &logits));
        for (int64_t i = 0; i < count; i++) {
            struct engine_token token = {.id = s->tokens.ids[first + done + i + 1],
                                         .is_prompt = true};
            TRY(send_token(e, slot, logits + i * d->logits_stride, &token));
        }
    }
    return STATUS_OK;
}

/* Reads a chunk of a prompt. After the last one the sequence gets its first token. */
static status read_prompt_chunk(struct engine *e, int64_t slot)
{
    struct slots *d = &e->slots;
    struct slots_sequence *s = &d->sequences[slot];
    struct tensor hidden = {0};
    int64_t first = 0, rows = 0;
    TRY(slots_read_chunk(d, slot, &hidden, &first, &rows));
    if (e->states[slot].request.has_prompt_log_probabilities) {
        TRY(send_prompt_tokens(e, slot, hidden, first, rows));
    }
    if (!slots_is_read(d, slot)) {
        return STATUS_OK;
    }
    s->is_prompt_read = true;
    if (s->tokens.count >= s->limit) {
        return engine_stop(e, slot);
    }
    slots_begin_pass(d);
    TRY(slots_read_logits(d, hidden, rows - 1, 1, &s->logits));
    return sample_token(e, slot);
}

/* Returns the oldest sequence with tokens of its prompt left to read; -1: none. */
static int64_t find_oldest_prompt(const struct engine *e)
{
    int64_t oldest = -1;
    for (int64_t i = 0; i < e->slots.limits.slots; i++) {
        const struct slots_sequence *s = &e->slots.sequences[i];
        bool is_waiting = s->is_used && !s->is_ended && !s->is_prompt_read;
        if (is_waiting && (oldest < 0 || e->states[i].order < e->states[oldest].order)) {
            oldest = i;
        }
    }
    return oldest;
}

status engine_read_prompts(struct engine *e, int64_t chunks)
{
    for (int64_t slot; chunks > 0 && (slot = find_oldest_prompt(e)) >= 0; chunks--) {
        TRY(read_prompt_chunk(e, slot));
    }
    return STATUS_OK;
}

status engine_advance(struct engine *e)
{
    struct slots *d = &e->slots;
    TRY(slots_advance(d));
    for (int64_t i = 0; i < d->limits.slots; i++) {
        if (slots_is_running(d, i) && d->sequences[i].is_prompt_read) {
            TRY(sample_token(e, i));
        }
    }
    return STATUS_OK;
}
