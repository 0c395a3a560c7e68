/* Implements bireme.h: errors, models and tokens. The functions check their arguments, because they
 * come from another program. Other modules print errors when ranks agree on a status (comm_agree);
 * here status_divert stores the error for bm_error instead, per thread. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "build_info.h"
#include "datasets/tokenizer/text_pair.h"
#include "trainer/formats/weights/open.h"
#include "trainer/library/library_impl.h"

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

void library_divert_messages(void)
{
    log_divert_warnings(last_warnings, sizeof last_warnings);
    status_divert(&last_error);
}

void library_begin_call(void)
{
    last_warnings[0] = '\0';
    last_error = (struct status_note){0};
    status_clear();
    library_divert_messages();
}

bm_status library_end_call(status result)
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

status library_require_text(const char *text, size_t bytes)
{
    REQUIRE(bytes <= PTRDIFF_MAX, STATUS_USAGE,
            "the text has %zu bytes; -1 does not stand for the NUL byte at its end, use strlen",
            bytes);
    REQUIRE(text != NULL || bytes == 0, STATUS_USAGE, "the text is NULL, but has %zu bytes", bytes);
    return STATUS_OK;
}

/* ---- a model ---- */

static _Thread_local char thread_mark;

status library_begin_use(bm_model *m)
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

void library_end_use(bm_model *m)
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
    m->has_source = recipe_architecture_has_decoder(m->session.recipe.model.architecture);
    return m->has_source ? STATUS_OK : text_batch_create(&m->session, &m->batch);
}

static status close_model(bm_model *m)
{
    chat_close(&m->template);
    if (!m->has_source) {
        text_batch_destroy(&m->batch);
    }
    status result = session_stop(&m->session);
    KEEP_FIRST(result, comm_destroy(&m->world));
    free(m);
    return result;
}

bm_status bm_model_open(const char *checkpoint, const char *const *settings, bm_model **out)
{
    library_begin_call();
    if (out == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "the pointer to the model is NULL"));
    }
    *out = NULL;
    bm_model *m = NULL;
    status result = ALLOCATE(m, 1, "a model");
    if (result != STATUS_OK) {
        return library_end_call(result);
    }
    result = open_model(m, checkpoint, settings);
    if (result != STATUS_OK) {
        (void)close_model(m);
        return library_end_call(result);
    }
    m->process = getpid();
    *out = m;
    return library_end_call(STATUS_OK);
}

void bm_model_close(bm_model **model)
{
    if (model == NULL || *model == NULL) {
        return;
    }
    library_begin_call();
    if (atomic_load(&(*model)->user) != 0) {
        (void)library_end_call(
            RAISE_STATUS(STATUS_USAGE, "the model is in use; close it afterwards"));
        return;
    }
    (void)library_end_call(close_model(*model));
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
        .end_token = t != NULL ? tokenizer_eos(tokenizer_target(t)) : -1,
    };
}

status library_require_tokenizer(const bm_model *m)
{
    REQUIRE(m != NULL, STATUS_USAGE, "the model is NULL");
    return weights_require_tokenizer(&m->session, m->path, "this function");
}

status library_require_host(const bm_model *m)
{
    REQUIRE(device_is_host(m->session.device), STATUS_UNAVAILABLE,
            "this version computes it on the CPU only; add the setting train.device=cpu");
    return STATUS_OK;
}

status library_require_single_stack(const bm_model *m, const char *what)
{
    REQUIRE(!m->has_source, STATUS_UNAVAILABLE,
            "%s is an encoder-decoder (%s), which has no %s here; use bm_translate, bm_generate or "
            "bm_generate_text",
            m->path, recipe_architecture_name(m->session.recipe.model.architecture), what);
    return STATUS_OK;
}

static status require_ids(const int32_t *ids, int64_t count, int64_t vocabulary)
{
    REQUIRE(count >= 0, STATUS_USAGE, "the number of ids is %" PRId64 "; it must be at least 0",
            count);
    REQUIRE(ids != NULL || count == 0, STATUS_USAGE, "ids is NULL, but their number is %" PRId64,
            count);
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < vocabulary, STATUS_DATA,
                "id %" PRId32 " at index %" PRId64 " is outside the vocabulary of %" PRId64, ids[i],
                i, vocabulary);
    }
    return STATUS_OK;
}

status library_require_ids(const bm_model *m, const int32_t *ids, int64_t count)
{
    REQUIRE(m != NULL, STATUS_USAGE, "the model is NULL");
    return require_ids(ids, count, model_source_vocabulary(model_get_config(m->session.model)));
}

/* ---- tokens ---- */

status library_encode(const bm_model *m, const char *text, size_t bytes, bool special,
                      struct token_list *ids)
{
    TRY(library_require_tokenizer(m));
    TRY(library_require_text(text, bytes));
    if (m->has_source) {
        return text_pair_encode_sequence(m->session.tokenizer, NULL,
                                         &(struct text){text != NULL ? text : "", bytes},
                                         TEXT_SOURCE, -1, ids);
    }
    TRY(tokenizer_append_bos(m->session.tokenizer, ids));
    return tokenizer_encode(m->session.tokenizer, text, bytes, special, ids);
}

bm_status bm_encode(const bm_model *m, const char *text, size_t bytes, int special, int32_t **ids,
                    int64_t *count)
{
    library_begin_call();
    struct token_list list = {0};
    if (ids == NULL || count == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "ids or count is NULL"));
    }
    status result = library_encode(m, text, bytes, special != 0, &list);
    if (result != STATUS_OK) {
        token_list_free(&list);
    }
    *ids = list.ids;
    *count = list.count;
    return library_end_call(result);
}

bm_status bm_decode(const bm_model *m, const int32_t *ids, int64_t count, char **text,
                    size_t *bytes)
{
    library_begin_call();
    if (text == NULL || bytes == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "text or bytes is NULL"));
    }
    *text = NULL;
    *bytes = 0;
    status result = library_require_tokenizer(m);
    if (result == STATUS_OK) {
        result = require_ids(ids, count, model_get_config(m->session.model)->vocabulary);
    }
    if (result == STATUS_OK) {
        result =
            tokenizer_decode(tokenizer_target(m->session.tokenizer), ids, count, true, text, bytes);
    }
    return library_end_call(result);
}
