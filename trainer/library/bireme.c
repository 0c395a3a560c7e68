/* Implements bireme.h. The functions check their arguments, because they come from another program.
 * Other modules print errors when ranks agree on a status (comm_agree); here status_divert stores
 * the error for bm_error instead, per thread. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "build_info.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/inference/generate.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/inference/sentence_embedding.h"
#include "trainer/library/bireme.h"
#include "trainer/setup/session.h"
#include "trainer/weights/open.h"

struct bm_model {
    char path[FILE_PATH_BYTES];
    struct comm *world;
    struct session session;
    bm_end end;              /* of the last generated text */
    pid_t process;           /* that opened the model */
    _Atomic(uintptr_t) user; /* address of thread_mark of the thread that uses the model; 0: none */
    int depth;               /* nested calls of that thread, from its stream callback */
};

#define SAME(name) _Static_assert((int)BM_##name == (int)STATUS_##name, "equal to the exit code")
SAME(OK);
SAME(USAGE);
SAME(DATA);
SAME(NO_INPUT);
SAME(UNAVAILABLE);
SAME(INTERNAL);
SAME(PERMISSION);
SAME(RECIPE);
SAME(NOT_FINITE);
SAME(CHECKPOINT);

const char *bm_version(void)
{
    return BUILD_VERSION;
}

void bm_free(void *memory)
{
    free(memory);
}

/* ---- errors ---- */

static _Thread_local struct status_note last_error; /* of the last call */
static _Thread_local char last_warnings[2 * STATUS_TEXT_BYTES];

static void divert_messages(void)
{
    log_divert_warnings(last_warnings, sizeof last_warnings);
    status_divert(&last_error);
}

static void begin_call(void)
{
    last_warnings[0] = '\0';
    last_error = (struct status_note){0};
    status_clear();
    divert_messages();
}

static bm_status end_call(status result)
{
    if (result == STATUS_OK) {
        last_error.text[0] = '\0';
    } else if (last_error.code == STATUS_OK) {
        status_take(&last_error);
    }
    status_clear();
    status_divert(NULL);
    log_divert_warnings(NULL, 0);
    return (bm_status)result;
}

const char *bm_error(void)
{
    return last_error.text;
}

const char *bm_warning(void)
{
    return last_warnings;
}

static status require_text(const char *text, size_t bytes)
{
    REQUIRE(bytes <= PTRDIFF_MAX, STATUS_USAGE,
            "the text has %zu bytes; -1 does not stand for the NUL byte at its end, use strlen",
            bytes);
    REQUIRE(text != NULL || bytes == 0, STATUS_USAGE, "the text is NULL, but has %zu bytes", bytes);
    return STATUS_OK;
}

/* ---- a model ---- */

static _Thread_local char thread_mark;

/* Reserves the model for this thread, until end_use. */
static status begin_use(bm_model *m)
{
    uintptr_t user = 0, self = (uintptr_t)&thread_mark;
    REQUIRE(m != NULL, STATUS_USAGE, "the model is NULL");
    REQUIRE(m->process == getpid() || kernels_threads(m->session.kernels) == 1, STATUS_USAGE,
            "the model was opened before fork(), which does not copy its threads; open it after "
            "fork(), or set parallel.threads=1");
    bool is_free = atomic_compare_exchange_strong(&m->user, &user, self);
    REQUIRE(is_free || user == self, STATUS_USAGE,
            "another thread uses this model; open one model for each thread");
    m->depth++;
    return STATUS_OK;
}

static void end_use(bm_model *m)
{
    if (--m->depth == 0) {
        atomic_store(&m->user, 0);
    }
}

static void initialize_library(void)
{
    log_quiet(true);
#ifdef BIREME_CUDA
    cuda_register();
#endif
}

/* Opens the session. `settings` are overrides, to which weights_open_checkpoint never writes. */
static status open_model(bm_model *m, const char *checkpoint, const char *const *settings)
{
    enum { MIN_ROWS = 256 }; /* as in `bireme generate` */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0;
    pthread_once(&once, initialize_library);
    REQUIRE(checkpoint != NULL && strlen(checkpoint) < sizeof m->path, STATUS_USAGE,
            "the checkpoint's path is missing or too long");
    memcpy(m->path, checkpoint, strlen(checkpoint) + 1);
    while (settings != NULL && settings[count] != NULL) {
        count++;
    }
    TRY(comm_self_create(&m->world));
    TRY(weights_open_checkpoint(&m->session, m->world, m->path, (char *const *)settings, count,
                                MIN_ROWS));
    return weights_require_single_stack(&m->session, m->path);
}

