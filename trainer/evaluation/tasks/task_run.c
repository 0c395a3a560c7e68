#include "trainer/evaluation/tasks/task_run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text_buffer.h"
#include "datasets/text/char_class.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/evaluation/tasks/task_scores_impl.h"
#include "trainer/evaluation/tasks/task_template_functions_impl.h"
#include "trainer/inference/generate.h"
#include "trainer/inference/log_likelihood.h"

enum { CHOICES_MAX = 256, BATCH = 8 };

struct run {
    const struct task_model *m;
    const struct task *task;
    const struct task_config *config;
    FILE *samples;
    struct task_scores scores;
};

/* ---- tokens ---- */

/* Encodes a text as transformers does: with the beginning token, unless the text has it. */
static status encode_text(const struct tokenizer *t, const char *text, size_t bytes,
                          struct token_list *ids)
{
    int32_t bos = tokenizer_bos(t);
    TRY(tokenizer_append_bos(t, ids));
    TRY(tokenizer_encode(t, text, bytes, true, ids));
    if (bos >= 0 && ids->count > 1 && ids->ids[1] == bos) {
        ids->count--;
        memmove(ids->ids, ids->ids + 1, (size_t)ids->count * sizeof *ids->ids);
    }
    return STATUS_OK;
}

/* Returns the token that stands for an empty context: the beginning or the end token; -1: none. */
static int32_t get_prefix_token(const struct tokenizer *t)
{
    return tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
}

static status encode_without_context(const struct tokenizer *t, struct text text,
                                     struct token_list *ids, int64_t *scored)
{
    int32_t prefix = get_prefix_token(t);
    REQUIRE(prefix >= 0, STATUS_DATA,
            "the context is empty, and the tokenizer has no beginning or end token to put in its "
            "place");
    TRY(token_list_add(ids, prefix));
    TRY(tokenizer_encode(t, text.bytes, text.count, true, ids));
    if (ids->count > 1 && ids->ids[1] == prefix) {
        ids->count--; /* the continuation begins with this token */
        memmove(ids->ids, ids->ids + 1, (size_t)ids->count * sizeof *ids->ids);
    }
    *scored = ids->count - 1;
    return STATUS_OK;
}

/* Returns the length of a text without the white space at its end. */
static size_t strip_end(const char *text, size_t bytes)
{
    size_t end = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t code;
        at += char_class_read(text + at, bytes - at, &code);
        end = char_class_is_space(code) ? end : at;
    }
    return end;
}

/* Encodes a text. Its first `context` bytes are the context. The context alone, without the white
 * space at its end, gives a number of tokens. The tokens after this number are scored. */
static status encode_pair(const struct tokenizer *t, struct text whole, size_t context,
                          struct token_list *ids, int64_t *scored)
{
    struct token_list alone = {0};
    if (context == 0) {
        return encode_without_context(t, whole, ids, scored);
    }
    status result = encode_text(t, whole.bytes, whole.count, ids);
    if (result == STATUS_OK) {
        result = encode_text(t, whole.bytes, strip_end(whole.bytes, context), &alone);
    }
    *scored = ids->count - alone.count;
    token_list_free(&alone);
    return result;
}

static status check_scored(const struct run *r, int64_t scored, int64_t count)
{
    REQUIRE(scored > 0 && scored < count, STATUS_DATA,
            "a continuation or its context has no tokens");
    REQUIRE(scored <= r->m->max_tokens, STATUS_DATA,
            "a continuation has %" PRId64 " tokens, but at most %" PRId64 " are possible", scored,
            r->m->max_tokens);
    return STATUS_OK;
}

/* ---- multiple_choice and loglikelihood ---- */

struct scored_texts {
    struct token_list ids[CHOICES_MAX];
    struct log_likelihood_item items[CHOICES_MAX];
    struct log_likelihood_result results[CHOICES_MAX];
    int64_t count;
};

static void free_scored(struct scored_texts *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        token_list_free(&s->ids[i]);
    }
    free(s);
}

