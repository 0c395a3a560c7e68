/* Implements bireme.h: text generation and the probabilities of tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/inference/source_text.h"
#include "trainer/library/library_impl.h"

bm_generate_options bm_generate_defaults(void)
{
    const struct generate_options o = generate_options_default();
    return (bm_generate_options){
        .max_new_tokens = 100,
        .temperature = o.sampler.temperature,
        .top_p = o.sampler.top_p,
        .repetition_penalty = o.sampler.repetition_penalty,
        .num_beams = o.num_beams,
        .length_penalty = o.length_penalty,
        .slide = 1,
    };
}

/* Checks and converts the options. The limits are the same as for the options of `bireme generate`.
 * NaN is outside every range. */
static status check_options(const bm_generate_options *o, struct generate_options *out)
{
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {
        {"max_new_tokens", (double)o->max_new_tokens, 1, GENERATE_TOKENS_MAX},
        {"temperature", o->temperature, 0, GENERATE_TEMPERATURE_MAX},
        {"top_k", (double)o->top_k, 0, 1e9},
        {"top_p", o->top_p, GENERATE_TOP_P_MIN, 1},
        {"repetition_penalty", o->repetition_penalty, GENERATE_REPETITION_PENALTY_MIN,
         GENERATE_REPETITION_PENALTY_MAX},
        {"num_beams", (double)o->num_beams, 1, GENERATE_BEAMS_MAX},
        {"length_penalty", o->length_penalty, -GENERATE_LENGTH_PENALTY_MAX,
         GENERATE_LENGTH_PENALTY_MAX},
    };
    for (int i = 0; i < COUNT(ranges); i++) {
        REQUIRE(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max, STATUS_USAGE,
                "%s is %g; it must be from %g to %g", ranges[i].name, ranges[i].value,
                ranges[i].min, ranges[i].max);
    }
    *out = generate_options_default();
    out->sampler = (struct sampler_settings){o->temperature, o->top_k, o->top_p,
                                             o->repetition_penalty, o->seed};
    out->max_new_tokens = o->max_new_tokens;
    out->num_beams = o->num_beams;
    out->length_penalty = o->length_penalty;
    out->slide = o->slide != 0;
    for (int i = 0; o->stops != NULL && o->stops[i] != NULL; i++) {
        REQUIRE(i < GENERATE_STOPS_MAX && o->stops[i][0] != '\0', STATUS_USAGE,
                "stops: string %d is empty, or is more than the %d strings that are supported",
                i + 1, GENERATE_STOPS_MAX);
        out->stops[out->stop_count++] = o->stops[i];
    }
    return STATUS_OK;
}

/* The caller's stream. stream_ended is set when it returns nonzero; generate_run reads it through
 * should_stop on the same thread. */
struct listener {
    bm_stream *stream;
    void *user;
    const int32_t *end_token; /* NULL: the tokenizer's */
    bool skips_spaces;        /* leading white space is not part of the text */
};

static _Thread_local bool stream_ended;

static bool is_stream_ended(void)
{
    return stream_ended;
}

/* Returns the length of the white space at the beginning of a text that the listener skips. */
static size_t count_skipped(const struct listener *l, const char *text, size_t bytes)
{
    size_t count = 0;
    while (l->skips_spaces && count < bytes && strchr(" \t\n", text[count]) != NULL) {
        count++;
    }
    return count;
}

static void call_stream(void *user, const char *text, size_t bytes)
{
    struct listener *l = user;
    size_t skipped = count_skipped(l, text, bytes);
    l->skips_spaces = l->skips_spaces && skipped == bytes;
    if (!stream_ended && (skipped < bytes || bytes == 0)) {
        stream_ended = l->stream(l->user, text + skipped, bytes - skipped) != 0;
        library_divert_messages(); /* the callback may have called the library */
    }
}

/* Starts an empty prompt with the tokens that start a document. */
static status begin_document(const bm_model *m, struct token_list *ids)
{
    const struct tokenizer *t = m->session.tokenizer;
    TRY(tokenizer_append_bos(t, ids));
    if (ids->count > 0) {
        return STATUS_OK;
    }
    REQUIRE(tokenizer_eos(t) >= 0, STATUS_USAGE,
            "the prompt is empty, and the tokenizer has no end-of-text token to begin with; give "
            "a prompt");
    return token_list_add(ids, tokenizer_eos(t));
}

/* Sets the first token of the target of a source. */
static status begin_target(const bm_model *m, const struct token_list *source,
                           struct generate_options *options)
{
    struct source_text language = {0};
    REQUIRE(source->count > 0, STATUS_USAGE, "the source has no tokens; give a text");
    return source_text_resolve(m->session.tokenizer, &language, options);
}

/* Checks the requested options. Without them, an encoder-decoder has the options of its
 * generation_config.json. */
static status choose_options(const bm_model *m, const bm_generate_options *requested,
                             struct generate_options *out)
{
    const bm_generate_options defaults = bm_generate_defaults();
    struct generate_options unset = generation_config_unset();
    TRY(check_options(requested != NULL ? requested : &defaults, out));
    if (!m->has_source) {
        return STATUS_OK;
    }
    if (requested == NULL) {
        *out = unset;
    } else {
        out->constraints = unset.constraints;
    }
    return library_complete_source_options(m, defaults.max_new_tokens, out);
}