static status close_model(bm_model *m)
{
    status result = session_stop(&m->session);
    KEEP_FIRST(result, comm_destroy(&m->world));
    free(m);
    return result;
}

bm_status bm_model_open(const char *checkpoint, const char *const *settings, bm_model **out)
{
    begin_call();
    if (out == NULL) {
        return end_call(
            status_raise(STATUS_USAGE, __FILE__, __LINE__, "the pointer to the model is NULL"));
    }
    *out = NULL;
    bm_model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return end_call(RAISE_STATUS(STATUS_INTERNAL, "out of memory for a model"));
    }
    status result = open_model(m, checkpoint, settings);
    if (result != STATUS_OK) {
        (void)close_model(m);
        return end_call(result);
    }
    m->process = getpid();
    *out = m;
    return end_call(STATUS_OK);
}

void bm_model_close(bm_model **model)
{
    if (model == NULL || *model == NULL) {
        return;
    }
    begin_call();
    if (atomic_load(&(*model)->user) != 0) {
        (void)end_call(RAISE_STATUS(STATUS_USAGE, "the model is in use; close it afterwards"));
        return;
    }
    (void)end_call(close_model(*model));
    *model = NULL;
}

/* Returns the number of weights without the padding of the vocabulary. */
static int64_t count_parameters(const struct model *model)
{
    int count = 0;
    int64_t sum = 0;
    const struct model_parameter *parameters = model_parameters(model, &count);
    for (int i = 0; i < count; i++) {
        sum += parameters[i].whole_rows * parameters[i].whole_columns;
    }
    return sum;
}

const char *bm_model_checkpoint(const bm_model *m)
{
    return m != NULL ? m->session.checkpoint : "";
}

bm_model_facts bm_model_facts_of(const bm_model *m)
{
    if (m == NULL) {
        return (bm_model_facts){0};
    }
    const struct model_config *c = model_get_config(m->session.model);
    const struct tokenizer *t = m->session.tokenizer;
    return (bm_model_facts){
        .parameters = count_parameters(m->session.model),
        .vocabulary = c->vocabulary,
        .positions = model_positions(c),
        .width = c->width,
        .end_token = t != NULL ? tokenizer_eos(t) : -1,
    };
}

static status require_tokenizer(const bm_model *m)
{
    REQUIRE(m != NULL, STATUS_USAGE, "the model is NULL");
    REQUIRE(m->session.tokenizer != NULL, STATUS_DATA, "%s contains no tokenizer", m->path);
    return STATUS_OK;
}

static status require_ids(const bm_model *m, const int32_t *ids, int64_t count)
{
    REQUIRE(m != NULL, STATUS_USAGE, "the model is NULL");
    int64_t vocabulary = model_get_config(m->session.model)->vocabulary;
    REQUIRE(count >= 0, STATUS_USAGE, "the number of ids is %" PRId64, count);
    REQUIRE(ids != NULL || count == 0, STATUS_USAGE, "ids is NULL, but their number is %" PRId64,
            count);
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < vocabulary, STATUS_DATA,
                "id %" PRId32 " at index %" PRId64 " is outside the vocabulary of %" PRId64, ids[i],
                i, vocabulary);
    }
    return STATUS_OK;
}

/* ---- tokens ---- */

static status encode_text(const bm_model *m, const char *text, size_t bytes, bool special,
                          struct token_list *ids)
{
    TRY(require_tokenizer(m));
    TRY(require_text(text, bytes));
    TRY(tokenizer_append_bos(m->session.tokenizer, ids));
    return tokenizer_encode(m->session.tokenizer, text, bytes, special, ids);
}

bm_status bm_encode(const bm_model *m, const char *text, size_t bytes, int special, int32_t **ids,
                    int64_t *count)
{
    begin_call();
    struct token_list list = {0};
    if (ids == NULL || count == NULL) {
        return end_call(RAISE_STATUS(STATUS_USAGE, "ids or count is NULL"));
    }
    status result = encode_text(m, text, bytes, special != 0, &list);
    if (result != STATUS_OK) {
        token_list_free(&list);
    }
    *ids = list.ids;
    *count = list.count;
    return end_call(result);
}

