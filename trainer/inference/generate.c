/* All sequences of a call advance together by one token per round (engine.h). */
#include "trainer/inference/generate.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "comm/comm.h"
#include "trainer/inference/beam_search.h"
#include "trainer/inference/engine.h"
#include "trainer/inference/generate_impl.h"
#include "trainer/inference/output_text_impl.h"
#include "trainer/inference/slots_impl.h"

struct run {
    struct kernels *kernels;
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    generate_stream stream;
    void *user;
    int64_t sequences;
};

int64_t generate_chunk_tokens(const struct generate_options *options)
{
    enum { CHUNK_TOKENS = 256 };
    return options->chunk_tokens > 0 ? options->chunk_tokens : CHUNK_TOKENS;
}

bool generate_has_source(const struct model *m)
{
    return model_get_config(m)->encoder_layers > 0;
}

static status create_engine(const struct run *r, int64_t longest, struct engine **out)
{
    bool has_source = generate_has_source(r->model);
    int64_t positions = model_get_config(r->model)->positions;
    int64_t wanted = (has_source ? 1 : longest) + r->options->max_new_tokens;
    const struct engine_limits limits = {
        .slots = r->sequences,
        .max_tokens = number_min(wanted, positions),
        .source_tokens = has_source ? longest : 0,
        .chunk_tokens = generate_chunk_tokens(r->options),
        .use_cache = r->options->use_cache,
    };
    return engine_create(r->kernels, r->model, r->tokenizer, &limits, out);
}

static status add_sequences(const struct run *r, struct engine *e, const struct token_list *prompts,
                            int64_t count)
{
    int64_t stride = r->options->sequence_stride > 0 ? r->options->sequence_stride : 1;
    for (int64_t i = 0; i < r->sequences; i++) {
        int64_t slot = 0;
        const struct engine_request request = {
            .prompt = &prompts[i * count / r->sequences],
            .options = r->options,
            .sample = (uint64_t)(r->options->first_sequence + i * stride),
            .stream = r->stream,
            .user = r->user,
        };
        TRY(engine_add(e, &request, &slot));
    }
    return STATUS_OK;
}

static status store_outputs(const struct run *r, const struct engine *e,
                            struct generate_output *out)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        int64_t count = 0;
        const int32_t *ids = engine_get_tokens(e, i, &count);
        enum engine_end end = engine_get_end(e, i);
        out[i] = (struct generate_output){.ended = end == ENGINE_END_TOKEN || end == ENGINE_STOP};
        TRY(token_list_append(&out[i].tokens, ids, count));
    }
    return STATUS_OK;
}

status generate_should_stop(const struct generate_options *options, bool *out)
{
    *out = options->should_stop != NULL && options->should_stop();
    return options->should_stop != NULL && options->tensor_group != NULL
               ? comm_agree_flag(options->tensor_group, *out, out)
               : STATUS_OK;
}

/* Extends all sequences to their ends. It contains collectives of the tensor group. */
static status run_sequences(const struct run *r, struct engine *e, const struct token_list *prompts,
                            int64_t count, struct generate_output *out)
{
    TRY(add_sequences(r, e, prompts, count));
    TRY(engine_read_prompts(e, INT64_MAX));
    for (bool stop; engine_is_running(e);) {
        TRY(generate_should_stop(r->options, &stop));
        if (stop) {
            for (int64_t i = 0; i < r->sequences; i++) {
                TRY(engine_stop(e, i));
            }
            break;
        }
        TRY(engine_advance(e));
    }
    return store_outputs(r, e, out);
}

static status run_sampling(const struct run *r, const struct token_list *prompts, int64_t count,
                           int64_t longest, struct generate_output *out)
{
    struct comm *group = r->options->tensor_group;
    struct engine *e = NULL;
    status result = create_engine(r, longest, &e);
    if (result == STATUS_OK) {
        result = run_sequences(r, e, prompts, count, out);
    }
    result = group != NULL ? comm_abort_on_error(group, result) : result;
    engine_destroy(&e);
    return result;
}

/* Logs once per process, and before the first text is streamed, that texts can become longer than
 * the positions of the model. */
static void log_slide(int64_t positions, const char *no_slide_option)
{
    static atomic_bool is_logged;
    if (!atomic_exchange(&is_logged, true)) {
        log_text("a text that becomes longer than the %" PRId64
                 " positions of the model continues with only its last %" PRId64 " to %" PRId64
                 " tokens as context%s%s%s",
                 positions, slots_kept_tokens(positions), positions,
                 no_slide_option != NULL ? "; " : "",
                 no_slide_option != NULL ? no_slide_option : "",
                 no_slide_option != NULL ? " ends it there" : "");
    }
}

