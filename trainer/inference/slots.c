#include "trainer/inference/slots_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/cache.h"

bool slots_is_running(const struct slots *d, int64_t slot)
{
    const struct slots_sequence *s = &d->sequences[slot];
    return s->is_used && !s->is_ended && s->tokens.count < s->limit;
}

/* ---- set-up ---- */

status slots_create(struct slots *d, struct kernels *k, struct model *m,
                    const struct slots_limits *limits)
{
    size_t n = (size_t)limits->slots;
    *d = (struct slots){
        .kernels = k, .model = m, .limits = *limits, .vocabulary = model_get_config(m)->vocabulary};
    TRY(ALLOCATE(d->sequences, n, "sequences"));
    TRY(ALLOCATE(d->counts, n, "the lengths of sequences"));
    TRY(ALLOCATE(d->inputs, n, "the inputs of sequences"));
    int ranks = model_lm_head_shard(m).count;
    int64_t shard_rows = model_lm_head(m).rows;
    d->logits_stride = ranks > 1 ? ranks * shard_rows : d->vocabulary;
    d->shard_bytes = (size_t)shard_rows * sizeof *d->shard_logits;
    if (ranks > 1) {
        TRY(device_allocate(kernels_device(k), d->shard_bytes, "logits",
                            (void **)&d->shard_logits));
    }
    TRY(mirror_create(kernels_device(k), kernels_stream(k),
                      (size_t)(limits->logits_rows * d->logits_stride) * sizeof(float), "logits",
                      &d->logits_mirror));
    return model_cache_create(m, limits->slots, limits->max_tokens, limits->source_tokens,
                              &d->cache);
}

void slots_destroy(struct slots *d)
{
    for (int64_t i = 0; d->sequences != NULL && i < d->limits.slots; i++) {
        token_list_free(&d->sequences[i].tokens);
        token_list_free(&d->sequences[i].source);
    }
    free(d->sequences);
    free(d->counts);
    free(d->inputs);
    if (d->kernels != NULL) {
        device_release(kernels_device(d->kernels), d->shard_logits, d->shard_bytes);
    }
    mirror_destroy(&d->logits_mirror);
    (void)model_cache_destroy(&d->cache);
}

status slots_begin(struct slots *d, int64_t slot, const struct token_list *source,
                   const struct token_list *prompt, int64_t limit)
{
    struct slots_sequence *s = &d->sequences[slot];
    *s = (struct slots_sequence){.is_used = true, .prompt_tokens = prompt->count, .limit = limit};
    model_cache_clear(d->cache, slot);
    TRY(source != NULL ? token_list_append(&s->source, source->ids, source->count) : STATUS_OK);
    return token_list_append(&s->tokens, prompt->ids, prompt->count);
}

void slots_release(struct slots *d, int64_t slot)
{
    token_list_free(&d->sequences[slot].tokens);
    token_list_free(&d->sequences[slot].source);
    d->sequences[slot] = (struct slots_sequence){0};
}

/* ---- one forward pass ---- */

void slots_begin_pass(struct slots *d)
{
    d->logits_count = 0;
}

/* Gathers the logits of one row from the ranks that share the model. */
static status gather_logits(struct slots *d, struct tensor hidden_row, float *out)
{
    struct vocabulary_shard shard = model_lm_head_shard(d->model);
    int64_t rows = model_lm_head(d->model).rows;
    TRY(model_logits(d->model, tensor_view(d->shard_logits, DTYPE_F32, 1, rows), hidden_row));
    return shard.all_gather(shard.context, out, d->shard_logits,
                            (size_t)rows * sizeof *d->shard_logits);
}

status slots_read_logits(struct slots *d, struct tensor hidden, int64_t first, int64_t count,
                         float **out)
{
    int64_t begin = d->logits_count * d->logits_stride;
    float *logits = (float *)d->logits_mirror.device_data + begin;
    REQUIRE(d->logits_count + count <= d->limits.logits_rows, STATUS_INTERNAL,
            "%" PRId64 " rows of logits do not fit", d->logits_count + count);
    d->logits_count += count;
    if (d->shard_logits != NULL) {
        for (int64_t i = 0; i < count; i++) {
            TRY(gather_logits(d, tensor_rows(hidden, first + i, 1), logits + i * d->logits_stride));
        }
    } else {
        TRY(model_logits(d->model, tensor_view(logits, DTYPE_F32, count, d->vocabulary),
                         tensor_rows(hidden, first, count)));
    }
    *out = (float *)d->logits_mirror.host + begin;
    return mirror_download_and_wait(&d->logits_mirror, (size_t)begin * sizeof(float),
                                    (size_t)(count * d->logits_stride) * sizeof(float));
}

/* Returns the number of tokens of a sequence that its cache holds or has dropped. */
static int64_t count_read(const struct slots *d, int64_t slot)
{
    return d->sequences[slot].window + model_cache_length(d->cache, slot);
}