static bm_end find_end(const struct generate_options *options, const struct generate_output *output)
{
    if (output->stopped) {
        return BM_END_STOP;
    }
    if (output->ended) {
        return BM_END_TOKEN;
    }
    if (output->tokens.count >= options->max_new_tokens) {
        return BM_END_LENGTH;
    }
    return stream_ended ? BM_END_STREAM : BM_END_POSITIONS;
}

struct text_output {
    char **text;
    size_t *bytes;
};

static status generate_output_text(bm_model *m, struct token_list *prompt,
                                   const bm_generate_options *requested, struct listener listener,
                                   struct text_output out)
{
    struct session *s = &m->session;
    struct generate_options options;
    struct generate_output output = {0};
    struct listener whole = listener;
    char *text = NULL;
    size_t bytes = 0;
    bool streams = listener.stream != NULL;
    TRY(choose_options(m, requested, &options));
    TRY(library_require_tokenizer(m));
    TRY(weights_require_generator(s, m->path));
    TRY(m->has_source       ? begin_target(m, prompt, &options)
        : prompt->count > 0 ? STATUS_OK
                            : begin_document(m, prompt));
    stream_ended = false;
    options.should_stop = streams ? is_stream_ended : NULL;
    options.end_token = listener.end_token;
    status result =
        generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options,
                     streams && options.num_beams == 1 ? call_stream : NULL, &listener, &output);
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &options, &output, &text, &bytes);
    }
    m->end = result == STATUS_OK ? find_end(&options, &output) : BM_END_NONE;
    token_list_free(&output.tokens);
    if (result == STATUS_OK && streams && options.num_beams > 1) {
        call_stream(&listener, text, bytes);
    }
    if (result == STATUS_OK) {
        size_t skipped = count_skipped(&whole, text, bytes);
        bytes -= skipped;
        memmove(text, text + skipped, bytes + 1); /* with the NUL byte */
    }
    if (out.text == NULL) {
        free(text);
    } else {
        *out.text = text;
    }
    if (out.bytes != NULL) {
        *out.bytes = bytes;
    }
    return result;
}

bm_end bm_generate_end(const bm_model *m)
{
    return m != NULL ? m->end : BM_END_NONE;
}

/* Clears the outputs and reserves the model. */
static status begin_text(bm_model *m, struct text_output out)
{
    if (out.text != NULL) {
        *out.text = NULL;
    }
    if (out.bytes != NULL) {
        *out.bytes = 0;
    }
    TRY(library_begin_use(m));
    m->end = BM_END_NONE;
    return STATUS_OK;
}

/* Generates a text from the tokens of a prompt, unless there is an error. Ends the call, and frees
 * the prompt. */
static bm_status end_text(bm_model *m, status result, struct token_list *prompt,
                          const bm_generate_options *options, struct listener listener,
                          struct text_output out)
{
    if (result == STATUS_OK) {
        result = generate_output_text(m, prompt, options, listener, out);
    }
    library_end_use(m);
    token_list_free(prompt);
    return library_end_call(result);
}

bm_status bm_generate(bm_model *m, const int32_t *ids, int64_t count,
                      const bm_generate_options *options, bm_stream *stream, void *user,
                      char **text, size_t *bytes)
{
    library_begin_call();
    struct token_list prompt = {0};
    struct listener listener = {.stream = stream, .user = user};
    struct text_output out = {text, bytes};
    status result = begin_text(m, out);
    if (result != STATUS_OK) {
        return library_end_call(result);
    }
    result = library_require_ids(m, ids, count);
    if (result == STATUS_OK) {
        result = token_list_append(&prompt, ids, count);
    }
    return end_text(m, result, &prompt, options, listener, out);
}

bm_status bm_generate_text(bm_model *m, const char *prompt, size_t prompt_bytes,
                           const bm_generate_options *options, bm_stream *stream, void *user,
                           char **text, size_t *bytes)
{
    library_begin_call();
    struct token_list ids = {0};
    struct listener listener = {.stream = stream, .user = user};
    struct text_output out = {text, bytes};
    status result = begin_text(m, out);
    if (result != STATUS_OK) {
        return library_end_call(result);
    }
    result = library_encode(m, prompt, prompt_bytes, true, &ids);
    return end_text(m, result, &ids, options, listener, out);
}

/* ---- conversations ---- */

static status open_template(bm_model *m)
{
    TRY(library_require_tokenizer(m));
    return m->template != NULL
               ? STATUS_OK
               : chat_open(m->session.tokenizer_dir, m->session.tokenizer, &m->template);
}

