/* The functions of bireme.h: arguments are checked here, since they come from outside; errors become text of the
 * calling thread. The rooms below print their errors where ranks agree (comm_agree); in here the thread's are diverted. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "build_info.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/inference/generate.h"
#include "trainer/library/bireme.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/setup/session.h"
#include "trainer/inference/sentence_embedding.h"

struct bm_model {
    char path[FILE_PATH_BYTES];
    struct comm *world;
    struct session session;
};

#define SAME(name) _Static_assert((int)BM_##name == (int)STATUS_##name, "the program's codes")
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

static _Thread_local struct status_note failure; /* of the last call */

static void begin(void)
{
    failure = (struct status_note){0};
    status_clear();
    status_divert(&failure);
}

static bm_status end(status result)
{
    if (result == STATUS_OK) {
        failure.text[0] = '\0';
    } else if (failure.code == STATUS_OK) {
        status_take(&failure);
    }
    status_clear();
    status_divert(NULL);
    return (bm_status)result;
}

const char *bm_error(void)
{
    return failure.text;
}

/* ---- a model ---- */

static void prepare_once(void)
{
    log_quiet(true);
#ifdef BIREME_CUDA
    cuda_register();
#endif
}

/* The list as overrides, whose texts nobody writes to. */
static status open_model(bm_model *m, const char *checkpoint, const char *const *settings)
{
    enum { LEAST_ROWS = 256 }; /* as generate has it */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0;
    pthread_once(&once, prepare_once);
    REQUIRE(checkpoint != NULL && strlen(checkpoint) < sizeof m->path, STATUS_USAGE,
            "the checkpoint's path is missing or too long");
    memcpy(m->path, checkpoint, strlen(checkpoint) + 1);
    while (settings != NULL && settings[count] != NULL) {
        count++;
    }
    TRY(comm_self_create(&m->world));
    return session_open_checkpoint(&m->session, m->world, m->path, (char *const *)settings, count,
                                   LEAST_ROWS);
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
    begin();
    *out = NULL;
    bm_model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return end(status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory for a model"));
    }
    status result = open_model(m, checkpoint, settings);
    if (result != STATUS_OK) {
        (void)close_model(m);
        return end(result);
    }
    *out = m;
    return end(STATUS_OK);
}

void bm_model_close(bm_model **model)
{
    if (*model != NULL) {
        begin();
        (void)end(close_model(*model));
        *model = NULL;
    }
}

bm_model_facts bm_model_facts_of(const bm_model *m)
{
    const struct model_config *c = model_config_of(m->session.model);
    const struct tokenizer *t = m->session.tokenizer;
    return (bm_model_facts){
        .parameters = model_elements(m->session.model),
        .vocabulary = c->vocabulary,
        .positions = model_positions(c),
        .width = c->width,
        .end_token = t != NULL ? tokenizer_eos(t) : -1,
    };
}

static status require_tokenizer(const bm_model *m)
{
    REQUIRE(m->session.tokenizer != NULL, STATUS_DATA, "%s holds no tokenizer", m->path);
    return STATUS_OK;
}

static status require_ids(const bm_model *m, const int32_t *ids, int64_t count)
{
    int64_t vocabulary = model_config_of(m->session.model)->vocabulary;
    REQUIRE(count >= 0, STATUS_USAGE, "%lld ids", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < vocabulary, STATUS_DATA,
                "id %d at index %lld: the vocabulary has %lld", (int)ids[i], (long long)i,
                (long long)vocabulary);
    }
    return STATUS_OK;
}

/* ---- tokens ---- */

static status encode(const bm_model *m, const char *text, size_t bytes, bool special,
                     struct token_list *ids)
{
    TRY(require_tokenizer(m));
    TRY(tokenizer_put_begin(m->session.tokenizer, ids));
    return tokenizer_encode(m->session.tokenizer, text, bytes, special, ids);
}

bm_status bm_encode(const bm_model *m, const char *text, size_t bytes, int special, int32_t **ids,
                    int64_t *count)
{
    begin();
    struct token_list list = {0};
    status result = encode(m, text, bytes, special != 0, &list);
    if (result != STATUS_OK) {
        token_list_free(&list);
    }
    *ids = list.ids;
    *count = list.count;
    return end(result);
}