static status append_text(struct text_buffer *b, const json_t *text)
{
    return text_buffer_append(b, json_string_value(text), json_string_length(text));
}

/* Encodes context, delimiter and text. */
static status encode_scored(const struct run *r, const json_t *context, const char *delimiter,
                            const json_t *text, struct scored_texts *s)
{
    struct text_buffer b = {0};
    int64_t at = s->count++;
    status result = append_text(&b, context);
    if (result == STATUS_OK) {
        result = text_buffer_append(&b, delimiter, strlen(delimiter));
    }
    if (result == STATUS_OK) {
        result = append_text(&b, text);
    }
    if (result == STATUS_OK) {
        result = encode_pair(r->m->tokenizer, (struct text){b.count > 0 ? b.bytes : "", b.count},
                             json_string_length(context), &s->ids[at], &s->items[at].scored);
    }
    text_buffer_free(&b);
    TRY(result);
    s->items[at].ids = s->ids[at].ids;
    s->items[at].count = s->ids[at].count;
    return check_scored(r, s->items[at].scored, s->items[at].count);
}

static status encode_request(const struct run *r, const struct task_request *q,
                             struct scored_texts *s)
{
    if (r->config->output == TASK_LOGLIKELIHOOD) {
        return encode_scored(r, q->context, "", json_array_get(q->targets, 0), s);
    }
    size_t count = json_array_size(q->choices);
    REQUIRE(count <= CHOICES_MAX, STATUS_DATA, "%zu choices; at most %d are accepted", count,
            CHOICES_MAX);
    for (size_t i = 0; i < count; i++) {
        TRY(encode_scored(r, q->context, r->config->target_delimiter, json_array_get(q->choices, i),
                          s));
    }
    return STATUS_OK;
}

/* Scores the continuations of a document. */
static status score_document(const struct run *r, const struct task_request *q, int64_t index,
                             struct scored_texts *s)
{
    TRY(encode_request(r, q, s));
    TRY(log_likelihood_run(r->m->kernels, r->m->model, r->m->rows, s->items, s->count, s->results));
    stop_poll_progress(r->m->poll);
    task_scores_add_likelihoods(&r->scores, q, s->results, s->count, index);
    json_t *outputs = json_array();
    status result = task_template_require_memory(outputs);
    for (int64_t i = 0; i < s->count && result == STATUS_OK; i++) {
        result = task_template_append(outputs, json_real(s->results[i].log_probability));
    }
    if (result == STATUS_OK) {
        result = task_scores_print(&r->scores, q, outputs, index, r->samples);
    }
    json_decref(outputs);
    return result;
}

static status run_likelihood(const struct run *r, int64_t index)
{
    struct task_request q;
    struct scored_texts *s = NULL;
    TRY(ALLOCATE(s, 1, "the choices of a document"));
    status result = task_get_request(r->task, index, &q);
    if (result == STATUS_OK) {
        result = task_annotate_error(r->task, index, score_document(r, &q, index, s));
    }
    task_request_free(&q);
    free_scored(s);
    return result;
}

/* ---- loglikelihood_rolling ---- */

/* Splits a text into windows. Each token is scored once; the last window has a longer context. */
static status score_windows(const struct run *r, const struct token_list *ids, double *out)
{
    int64_t length = r->m->max_tokens, tokens = ids->count - 1;
    for (int64_t done = 0; done < tokens;) {
        int64_t scored = number_min(tokens - done, length);
        int64_t end = done + scored + 1; /* ids[0] is the prefix token */
        int64_t first = end > length + 1 ? end - length - 1 : 0;
        const struct log_likelihood_item item = {
            .ids = ids->ids + first, .count = end - first, .scored = scored};
        struct log_likelihood_result result;
        TRY(log_likelihood_run(r->m->kernels, r->m->model, r->m->rows, &item, 1, &result));
        stop_poll_progress(r->m->poll);
        *out += result.log_probability;
        done += scored;
    }
    return STATUS_OK;
}