bm_status bm_decode(const bm_model *m, const int32_t *ids, int64_t count, char **text,
                    size_t *bytes)
{
    begin_call();
    if (text == NULL || bytes == NULL) {
        return end_call(RAISE_STATUS(STATUS_USAGE, "text or bytes is NULL"));
    }
    *text = NULL;
    *bytes = 0;
    status result = require_tokenizer(m);
    if (result == STATUS_OK) {
        result = require_ids(m, ids, count);
    }
    if (result == STATUS_OK) {
        result = tokenizer_decode(m->session.tokenizer, ids, count, true, text, bytes);
    }
    return end_call(result);
}

/* ---- text generation ---- */

bm_generate_options bm_generate_defaults(void)
{
    return (bm_generate_options){
        .max_new_tokens = 100,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .num_beams = 1,
        .length_penalty = 1,
        .slide = 1,
    };
}

/* Checks and converts the options. The limits are those of the options of `bireme generate`. NaN is
 * outside every range. */
static status check_options(const bm_generate_options *o, struct generate_options *out)
{
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {
        {"max_new_tokens", (double)o->max_new_tokens, 1, 1e9},
        {"temperature", o->temperature, 0, 1e3},
        {"top_k", (double)o->top_k, 0, 1e9},
        {"top_p", o->top_p, 1e-9, 1},
        {"repetition_penalty", o->repetition_penalty, 1e-3, 1e3},
        {"num_beams", (double)o->num_beams, 1, 256},
        {"length_penalty", o->length_penalty, -10, 10},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        REQUIRE(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max, STATUS_USAGE,
                "%s is %g; it must be from %g to %g", ranges[i].name, ranges[i].value,
                ranges[i].min, ranges[i].max);
    }
    *out = (struct generate_options){
        .sampler = {o->temperature, o->top_k, o->top_p, o->repetition_penalty, o->seed},
        .max_new_tokens = o->max_new_tokens,
        .num_beams = o->num_beams,
        .num_samples = 1,
        .length_penalty = o->length_penalty,
        .use_cache = true,
        .slide = o->slide != 0,
    };
    for (int i = 0; o->stops != NULL && o->stops[i] != NULL; i++) {
        REQUIRE(i < GENERATE_STOPS_MAX && o->stops[i][0] != '\0', STATUS_USAGE,
                "stops: at most %d strings, none of them empty", GENERATE_STOPS_MAX);
        out->stops[out->stop_count++] = o->stops[i];
    }
    return STATUS_OK;
}

/* The caller's stream. stream_ended is set when it returns nonzero; generate_run reads it through
 * should_stop on the same thread. */
struct listener {
    bm_stream *stream;
    void *user;
};

static _Thread_local bool stream_ended;

static bool is_stream_ended(void)
{
    return stream_ended;
}

static void call_stream(void *user, const char *text, size_t bytes)
{
    const struct listener *l = user;
    if (!stream_ended) {
        stream_ended = l->stream(l->user, text, bytes) != 0;
        divert_messages(); /* the callback may have called the library */
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
            "an empty prompt requires a tokenizer with an end-of-text token");
    TRY(token_list_reserve(ids, 1));
    ids->ids[ids->count++] = tokenizer_eos(t);
    return STATUS_OK;
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
                                   const bm_generate_options *requested, struct listener *listener,
                                   struct text_output out)
{
    struct session *s = &m->session;
    struct generate_options options;
    struct generate_output output = {0};
    bm_generate_options defaults = bm_generate_defaults();
    char *text = NULL;
    size_t bytes = 0;
    bool streams = listener->stream != NULL;
    TRY(check_options(requested != NULL ? requested : &defaults, &options));
    TRY(require_tokenizer(m));
    TRY(weights_require_causal(s, m->path));
    TRY(prompt->count > 0 ? STATUS_OK : begin_document(m, prompt));
    stream_ended = false;
    options.should_stop = streams ? is_stream_ended : NULL;
    status result =
        generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options,
                     streams && options.num_beams == 1 ? call_stream : NULL, listener, &output);
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &options, &output, &text, &bytes);
    }
    m->end = result == STATUS_OK ? find_end(&options, &output) : BM_END_NONE;
    token_list_free(&output.tokens);
    if (result == STATUS_OK && streams && options.num_beams > 1) {
        call_stream(listener, text, bytes);
    }
    if (out.text == NULL) {
        free(text);
        text = NULL;
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
    TRY(begin_use(m));
    m->end = BM_END_NONE;
    return STATUS_OK;
}