/* Logs once per process that the positions limit the targets of an encoder-decoder. */
static void warn_target_length(int64_t positions)
{
    static atomic_bool is_logged;
    if (!atomic_exchange(&is_logged, true)) {
        log_warning("LENGTH",
                    "at most %" PRId64 " new tokens are possible: the decoder has %" PRId64
                    " positions, one of them for the start token",
                    positions - 1, positions);
    }
}

/* Logs how a text goes on or ends at the positions of the model, if it can reach them. */
static void log_positions(const struct run *r, int64_t longest)
{
    const struct generate_options *o = r->options;
    bool has_source = generate_has_source(r->model);
    int64_t positions = model_get_config(r->model)->positions, read = has_source ? 1 : longest;
    if (read + o->max_new_tokens <= positions) {
        return;
    }
    if (has_source) {
        warn_target_length(positions);
    } else if (o->slide && o->num_beams == 1) {
        log_slide(positions, o->no_slide_option);
    } else {
        log_warning("LENGTH",
                    "at most %" PRId64 " new tokens fit after a prompt of %" PRId64
                    " tokens: the model has %" PRId64 " positions",
                    positions - longest, longest, positions);
    }
}

/* Checks the start token, and that the model has positions for the longest prompt. */
static status check_prompts(const struct run *r, int64_t longest)
{
    const struct model_config *c = model_get_config(r->model);
    int32_t start = r->options->decoder_start;
    if (generate_has_source(r->model)) {
        REQUIRE(start >= 0 && start < c->vocabulary, STATUS_DATA,
                "the start token of the decoder is %" PRId32 ", but the token ids of the model are "
                "0 to %" PRId64 "; set model.decoder_start_token_id",
                start, c->vocabulary - 1);
        TRY(model_require_positions(c, "a source", longest, 0, STATUS_USAGE));
        longest = 1; /* the decoder reads only the start token */
    }
    return model_require_positions(c, "a prompt", longest, 1, STATUS_USAGE);
}

static status run_batch(const struct run *r, const struct token_list *prompts, int64_t count,
                        struct generate_output *out)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++) {
        longest = number_max(longest, prompts[i].count);
    }
    TRY(check_prompts(r, longest));
    log_positions(r, longest);
    return r->options->num_beams > 1
               ? beam_search_run(r->kernels, r->model, r->tokenizer, prompts, r->options, out)
               : run_sampling(r, prompts, count, longest, out);
}

status generate_encode_prompt(const struct tokenizer *t, const char *text, struct token_list *ids)
{
    TRY(tokenizer_append_bos(t, ids));
    TRY(tokenizer_encode(t, text, strlen(text), true, ids));
    if (ids->count == 0) {
        int32_t eos = tokenizer_eos(t);
        REQUIRE(eos >= 0, STATUS_USAGE,
                "an empty prompt needs a tokenizer with an end-of-text token; give a text with "
                "--prompt");
        TRY(token_list_append(ids, &eos, 1));
    }
    return STATUS_OK;
}

int64_t generate_bytes(const struct model_config *config, enum dtype dtype, int ranks,
                       int64_t tokens)
{
    int64_t layers = config->layers - config->encoder_layers;
    int64_t keys = layers * tokens * model_kv_heads(config) / ranks;
    int64_t cache = 2 * keys * model_head_width(config) * (int64_t)dtype_bytes(dtype);
    int64_t logits = model_vocabulary_rows(config, ranks) * (ranks + 1);
    return cache + 4 * 3 * logits; /* on the host, on the device and for the sampler */
}

int64_t generate_pair_bytes(const struct model_config *config, enum dtype dtype, int ranks,
                            int64_t source_tokens, int64_t tokens)
{
    int64_t layers = config->layers - config->encoder_layers;
    int64_t keys = layers * source_tokens * config->width / ranks;
    return generate_bytes(config, dtype, ranks, tokens) + 2 * keys * (int64_t)dtype_bytes(dtype);
}