bm_status bm_decode(const bm_model *m, const int32_t *ids, int64_t count, char **text,
                    size_t *bytes)
{
    begin();
    *text = NULL;
    *bytes = 0;
    status result = require_tokenizer(m);
    if (result == STATUS_OK) {
        result = require_ids(m, ids, count);
    }
    if (result == STATUS_OK) {
        result = tokenizer_decode(m->session.tokenizer, ids, count, true, text, bytes);
    }
    return end(result);
}

/* ---- text ---- */

bm_generate_options bm_generate_defaults(void)
{
    return (bm_generate_options){
        .max_new_tokens = 100,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .num_beams = 1,
        .length_penalty = 1,
    };
}

/* The limits are those of `bireme generate`'s flags. NaN is in no range. */
static status check_options(const bm_generate_options *o, struct generate_options *out)
{
    const struct {
        const char *name;
        double value, least, most;
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
        REQUIRE(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most,
                STATUS_USAGE, "%s is %g: it goes from %g to %g", ranges[i].name, ranges[i].value,
                ranges[i].least, ranges[i].most);
    }
    *out = (struct generate_options){
        .sampler = {o->temperature, o->top_k, o->top_p, o->repetition_penalty, o->seed},
        .max_new_tokens = o->max_new_tokens,
        .num_beams = o->num_beams,
        .num_samples = 1,
        .length_penalty = o->length_penalty,
        .use_cache = true,
    };
    for (int i = 0; o->stops != NULL && o->stops[i] != NULL; i++) {
        REQUIRE(i < GENERATE_STOPS_MAX && o->stops[i][0] != '\0', STATUS_USAGE,
                "stops: at most %d texts, none of them empty", GENERATE_STOPS_MAX);
        out->stops[out->stop_count++] = o->stops[i];
    }
    return STATUS_OK;
}

/* The caller's stream, and whether it wants no more: `stopped` is asked on the thread that calls it. */
struct listener {
    bm_stream *stream;
    void *user;
};

static _Thread_local bool heard_enough;

static bool is_heard_enough(void)
{
    return heard_enough;
}

static void pass_on(void *user, const char *text, size_t bytes)
{
    const struct listener *l = user;
    if (!heard_enough) {
        heard_enough = l->stream(l->user, text, bytes) != 0;
    }
}

/* Nothing said: begin as a document begins. */
static status begin_text(const bm_model *m, struct token_list *ids)
{
    const struct tokenizer *t = m->session.tokenizer;
    TRY(tokenizer_put_begin(t, ids));
    if (ids->count > 0) {
        return STATUS_OK;
    }
    REQUIRE(tokenizer_eos(t) >= 0, STATUS_USAGE,
            "a text without a beginning needs a tokenizer with an end-of-text token");
    TRY(token_list_reserve(ids, 1));
    ids->ids[ids->count++] = tokenizer_eos(t);
    return STATUS_OK;
}

struct text_out {
    char **text;
    size_t *bytes;
};