static status score_text(const struct run *r, const struct task_request *q, int64_t index,
                         struct token_list *ids)
{
    const json_t *text = json_array_get(q->targets, 0);
    int32_t prefix = get_prefix_token(r->m->tokenizer);
    double log_likelihood = 0;
    REQUIRE(prefix >= 0, STATUS_DATA,
            "loglikelihood_rolling needs a beginning or end token in the tokenizer");
    REQUIRE(json_string_length(text) > 0, STATUS_DATA, "the text is empty");
    TRY(encode_text(r->m->tokenizer, json_string_value(text), json_string_length(text), ids));
    TRY(token_list_add(ids, prefix));
    memmove(ids->ids + 1, ids->ids, (size_t)(ids->count - 1) * sizeof *ids->ids);
    ids->ids[0] = prefix;
    TRY(score_windows(r, ids, &log_likelihood));
    task_scores_add_rolling(&r->scores, text, log_likelihood, index);
    json_t *output = json_real(log_likelihood);
    status result = task_scores_print(&r->scores, q, output, index, r->samples);
    json_decref(output);
    return result;
}

static status run_rolling(const struct run *r, int64_t index)
{
    struct task_request q;
    struct token_list ids = {0};
    status result = task_get_request(r->task, index, &q);
    if (result == STATUS_OK) {
        result = task_annotate_error(r->task, index, score_text(r, &q, index, &ids));
    }
    task_request_free(&q);
    token_list_free(&ids);
    return result;
}

/* ---- generate_until ---- */

struct batch {
    int64_t count, documents[BATCH];
    struct task_request requests[BATCH];
    struct token_list prompts[BATCH];
    struct generate_output outputs[BATCH];
};

/* Encodes the context. A context that is too long loses its beginning. */
static status encode_context(const struct run *r, struct batch *b, int64_t at)
{
    struct token_list *ids = &b->prompts[at];
    const json_t *context = b->requests[at].context;
    int64_t room = r->m->max_tokens - r->config->max_new_tokens;
    REQUIRE(room > 0, STATUS_DATA,
            "max_gen_toks is %" PRId64 ", but a text has at most %" PRId64 " tokens",
            r->config->max_new_tokens, r->m->max_tokens);
    TRY(encode_text(r->m->tokenizer, json_string_value(context), json_string_length(context), ids));
    if (ids->count > room) {
        memmove(ids->ids, ids->ids + ids->count - room, (size_t)room * sizeof *ids->ids);
        ids->count = room;
        task_scores_set_truncated(&r->scores, b->documents[at]);
    }
    REQUIRE(ids->count > 0, STATUS_DATA, "the context has no tokens");
    return STATUS_OK;
}

static status add_to_batch(const struct run *r, struct batch *b, int64_t index)
{
    int64_t at = b->count++;
    b->documents[at] = index;
    TRY(task_get_request(r->task, index, &b->requests[at]));
    return task_annotate_error(r->task, index, encode_context(r, b, at));
}

/* Decodes an output and cuts it before the stop string that begins first. */
static status decode_output(const struct run *r, const struct generate_options *options,
                            const struct generate_output *output, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_decode(r->m->tokenizer, output->tokens.ids, output->tokens.count, true, &text,
                         &bytes));
    status result = task_scores_make_text(text, generate_find_stop(options, text, bytes), out);
    free(text);
    return result;
}

static status score_outputs(const struct run *r, const struct generate_options *options,
                            const struct batch *b)
{
    for (int64_t i = 0; i < b->count; i++) {
        json_t *text = NULL;
        int64_t index = b->documents[i];
        TRY(decode_output(r, options, &b->outputs[i], &text));
        status result = task_annotate_error(
            r->task, index, task_scores_add_output(&r->scores, &b->requests[i], text, index));
        if (result == STATUS_OK) {
            result = task_scores_print(&r->scores, &b->requests[i], text, index, r->samples);
        }
        json_decref(text);
        TRY(result);
    }
    return STATUS_OK;
}