status generate_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                    const struct token_list *prompts, int64_t prompt_count,
                    const struct generate_options *options, generate_stream stream, void *user,
                    struct generate_output *out)
{
    int64_t batch = options->num_beams > 1 ? 1 : prompt_count; /* beams: one prompt at a time */
    const struct run r = {.kernels = k,
                          .model = m,
                          .tokenizer = t,
                          .options = options,
                          .stream = stream,
                          .user = user,
                          .sequences = batch * options->num_samples};
    for (int64_t first = 0; first < prompt_count; first += batch) {
        TRY(run_batch(&r, prompts + first, batch, out + first * options->num_samples));
    }
    return STATUS_OK;
}

struct ranked_prompt {
    int64_t tokens, index;
};

/* Long prompts come first; equal ones keep their order. */
static int compare_prompts(const void *a, const void *b)
{
    const struct ranked_prompt *x = a, *y = b;
    int by_tokens = (y->tokens > x->tokens) - (y->tokens < x->tokens);
    return by_tokens != 0 ? by_tokens : (x->index > y->index) - (x->index < y->index);
}

/* Generates from one batch of sorted prompts into the outputs of their places. */
static status run_sorted_batch(const struct run *r, const struct ranked_prompt *order,
                               const struct token_list *prompts, int64_t count,
                               struct generate_output *out)
{
    int64_t samples = r->options->num_samples;
    struct token_list *batch = NULL;
    struct generate_output *texts = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(batch, count, "prompts"));
    TRY_GOTO(result, done, ALLOCATE(texts, count * samples, "texts"));
    for (int64_t i = 0; i < count; i++) {
        batch[i] = prompts[order[i].index];
    }
    result = generate_run(r->kernels, r->model, r->tokenizer, batch, count, r->options, NULL, NULL,
                          texts);
    for (int64_t i = 0; i < count; i++) { /* also after an error: the caller frees the outputs */
        memcpy(out + order[i].index * samples, texts + i * samples,
               (size_t)samples * sizeof *texts);
    }
done:
    free(batch);
    free(texts);
    return result;
}

status generate_run_sorted(struct kernels *k, struct model *m, const struct tokenizer *t,
                           const struct token_list *prompts, int64_t prompt_count,
                           int64_t batch_size, const struct generate_options *options,
                           struct generate_output *out)
{
    struct generate_options o = *options;
    const struct run r = {.kernels = k, .model = m, .tokenizer = t, .options = &o};
    struct ranked_prompt *order = NULL;
    TRY(ALLOCATE(order, (size_t)prompt_count + 1, "prompts"));
    for (int64_t i = 0; i < prompt_count; i++) {
        order[i] = (struct ranked_prompt){prompts[i].count, i};
    }
    qsort(order, (size_t)prompt_count, sizeof *order, compare_prompts);
    status result = STATUS_OK;
    for (int64_t first = 0; first < prompt_count && result == STATUS_OK; first += batch_size) {
        int64_t left = prompt_count - first;
        o.first_sequence = options->first_sequence + first * o.num_samples;
        result = run_sorted_batch(&r, order + first, prompts, number_min(left, batch_size), out);
    }
    free(order);
    return result;
}

status generate_clean_text(const char *text, size_t bytes, char **out)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    size_t used = 0;
    uint32_t code;
    TRY(ALLOCATE(*out, bytes * (sizeof replacement - 1) + 1, "a text"));
    for (size_t i = 0; i < bytes;) {
        size_t length = utf8_read(text + i, bytes - i, &code);
        if (text[i] == '\0') {
            (*out)[used++] = ' ';
        } else if (length > 0) {
            memcpy(*out + used, text + i, length);
            used += length;
        } else {
            memcpy(*out + used, replacement, sizeof replacement - 1);
            used += sizeof replacement - 1;
        }
        i += length > 0 ? length : 1;
    }
    return STATUS_OK;
}

size_t generate_find_stop(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t first = bytes;
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t at = 0; at < first && at + length <= bytes; at++) {
            if (memcmp(text + at, o->stops[i], length) == 0) {
                first = at;
            }
        }
    }
    return first;
}

status generate_decode(const struct tokenizer *t, const struct generate_options *options,
                       struct generate_output *output, char **out, size_t *bytes)
{
    t = tokenizer_target(t);
    TRY(output_text_join(t, options, output->tokens.ids, output->tokens.count, out, bytes));
    size_t stop = generate_find_stop(options, *out, *bytes);
    output->stopped = stop < *bytes;
    *bytes = stop;
    (*out)[*bytes] = '\0';
    return STATUS_OK;
}