static status generate(bm_model *m, struct token_list *prompt, const bm_generate_options *wanted,
                       struct listener *listener, struct text_out out)
{
    struct session *s = &m->session;
    struct generate_options options;
    struct generate_text made = {0};
    bm_generate_options defaults = bm_generate_defaults();
    char *text = NULL;
    size_t bytes = 0;
    bool streams = listener->stream != NULL;
    TRY(check_options(wanted != NULL ? wanted : &defaults, &options));
    TRY(require_tokenizer(m));
    TRY(session_require_causal(s, m->path));
    TRY(prompt->count > 0 ? STATUS_OK : begin_text(m, prompt));
    heard_enough = false;
    options.stopped = streams ? is_heard_enough : NULL;
    status result =
        generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options,
                     streams && options.num_beams == 1 ? pass_on : NULL, listener, &made);
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &options, &made, &text, &bytes);
    }
    token_list_free(&made.tokens);
    if (result == STATUS_OK && streams && options.num_beams > 1) {
        pass_on(listener, text, bytes);
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

static void clear_out(struct text_out out)
{
    if (out.text != NULL) {
        *out.text = NULL;
    }
    if (out.bytes != NULL) {
        *out.bytes = 0;
    }
}

bm_status bm_generate(bm_model *m, const int32_t *ids, int64_t count,
                      const bm_generate_options *options, bm_stream *stream, void *user,
                      char **text, size_t *bytes)
{
    begin();
    struct token_list prompt = {0};
    struct listener listener = {stream, user};
    struct text_out out = {text, bytes};
    clear_out(out);
    status result = require_ids(m, ids, count);
    if (result == STATUS_OK) {
        result = token_list_reserve(&prompt, count);
    }
    if (result == STATUS_OK) {
        for (int64_t i = 0; i < count; i++) { /* none: both places may be NULL */
            prompt.ids[prompt.count++] = ids[i];
        }
        result = generate(m, &prompt, options, &listener, out);
    }
    token_list_free(&prompt);
    return end(result);
}

bm_status bm_generate_text(bm_model *m, const char *prompt, size_t prompt_bytes,
                           const bm_generate_options *options, bm_stream *stream, void *user,
                           char **text, size_t *bytes)
{
    begin();
    struct token_list ids = {0};
    struct listener listener = {stream, user};
    struct text_out out = {text, bytes};
    clear_out(out);
    status result = encode(m, prompt, prompt_bytes, true, &ids);
    if (result == STATUS_OK) {
        result = generate(m, &ids, options, &listener, out);
    }
    token_list_free(&ids);
    return end(result);
}

static status log_probabilities(bm_model *m, const int32_t *ids, int64_t count, double *out)
{
    const struct session *s = &m->session;
    int64_t positions = model_positions(model_config_of(s->model));
    struct score_result sum;
    TRY(session_require_causal(s, m->path));
    TRY(require_ids(m, ids, count));
    REQUIRE(count >= 2 && count - 1 <= positions, STATUS_USAGE,
            "%lld ids: at least 2, at most one more than the model's %lld positions",
            (long long)count, (long long)positions);
    struct score_item item = {.ids = ids, .count = count, .scored = count - 1, .each = out};
    return score_run(s->kernels, s->model, positions, &item, 1, &sum);
}

bm_status bm_log_probabilities(bm_model *m, const int32_t *ids, int64_t count, double *out)
{
    begin();
    return end(log_probabilities(m, ids, count, out));
}

/* ---- vectors ---- */

/* One text as one segment. */
static status embed_ids(bm_model *m, const struct token_list *ids, float *out)
{
    size_t count = (size_t)ids->count;
    int32_t *memory = calloc(2 * count + 2, sizeof *memory);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for a text of %zu tokens", count);
    int32_t *positions = memory, *bounds = memory + count, *segments = bounds + 2;
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
        .segment_ids = segments,
    };
    struct tensor hidden;
    status result = model_forward(m->session.model, &input, &hidden);
    if (result == STATUS_OK) {
        result = text_vector_pool(hidden, out);
    }
    free(memory);
    return result;
}

static status embed(bm_model *m, const struct text *text, struct token_list *ids, float *out)
{
    const struct text none = {NULL, 0};
    int64_t first = 0, cut = 0, positions = model_positions(model_config_of(m->session.model));
    TRY(require_tokenizer(m));
    REQUIRE(device_is_host(m->session.device), STATUS_UNAVAILABLE,
            "vectors are made on the CPU only in this version; add the setting train.device=cpu");
    TRY(texts_encode(m->session.tokenizer, text, &none, 0, ids, &first, &cut));
    REQUIRE(ids->count <= positions, STATUS_DATA,
            "a text of %lld tokens, the model has %lld positions", (long long)ids->count,
            (long long)positions);
    return embed_ids(m, ids, out);
}

bm_status bm_embed(bm_model *m, const char *text, size_t bytes, float *out)
{
    begin();
    struct token_list ids = {0};
    status result = embed(m, &(struct text){text, bytes}, &ids, out);
    token_list_free(&ids);
    return end(result);
}