static status find_role(const char *name, enum chat_role *out)
{
    for (int role = 0; role < CHAT_ROLES; role++) {
        if (name != NULL && strcmp(name, chat_role_name((enum chat_role)role)) == 0) {
            *out = (enum chat_role)role;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_USAGE, "the role of a message is '%.50s'; it must be system, user or assistant",
          name != NULL ? name : "NULL");
}

static status encode_messages(const bm_model *m, const bm_message *messages, int64_t count,
                              struct token_list *ids)
{
    REQUIRE(count > 0 && messages != NULL, STATUS_USAGE,
            "the list of messages is NULL or empty; give at least one message");
    struct chat_message *list = NULL;
    TRY(ALLOCATE(list, count, "messages"));
    status result = STATUS_OK;
    for (int64_t i = 0; i < count; i++) {
        TRY_GOTO(result, done, find_role(messages[i].role, &list[i].role));
        TRY_GOTO(result, done, library_require_text(messages[i].text, messages[i].bytes));
        list[i].text = messages[i].bytes > 0 ? messages[i].text : "";
        list[i].bytes = messages[i].bytes;
    }
    result = chat_encode_prompt(m->template, m->session.tokenizer, list, count, m->has_source, ids);
done:
    free(list);
    return result;
}

static status generate_response(bm_model *m, const bm_message *messages, int64_t count,
                                const bm_generate_options *options, struct listener listener,
                                struct text_output out)
{
    struct token_list ids = {0};
    TRY(open_template(m));
    int32_t end_token = chat_end_of_turn(m->template);
    listener.end_token = m->has_source ? NULL : &end_token; /* a target has the end token */
    listener.skips_spaces = chat_strips(m->template);
    status result = encode_messages(m, messages, count, &ids);
    if (result == STATUS_OK) {
        result = generate_output_text(m, &ids, options, listener, out);
    }
    token_list_free(&ids);
    return result;
}

bm_status bm_chat(bm_model *m, const bm_message *messages, int64_t count,
                  const bm_generate_options *options, bm_stream *stream, void *user, char **text,
                  size_t *bytes)
{
    library_begin_call();
    struct text_output out = {text, bytes};
    status result = begin_text(m, out);
    if (result == STATUS_OK) {
        struct listener listener = {.stream = stream, .user = user};
        result = generate_response(m, messages, count, options, listener, out);
        library_end_use(m);
    }
    return library_end_call(result);
}

/* ---- probabilities of tokens ---- */

static status compute_log_probabilities(bm_model *m, const int32_t *ids, int64_t count, double *out)
{
    TRY(library_require_ids(m, ids, count));
    REQUIRE(out != NULL, STATUS_USAGE, "the output is NULL");
    const struct session *s = &m->session;
    int64_t positions = model_positions(model_get_config(s->model));
    struct log_likelihood_result sum;
    TRY(library_require_single_stack(m, "log-probabilities of ids"));
    TRY(weights_require_causal(s, m->path));
    REQUIRE(count >= 2 && count - 1 <= positions, STATUS_USAGE,
            "the number of ids is %" PRId64 "; it must be at least 2 and at most %" PRId64
            ", one more than the model's positions",
            count, positions + 1);
    struct log_likelihood_item item = {
        .ids = ids, .count = count, .scored = count - 1, .log_probabilities = out};
    return log_likelihood_run(s->kernels, s->model, positions, &item, 1, &sum);
}

bm_status bm_log_probabilities(bm_model *m, const int32_t *ids, int64_t count, double *out)
{
    library_begin_call();
    status result = library_begin_use(m);
    if (result == STATUS_OK) {
        result = compute_log_probabilities(m, ids, count, out);
        library_end_use(m);
    }
    return library_end_call(result);
}

/* Computes the logits of all ids, or of a masked model its predictions at all ids. */
static status compute_logits(bm_model *m, struct token_list *ids, float *out)
{
    const struct session *s = &m->session;
    struct text_batch *b = &m->batch;
    struct tensor hidden;
    int32_t *rows = NULL;
    TRY(library_require_single_stack(m, "logits of ids"));
    if (s->recipe.objective != OBJECTIVE_MLM) {
        TRY(weights_require_causal(s, m->path));
    }
    TRY(text_batch_set(b, ids, ids->count));
    if (s->recipe.objective == OBJECTIVE_MLM) {
        TRY(ALLOCATE(rows, ids->count, "rows"));
        for (int64_t i = 0; i < ids->count; i++) {
            rows[i] = (int32_t)i;
        }
    }
    status result = text_batch_vocabulary_rows(b, rows, ids->count, &hidden);
    if (result == STATUS_OK) {
        result = text_batch_logits(b, hidden, out);
    }
    free(rows);
    return result;
}

bm_status bm_logits(bm_model *m, const int32_t *ids, int64_t count, float *out)
{
    library_begin_call();
    struct token_list list = {.ids = (int32_t *)ids, .count = count}; /* only read */
    status result = library_begin_use(m);
    if (result != STATUS_OK) {
        return library_end_call(result);
    }
    TRY_GOTO(result, done, library_require_ids(m, ids, count));
    TRY_GOTO(result, done, library_require_host(m));
    REQUIRE_GOTO(result, done, out != NULL, STATUS_USAGE, "the output is NULL");
    result = compute_logits(m, &list, out);
done:
    library_end_use(m);
    return library_end_call(result);
}