bool slots_is_read(const struct slots *d, int64_t slot)
{
    return count_read(d, slot) == d->sequences[slot].tokens.count;
}

/* Runs the encoder on the source of a sequence, if it is not read yet. */
static status read_source(struct slots *d, int64_t slot)
{
    struct token_list *source = &d->sequences[slot].source;
    if (source->count > 0) {
        TRY(model_cache_read_source(d->model, d->cache, slot, source->ids, source->count));
        token_list_free(source);
    }
    return STATUS_OK;
}

static status read_chunk(struct slots *d, int64_t slot, int64_t chunk_tokens, struct tensor *hidden,
                         int64_t *first, int64_t *rows)
{
    const struct token_list *list = &d->sequences[slot].tokens;
    TRY(read_source(d, slot));
    *first = count_read(d, slot);
    *rows = number_min(list->count - *first, chunk_tokens);
    memset(d->counts, 0, (size_t)d->limits.slots * sizeof *d->counts);
    d->counts[slot] = *rows;
    return model_forward_cached(d->model, d->cache, list->ids + *first, d->counts, hidden);
}

status slots_read_chunk(struct slots *d, int64_t slot, struct tensor *hidden, int64_t *first,
                        int64_t *rows)
{
    return read_chunk(d, slot, d->limits.chunk_tokens, hidden, first, rows);
}

static status read_all(struct slots *d, int64_t slot, int64_t chunk_tokens)
{
    struct tensor hidden = {0};
    int64_t first = 0, rows = 0;
    while (!slots_is_read(d, slot)) {
        TRY(read_chunk(d, slot, chunk_tokens, &hidden, &first, &rows));
    }
    d->sequences[slot].is_prompt_read = true;
    return slots_read_logits(d, hidden, rows - 1, 1, &d->sequences[slot].logits);
}

status slots_read_all(struct slots *d, int64_t slot)
{
    return read_all(d, slot, d->limits.chunk_tokens);
}

/* ---- all running sequences ---- */

/* Moves the window of a full sequence to its last tokens, so that the next half of the positions is
 * free, and clears its cache. Returns whether the window has moved. */
static bool slide_window(struct slots *d, int64_t slot)
{
    struct slots_sequence *s = &d->sequences[slot];
    int64_t positions = d->limits.max_tokens, kept = slots_kept_tokens(positions);
    if (s->tokens.count - s->window <= positions) {
        return false;
    }
    s->window = s->tokens.count - kept;
    model_cache_clear(d->cache, slot);
    return true;
}

static bool is_advancing(const struct slots *d, int64_t slot)
{
    return slots_is_running(d, slot) && d->sequences[slot].is_prompt_read;
}

/* Extends the next sequences from *slot on by their newest token, in one pass of at most `group`
 * rows, and moves *slot past them. */
static status advance_group(struct slots *d, int64_t group, int64_t *slot)
{
    struct tensor hidden = {0};
    float *logits = NULL;
    int64_t rows = 0, first = *slot;
    memset(d->counts, 0, (size_t)d->limits.slots * sizeof *d->counts);
    for (; *slot < d->limits.slots && rows < group; ++*slot) {
        if (is_advancing(d, *slot) && !slots_is_read(d, *slot)) {
            const struct token_list *list = &d->sequences[*slot].tokens;
            d->counts[*slot] = 1;
            d->inputs[rows++] = list->ids[list->count - 1];
        }
    }
    if (rows == 0) {
        return STATUS_OK;
    }
    TRY(model_forward_cached(d->model, d->cache, d->inputs, d->counts, &hidden));
    TRY(slots_read_logits(d, hidden, 0, rows, &logits));
    for (int64_t i = first; i < *slot; i++) {
        if (d->counts[i] > 0) {
            d->sequences[i].logits = logits;
            logits += d->logits_stride;
        }
    }
    return STATUS_OK;
}

static status extend_running(struct slots *d)
{
    int64_t group = model_rows(d->model);
    if (device_is_host(kernels_device(d->kernels))) {
        group = number_min(KERNELS_FEW_ROWS, d->limits.chunk_tokens);
    }
    for (int64_t i = 0; i < d->limits.slots; i++) {
        if (is_advancing(d, i) && slide_window(d, i)) {
            TRY(slots_read_all(d, i));
        }
    }
    for (int64_t slot = 0; slot < d->limits.slots;) {
        TRY(advance_group(d, group, &slot));
    }
    return STATUS_OK;
}

/* Recomputes every running sequence from the start of its window, as without a cache. */
static status recompute_running(struct slots *d)
{
    for (int64_t i = 0; i < d->limits.slots; i++) {
        if (is_advancing(d, i)) {
            slide_window(d, i);
            model_cache_clear(d->cache, i);
            TRY(read_all(d, i, d->limits.max_tokens));
        }
    }
    return STATUS_OK;
}

status slots_advance(struct slots *d)
{
    slots_begin_pass(d);
    return d->limits.use_cache ? extend_running(d) : recompute_running(d);
}