static status generate_batch(const struct run *r, struct batch *b)
{
    const struct task_config *c = r->config;
    struct generate_options options = generate_options_default();
    options.sampler.temperature = c->temperature;
    options.sampler.seed = r->m->seed;
    options.max_new_tokens = c->max_new_tokens;
    options.first_sequence = b->documents[0];
    options.sequence_stride = comm_size(r->m->mesh->data);
    options.stop_count = c->until_count;
    options.should_stop = r->m->poll != NULL ? r->m->poll->is_requested : NULL;
    options.chunk_tokens = number_min(r->m->rows, 256);
    options.tensor_group = r->m->mesh->tensor;
    memcpy(options.stops, c->until, sizeof c->until);
    TRY(generate_run(r->m->kernels, r->m->model, r->m->tokenizer, b->prompts, b->count, &options,
                     NULL, NULL, b->outputs));
    return score_outputs(r, &options, b);
}

_Static_assert((int)TASK_STOPS_MAX == (int)GENERATE_STOPS_MAX, "the stop strings fit");

static void clear_batch(struct batch *b)
{
    for (int64_t i = 0; i < b->count; i++) {
        task_request_free(&b->requests[i]);
        token_list_free(&b->prompts[i]);
        token_list_free(&b->outputs[i].tokens);
    }
    *b = (struct batch){0};
}

/* ---- all documents ---- */

/* Runs a batch of documents. generate_until generates their outputs together. */
static status run_batch(const struct run *r, int64_t first, int64_t stride, int64_t end)
{
    struct batch b = {0};
    status result = STATUS_OK;
    for (int64_t i = first; i < end && result == STATUS_OK; i += stride) {
        result = r->config->output == TASK_GENERATE_UNTIL          ? add_to_batch(r, &b, i)
                 : r->config->output == TASK_LOGLIKELIHOOD_ROLLING ? run_rolling(r, i)
                                                                   : run_likelihood(r, i);
    }
    if (result == STATUS_OK && b.count > 0) {
        result = generate_batch(r, &b);
    }
    clear_batch(&b);
    return result;
}

/* Runs all documents. The ranks agree on errors and stops after each batch, so that no rank waits
 * for the others longer than a deadline. */
static status run_documents(const struct run *r, bool *stop)
{
    const struct mesh *mesh = r->m->mesh;
    int64_t rank = comm_rank(mesh->data), ranks = comm_size(mesh->data);
    int64_t count = task_document_count(r->task), step = BATCH * ranks;
    for (int64_t first = 0; first < count && !*stop; first += step) {
        int64_t end = number_min(first + step, count);
        /* The ranks of a tensor-parallel group run the same documents together. */
        status result = comm_abort_on_error(mesh->tensor, run_batch(r, first + rank, ranks, end));
        TRY(comm_agree(mesh->world, result));
        TRY(stop_poll_run(r->m->poll, stop));
    }
    return STATUS_OK;
}

int64_t task_run_bytes(const struct task_config *c, const struct model_config *config,
                       enum dtype dtype, int ranks, int64_t rows, int64_t max_tokens)
{
    return c->output == TASK_GENERATE_UNTIL
               ? BATCH * generate_bytes(config, dtype, ranks, max_tokens)
               : log_likelihood_bytes(rows);
}

status task_run(const struct task_model *m, const struct task *t, FILE *samples,
                struct task_report *out)
{
    struct run r = {.m = m, .task = t, .config = task_get_config(t), .samples = samples};
    bool stop = false;
    *out = (struct task_report){0};
    status result = comm_agree(m->mesh->world, task_scores_create(t, &r.scores));
    if (result == STATUS_OK) {
        result = run_documents(&r, &stop);
    }
    if (result == STATUS_OK && !stop) {
        result = task_scores_report(&r.scores, m->mesh->data, out);
    }
    task_scores_free(&r.scores);
    out->stopped = stop;
    return result;
}