bm_status bm_generate(bm_model *m, const int32_t *ids, int64_t count,
                      const bm_generate_options *options, bm_stream *stream, void *user,
                      char **text, size_t *bytes)
{
    begin_call();
    struct token_list prompt = {0};
    struct listener listener = {stream, user};
    struct text_output out = {text, bytes};
    status result = begin_text(m, out);
    if (result != STATUS_OK) {
        return end_call(result);
    }
    result = require_ids(m, ids, count);
    if (result == STATUS_OK) {
        result = token_list_reserve(&prompt, count);
    }
    if (result == STATUS_OK) {
        for (int64_t i = 0; i < count; i++) { /* memcpy is undefined for NULL if count is 0 */
            prompt.ids[prompt.count++] = ids[i];
        }
        result = generate_output_text(m, &prompt, options, &listener, out);
    }
    end_use(m);
    token_list_free(&prompt);
    return end_call(result);
}

bm_status bm_generate_text(bm_model *m, const char *prompt, size_t prompt_bytes,
                           const bm_generate_options *options, bm_stream *stream, void *user,
                           char **text, size_t *bytes)
{
    begin_call();
    struct token_list ids = {0};
    struct listener listener = {stream, user};
    struct text_output out = {text, bytes};
    status result = begin_text(m, out);
    if (result != STATUS_OK) {
        return end_call(result);
    }
    result = encode_text(m, prompt, prompt_bytes, true, &ids);
    if (result == STATUS_OK) {
        result = generate_output_text(m, &ids, options, &listener, out);
    }
    end_use(m);
    token_list_free(&ids);
    return end_call(result);
}

static status compute_log_probabilities(bm_model *m, const int32_t *ids, int64_t count, double *out)
{
    TRY(require_ids(m, ids, count));
    REQUIRE(out != NULL, STATUS_USAGE, "the output is NULL");
    const struct session *s = &m->session;
    int64_t positions = model_positions(model_get_config(s->model));
    struct log_likelihood_result sum;
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
    begin_call();
    status result = begin_use(m);
    if (result == STATUS_OK) {
        result = compute_log_probabilities(m, ids, count, out);
        end_use(m);
    }
    return end_call(result);
}

/* ---- sentence embeddings ---- */

/* Computes the embedding of one sequence, which is one segment. */
static status embed_ids(bm_model *m, const struct token_list *ids, float *out)
{
    size_t count = (size_t)ids->count;
    int32_t *memory = calloc(2 * count + 2, sizeof *memory);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for a sequence of %zu tokens", count);
    int32_t *positions = memory, *bounds = memory + count, *token_type_ids = bounds + 2;
    for (size_t i = 0; i < count; i++) {
        positions[i] = (int32_t)i;
    }
    bounds[1] = (int32_t)count;
    struct model_input input = {
        .rows = ids->count,
        .tokens = ids->ids,
        .positions = positions,
        .segments = 1,
        .cu_rows = bounds,
        .longest = ids->count,
        .token_type_ids = token_type_ids,
    };
    struct tensor hidden;
    status result = model_forward(m->session.model, &input, &hidden);
    if (result == STATUS_OK) {
        result = sentence_embedding_pool(hidden, out);
    }
    free(memory);
    return result;
}

static status embed_text(bm_model *m, const struct text *text, struct token_list *ids, float *out)
{
    const struct text none = {NULL, 0};
    int64_t first = 0, cut = 0;
    TRY(require_tokenizer(m));
    TRY(require_text(text->bytes, text->count));
    REQUIRE(out != NULL, STATUS_USAGE, "the output is NULL");
    int64_t positions = model_positions(model_get_config(m->session.model));
    REQUIRE(device_is_host(m->session.device), STATUS_UNAVAILABLE,
            "this version computes embeddings on the CPU only; add the setting train.device=cpu");
    TRY(text_pair_encode(m->session.tokenizer, text, &none, 0, ids, &first, &cut));
    REQUIRE(ids->count <= positions, STATUS_DATA,
            "the text has %" PRId64 " tokens, but the model has %" PRId64 " positions", ids->count,
            positions);
    return embed_ids(m, ids, out);
}

bm_status bm_embed(bm_model *m, const char *text, size_t bytes, float *out)
{
    begin_call();
    struct token_list ids = {0};
    status result = begin_use(m);
    if (result == STATUS_OK) {
        result = embed_text(m, &(struct text){text, bytes}, &ids, out);
        end_use(m);
    }
    token_list_free(&ids);
    return end_call(result);
}
