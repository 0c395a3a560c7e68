/* The loader: a ring buffer of micro-batches. A thread fills the slots, loader_next empties them.
 *
 * Only the thread accesses the shards and the position in the data. Both sides share the counters
 * of the ring buffer, which a mutex protects. The caller of loader_next owns a slot until the next
 * call. An error ends the thread; loader_next returns it after all valid micro-batches. */
#include "datasets/loader/loader_impl.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/thread/thread.h"
#include "datasets/loader/sample_order.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard_set.h"

enum {
    OPEN_SHARDS = 32,          /* open at the same time, over all sources */
    PREFETCH_BYTES = 16 << 20, /* read ahead about this many bytes ... */
    PREFETCH_MIN = 4,          /* ... but between these numbers of micro-batches */
    PREFETCH_MAX = 64,
    SHARD_BYTES = 700 << 10 /* measured memory of an open shard: two chunks and tables of HDF5 */
};

/* Returns whether an example is read completely before it is added to the batch. */
static bool has_example(const struct loader_options *o)
{
    return loader_is_masked(o) || loader_is_preference(o) || loader_is_task(o) ||
           loader_is_seq2seq(o);
}

/* Returns whether an example consists of two texts of up to T tokens without further values. */
static bool has_two_texts(const struct loader_options *o)
{
    return loader_is_preference(o) || loader_is_seq2seq(o);
}

/* Returns the int32 values of an example. Pairs: ids of both texts. Tasks: ids, token types, text
 * starts, positions, labels. Sentence pairs: ids, token types, two arrays for masking, positions,
 * labels. */
static int64_t count_example_values(const struct loader_options *o)
{
    if (has_two_texts(o)) {
        return 2 * o->sequence_tokens;
    }
    if (loader_is_task(o)) {
        return loader_max_texts(o) * (2 * o->sequence_tokens + 1) + 1 + loader_max_predictions(o) +
               loader_max_labels(o);
    }
    return 4 * o->sequence_tokens + 2 * loader_max_predictions(o);
}

static int64_t compute_slot_rows(const struct loader_options *o)
{
    return o->micro_sequences * o->sequence_tokens * loader_max_texts(o);
}

/* An array of a slot. */
struct slot_array {
    size_t field; /* offset of its pointer in struct loader_slot */
    int64_t elements;
    size_t element_bytes;
};

enum { SLOT_ARRAYS = 21 };

#define SLOT_ARRAY(name, elements)                                                                 \
    {                                                                                              \
        offsetof(struct loader_slot, name), (elements), sizeof *((struct loader_slot *)NULL)->name \
    }

/* Lists the arrays of a slot in the order of their memory. This is the only place that defines the
 * layout. Arrays that the kind of examples does not use have 0 elements. */
static void list_slot_arrays(const struct loader_options *o, struct slot_array out[SLOT_ARRAYS])
{
    int64_t batch = o->micro_sequences, rows = compute_slot_rows(o);
    bool pairs = loader_is_preference(o), task = loader_is_task(o);
    bool responses = pairs && !o->head_reads_responses;
    bool answer = o->kind == EXAMPLE_ANSWER, seq2seq = loader_is_seq2seq(o);
    bool masked = loader_is_masked(o), examples = task || masked;
    int64_t outputs = examples ? loader_max_predictions(o) : pairs ? 2 : 0; /* per sample */
    const struct slot_array arrays[SLOT_ARRAYS] = {
        SLOT_ARRAY(samples, batch), /* elements of 8 bytes first, for their alignment */
        SLOT_ARRAY(reference_logps, pairs ? 2 * batch : 0),
        SLOT_ARRAY(inputs, rows),
        SLOT_ARRAY(targets, task ? 0 : rows),
        SLOT_ARRAY(positions, rows),
        SLOT_ARRAY(cu_rows, rows + 1),
        SLOT_ARRAY(shared_prefix_offsets, pairs ? 2 * batch : 0),
        SLOT_ARRAY(first_targets, responses ? 2 * batch + 1 : 0),
        SLOT_ARRAY(target_rows, responses ? rows : 0),
        SLOT_ARRAY(target_ids, responses ? rows : 0),
        SLOT_ARRAY(token_type_ids, examples ? rows : 0),
        SLOT_ARRAY(output_rows, batch * outputs),
        SLOT_ARRAY(example_rows, task || pairs ? batch + 1 : 0),
        SLOT_ARRAY(next_sentence, masked ? batch : 0),
        SLOT_ARRAY(labels, examples ? batch * loader_max_labels(o) : 0),
        SLOT_ARRAY(token_flags, answer ? rows : 0),
        SLOT_ARRAY(dataset_rows, answer ? batch : 0),
        SLOT_ARRAY(float_labels, task ? batch : 0),
        SLOT_ARRAY(source_inputs, seq2seq ? rows : 0),
        SLOT_ARRAY(source_positions, seq2seq ? rows : 0),
        SLOT_ARRAY(source_cu_rows, seq2seq ? batch + 1 : 0),
    };
    memcpy(out, arrays, sizeof arrays);
}

static int64_t compute_slot_bytes(const struct loader_options *o)
{
    struct slot_array arrays[SLOT_ARRAYS];
    list_slot_arrays(o, arrays);
    int64_t bytes = 0;
    for (int i = 0; i < SLOT_ARRAYS; i++) {
        bytes += arrays[i].elements * (int64_t)arrays[i].element_bytes;
    }
    return number_round_up(bytes, 64);
}

/* Sets the array pointers of a slot to consecutive ranges of its memory; unused arrays are NULL. */
static void set_slot_arrays(const struct loader_options *o, struct loader_slot *s, char *memory)
{
    struct slot_array arrays[SLOT_ARRAYS];
    list_slot_arrays(o, arrays);
    for (int i = 0; i < SLOT_ARRAYS; i++) {
        void *array = arrays[i].elements > 0 ? memory : NULL;
        memcpy((char *)s + arrays[i].field, &array, sizeof array);
        memory += (size_t)arrays[i].elements * arrays[i].element_bytes;
    }
}

static int64_t compute_slot_count(const struct loader_options *o)
{
    if (o->prefetch_batches > 0) {
        return o->prefetch_batches + 1; /* the caller of loader_next uses one */
    }
    int64_t count = PREFETCH_BYTES / compute_slot_bytes(o);
    return number_clamp(count, PREFETCH_MIN, PREFETCH_MAX) + 1;
}

/* Returns how many shards of each source may be open at the same time. */
static int get_open_limit(const struct loader_options *o)
{
    int each = OPEN_SHARDS / o->source_count;
    return each > 1 ? each : 1;
}

/* Returns how many shards of all sources are open at the same time. A source without files counts
 * as one shard. */
static int64_t count_open_shards(const struct loader_options *o)
{
    int64_t count = 0;
    for (int i = 0; i < o->source_count; i++) {
        int found = shard_set_count_files(o->sources[i].path), limit = get_open_limit(o);
        count += number_clamp(found, 1, limit);
    }
    return count;
}

int64_t loader_memory_bytes(const struct loader_options *options)
{
    int64_t each = loader_is_denoising(options) ? 7 : 3; /* arrays of a window */
    int64_t window = (each * options->sequence_tokens + 1) * (int64_t)sizeof(int32_t);
    window += has_example(options) ? count_example_values(options) * (int64_t)sizeof(int32_t) : 0;
    int64_t slots = compute_slot_count(options) *
                    (compute_slot_bytes(options) + (int64_t)sizeof(struct loader_slot));
    return slots + window + count_open_shards(options) * SHARD_BYTES;
}

static status check_options(const struct loader_options *o)
{
    REQUIRE(o->source_count > 0 && o->source_count <= SAMPLE_ORDER_SOURCES_MAX, STATUS_RECIPE,
            "%d data sources; 1 to %d are accepted", o->source_count, SAMPLE_ORDER_SOURCES_MAX);
    bool in_range = o->sequence_tokens > 0 && o->global_sequences > 0 && o->micro_sequences > 0 &&
                    o->sequence_tokens < INT32_MAX / 2 / o->micro_sequences / loader_max_texts(o);
    REQUIRE(in_range, STATUS_RECIPE,
            "a batch has %" PRId64 " sequences of %" PRId64 " tokens in micro-batches of %" PRId64
            " sequences; all must be above 0, and a micro-batch must have less than 2^30 tokens",
            o->global_sequences, o->sequence_tokens, o->micro_sequences);
    REQUIRE(o->ranks > 0 && o->rank >= 0 && o->rank < o->ranks, STATUS_INTERNAL,
            "loader: rank %d of %d ranks; must be 0 to ranks - 1", o->rank, o->ranks);
    REQUIRE(o->first_sample >= 0 && o->limit_samples >= LOADER_ONE_EPOCH &&
                o->prefetch_batches >= 0,
            STATUS_INTERNAL,
            "loader: first sample %" PRId64 ", limit %" PRId64 ", %" PRId64
            " micro-batches ahead; must be at least 0, the limit at least LOADER_ONE_EPOCH",
            o->first_sample, o->limit_samples, o->prefetch_batches);
    const struct masking *m = &o->masking;
    bool has_kinds = m->token_kinds == NULL || (m->mask_id >= 0 && m->vocab_size <= o->vocab_size);
    bool valid = has_kinds && m->probability > 0.0 && m->probability <= 1.0 &&
                 m->max_predictions > 0 && m->max_predictions <= o->sequence_tokens;
    REQUIRE(!loader_is_masked(o) || valid, STATUS_RECIPE,
            "masking with probability %g, sequence length %" PRId64 " and at most %" PRId64
            " predictions: the probability must be above 0 and at most 1, the number of "
            "predictions 1 to the sequence length, and the tokenizer must have a [MASK] token",
            m->probability, o->sequence_tokens, m->max_predictions);
    int64_t targets = o->target_vocab_size > 0 ? o->target_vocab_size : o->vocab_size;
    REQUIRE(!loader_is_seq2seq(o) || o->decoder_start == LOADER_START_LAST ||
                (o->decoder_start >= 0 && o->decoder_start < targets),
            STATUS_RECIPE,
            "the first input of the decoder is token %d of %" PRId64
            "; set model.decoder_start_token_id",
            o->decoder_start, targets);
    return loader_is_denoising(o) ? denoise_check(&o->denoise, o->sequence_tokens) : STATUS_OK;
}

/* Packs the examples of a source, and adds its report to the total. */
static status pack_source(struct loader *l, int source)
{
    struct packing_report one, *all = &l->packing;
    TRY(packing_scan(l->sets[source], &l->rules, l->options.sequence_tokens, &l->packs[source],
                     &one));
    all->examples += one.examples;
    all->truncated += one.truncated;
    all->truncated_tokens += one.truncated_tokens;
    all->empty += one.empty;
    all->packs += one.packs;
    all->tokens += one.tokens;
    return STATUS_OK;
}

static double compute_rate(const struct loader_mixing *m, double weight, int64_t examples)
{
    double rate = weight * (double)examples;
    if (!m->by_examples) {
        return weight;
    }
    rate = m->maximum > 0 && rate > m->maximum ? m->maximum : rate;
    return pow(rate, 1 / m->temperature);
}

static status open_sources(struct loader *l)
{
    const struct loader_options *o = &l->options;
    int64_t samples[SAMPLE_ORDER_SOURCES_MAX];
    double weights[SAMPLE_ORDER_SOURCES_MAX];
    for (int i = 0; i < o->source_count; i++) {
        struct shard_set_options set = {.path = o->sources[i].path,
                                        .sequence_tokens = o->sequence_tokens,
                                        .vocab_size = o->vocab_size,
                                        .tokenizer_sha256 = o->tokenizer_sha256,
                                        .labels_sha256 = o->labels_sha256,
                                        .join_encoding = o->join_encoding,
                                        .kind = o->kind,
                                        .open_limit = get_open_limit(o)};
        TRY(shard_set_open(&set, &l->sets[i]));
        TRY(loader_is_packed(o) ? pack_source(l, i) : STATUS_OK);
        samples[i] =
            loader_is_packed(o) ? packing_pack_count(l->packs[i]) : shard_set_samples(l->sets[i]);
        weights[i] = compute_rate(&o->mixing, o->sources[i].weight, samples[i]);
        REQUIRE(!o->mixing.by_examples || (weights[i] > 0 && isfinite(weights[i])), STATUS_RECIPE,
                "data.mixing_temperature %g is too small: the rate of source %d is %g",
                o->mixing.temperature, i + 1, weights[i]);
    }
    TRY(sample_order_init(&l->order, samples, weights, o->source_count, o->seed, o->shuffle));
    l->order.window_tokens =
        o->kind != EXAMPLE_TEXT ? 0 : o->sequence_tokens; /* examples are never shifted */
    int64_t epoch = sample_order_epoch_samples(&l->order);
    l->limit = o->limit_samples > 0 ? o->limit_samples : INT64_MAX;
    if (o->limit_samples == LOADER_ONE_EPOCH || (!o->shuffle && o->limit_samples > epoch)) {
        l->limit = epoch;
    }
    return STATUS_OK;
}

static status hash_masking(const struct masking *m, struct hash *hash)
{
    char text[256];
    int used =
        snprintf(text, sizeof text, "examples masked %.17g most %" PRId64 " whole %d mask %d\n",
                 m->probability, m->max_predictions, m->whole_words, m->mask_id);
    TRY(hash_update(hash, text, (size_t)used));
    return m->token_kinds != NULL ? hash_update(hash, m->token_kinds, (size_t)m->vocab_size)
                                  : STATUS_OK;
}

static status hash_task(const struct loader_options *o, struct hash *hash)
{
    char text[128];
    int used = snprintf(text, sizeof text, "%s, %s rows\n", example_get_format(o->kind)->name,
                        o->head_reads_last_row ? "last" : "first");
    return hash_update(hash, text, (size_t)used);
}

static status hash_seq2seq(const struct loader_options *o, struct hash *hash)
{
    char text[64];
    int used = snprintf(text, sizeof text, "sources and targets, start %d\n", o->decoder_start);
    return hash_update(hash, text, (size_t)used);
}

static status hash_denoise(const struct loader_options *o, struct hash *hash)
{
    const struct denoise *d = &o->denoise;
    char text[256];
    int used = snprintf(text, sizeof text,
                        "denoise %d %.17g %.17g %d %d %.17g %.17g tokens %d %d %d %d %d %d\n",
                        (int)d->kind, d->density, d->mean_span, d->single_tokens,
                        (int)d->replacement, d->permuted_sentences, d->rotation, d->bos, d->eos,
                        d->mask, d->modes[0], d->modes[1], d->modes[2]);
    TRY(hash_update(hash, text, (size_t)used));
    TRY(hash_update(hash, d->sentinels, (size_t)d->sentinel_count * sizeof *d->sentinels));
    TRY(d->has_language
            ? hash_update(hash, d->languages, (size_t)o->source_count * sizeof *d->languages)
            : STATUS_OK);
    return d->sentence_ends != NULL ? hash_update(hash, d->sentence_ends, (size_t)o->vocab_size)
                                    : STATUS_OK;
}

static status hash_packing(const struct packing_rules *rules, struct hash *hash)
{
    char text[128];
    int used = snprintf(text, sizeof text, "packed %d most %" PRId64 " learn %u\n",
                        (int)rules->kind, rules->max_length, rules->loss_mask_bits);
    return hash_update(hash, text, (size_t)used);
}

static status compute_fingerprint(struct loader *l)
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    char text[256];
    int used = snprintf(
        text, sizeof text, "bireme-data 1 seed %" PRIu64 " tokens %" PRId64 " shuffle %d mask %d\n",
        l->options.seed, l->options.sequence_tokens, l->options.shuffle, l->options.document_mask);
    status result = STATUS_OK;
    TRY_GOTO(result, failed, hash_update(hash, text, (size_t)used));
    TRY_GOTO(result, failed,
             loader_is_masked(&l->options) ? hash_masking(&l->options.masking, hash) : STATUS_OK);
    TRY_GOTO(result, failed,
             loader_is_preference(&l->options) ? hash_update(hash, "preference pairs\n", 17)
                                               : STATUS_OK);
    TRY_GOTO(result, failed,
             loader_is_task(&l->options) ? hash_task(&l->options, hash) : STATUS_OK);
    TRY_GOTO(result, failed,
             loader_is_packed(&l->options) ? hash_packing(&l->rules, hash) : STATUS_OK);
    TRY_GOTO(result, failed,
             loader_is_seq2seq(&l->options) ? hash_seq2seq(&l->options, hash) : STATUS_OK);
    TRY_GOTO(result, failed,
             loader_is_denoising(&l->options) ? hash_denoise(&l->options, hash) : STATUS_OK);
    for (int i = 0; i < l->order.sources; i++) {
        used = snprintf(text, sizeof text, "source %" PRIu64 " of %" PRIu64 "\n",
                        l->order.weight_offsets[i + 1] - l->order.weight_offsets[i],
                        l->order.weight_offsets[l->order.sources]);
        TRY_GOTO(result, failed, hash_update(hash, text, (size_t)used));
        TRY_GOTO(result, failed, shard_set_hash(l->sets[i], hash));
    }
    return hash_finish(&hash, l->fingerprint);
failed:
    hash_destroy(&hash);
    return result;
}

/* Divides l->example_memory into the arrays of a task example. */
static void set_task_arrays(struct loader *l)
{
    int64_t texts = loader_max_texts(&l->options), capacity = texts * l->options.sequence_tokens;
    int32_t *memory = l->example_memory;
    l->example = (struct example){.token_capacity = capacity,
                                  .ids = memory,
                                  .token_type_ids = memory + capacity,
                                  .text_capacity = texts,
                                  .text_starts = memory + 2 * capacity,
                                  .prediction_capacity = loader_max_predictions(&l->options),
                                  .positions = memory + 2 * capacity + texts + 1};
    l->example.labels = l->example.positions + l->example.prediction_capacity;
}

static status allocate_example(struct loader *l)
{
    int64_t tokens = l->options.sequence_tokens, limit = loader_max_predictions(&l->options);
    TRY(ALLOCATE(l->example_memory, count_example_values(&l->options), "an example"));
    l->example =
        (struct example){.token_capacity = has_two_texts(&l->options) ? 2 * tokens : tokens,
                         .ids = l->example_memory};
    if (has_two_texts(&l->options)) {
        return STATUS_OK;
    }
    if (loader_is_task(&l->options)) {
        set_task_arrays(l);
        return STATUS_OK;
    }
    l->example = (struct example){.token_capacity = tokens,
                                  .ids = l->example_memory,
                                  .token_type_ids = l->example_memory + tokens,
                                  .prediction_capacity = limit,
                                  .positions = l->example_memory + 4 * tokens,
                                  .labels = l->example_memory + 4 * tokens + limit};
    return STATUS_OK;
}

static status allocate_ring(struct loader *l)
{
    int64_t tokens = l->options.sequence_tokens, bytes = compute_slot_bytes(&l->options);
    l->slots = compute_slot_count(&l->options);
    TRY(memory_allocate_array(&l->memory, (size_t)l->slots, (size_t)bytes, "micro-batches"));
    TRY(ALLOCATE(l->ring, l->slots, "micro-batches"));
    TRY(ALLOCATE(l->window, tokens + 1, "a window"));
    TRY(ALLOCATE(l->document_starts, tokens, "the document starts of a window"));
    TRY(ALLOCATE(l->loss_mask, tokens, "the loss mask of an example"));
    TRY(has_example(&l->options) ? allocate_example(l) : STATUS_OK);
    if (loader_is_denoising(&l->options)) {
        TRY(ALLOCATE(l->denoise_memory, 4 * tokens, "the corruption of a window"));
    }
    for (int64_t i = 0; i < l->slots; i++) {
        set_slot_arrays(&l->options, &l->ring[i], (char *)l->memory + i * bytes);
    }
    return STATUS_OK;
}

static void *run_thread(void *argument)
{
    struct loader *l = argument;
    bool more = true;
    while (more) {
        pthread_mutex_lock(&l->mutex);
        /* the caller of loader_next may use the slot before `taken`; do not fill it */
        while (!l->stop && l->filled - l->taken >= l->slots - 1) {
            pthread_cond_wait(&l->slot_freed, &l->mutex);
        }
        bool stop = l->stop;
        pthread_mutex_unlock(&l->mutex);
        if (stop) {
            break;
        }
        struct loader_slot *s =
            &l->ring[l->filled % l->slots]; /* only this thread changes `filled` */
        s->failed = loader_fill(l, s) != STATUS_OK;
        more = !s->failed && !s->end;
        pthread_mutex_lock(&l->mutex);
        if (s->failed) {
            status_take(&l->note);
        }
        l->filled++;
        pthread_cond_signal(&l->slot_filled);
        pthread_mutex_unlock(&l->mutex);
    }
    return NULL;
}

static status start_thread(struct loader *l)
{
    int failed = thread_start(&l->thread, run_thread, l);
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start the thread of the loader: %s",
            strerror(failed));
    l->thread_runs = true;
    return STATUS_OK;
}

/* Waits until the next slot is filled, and returns it. The caller holds the mutex. */
static struct loader_slot *wait_for_slot(struct loader *l)
{
    while (l->filled == l->taken) {
        pthread_cond_wait(&l->slot_filled, &l->mutex);
    }
    return &l->ring[l->taken % l->slots];
}

static status wait_for_first_slot(struct loader *l)
{
    pthread_mutex_lock(&l->mutex);
    bool failed = wait_for_slot(l)->failed;
    pthread_mutex_unlock(&l->mutex);
    return failed ? status_restore(&l->note) : STATUS_OK;
}

status loader_open(const struct loader_options *options, struct loader **out)
{
    *out = NULL;
    TRY(check_options(options));
    REQUIRE(!loader_is_packed(options) || options->packing != NULL, STATUS_INTERNAL,
            "SFT examples require packing rules");
    TRY(h5file_require_thread_safety());
    struct loader *l;
    TRY(ALLOCATE(l, 1, "a loader"));
    l->options = *options;
    l->rules = options->packing != NULL ? *options->packing : (struct packing_rules){0};
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->slot_filled, NULL);
    pthread_cond_init(&l->slot_freed, NULL);
    status result = STATUS_OK;
    TRY_GOTO(result, failed, open_sources(l));
    TRY_GOTO(result, failed, compute_fingerprint(l));
    TRY_GOTO(result, failed, allocate_ring(l));
    l->options.sources = NULL;
    l->options.packing = NULL;
    l->options.tokenizer_sha256 = NULL;
    l->options.labels_sha256 = NULL;
    loader_begin_step(l, l->options.first_sample);
    TRY_GOTO(result, failed, start_thread(l));
    TRY_GOTO(result, failed, wait_for_first_slot(l));
    *out = l;
    return STATUS_OK;
failed:
    loader_close(&l);
    return result;
}

status loader_close(struct loader **loader)
{
    struct loader *l = *loader;
    if (l == NULL) {
        return STATUS_OK;
    }
    *loader = NULL;
    if (l->thread_runs) {
        pthread_mutex_lock(&l->mutex);
        l->stop = true;
        pthread_cond_signal(&l->slot_freed);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    status result = STATUS_OK;
    for (int i = 0; i < SAMPLE_ORDER_SOURCES_MAX; i++) {
        KEEP_FIRST(result, shard_set_close(&l->sets[i]));
        packing_destroy(&l->packs[i]);
    }
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->slot_filled);
    pthread_cond_destroy(&l->slot_freed);
    free(l->ring);
    free(l->memory);
    free(l->window);
    free(l->document_starts);
    free(l->loss_mask);
    free(l->example_memory);
    free(l->denoise_memory);
    free(l);
    return result;
}

int64_t loader_samples(const struct loader *loader)
{
    return sample_order_epoch_samples(&loader->order);
}

double loader_source_share(const struct loader *l, int source, int64_t *examples)
{
    const struct sample_order *order = &l->order;
    uint64_t own = order->weight_offsets[source + 1] - order->weight_offsets[source];
    *examples = order->samples[source];
    return (double)own / (double)order->weight_offsets[order->sources];
}

int64_t loader_tokens(const struct loader *loader)
{
    int64_t tokens = 0;
    for (int i = 0; i < loader->order.sources; i++) {
        tokens += shard_set_tokens(loader->sets[i]);
    }
    return tokens;
}

struct packing_report loader_packing_report(const struct loader *loader)
{
    return loader->packing;
}

const char *loader_fingerprint(const struct loader *loader)
{
    return loader->fingerprint;
}

void loader_locate(const struct loader *loader, int64_t number, char *text, int bytes)
{
    struct sample_position position = sample_order_find(&loader->order, number);
    if (loader->packs[position.source] != NULL) {
        struct packing_epoch epoch = loader_packing_epoch(loader, &position);
        packing_locate(loader->packs[position.source], &epoch, loader->sets[position.source],
                       position.sample, text, bytes);
        return;
    }
    shard_set_locate(loader->sets[position.source], position.sample, position.shift, text, bytes);
}

status loader_next(struct loader *loader, struct batch *out, bool *last, bool *end)
{
    pthread_mutex_lock(&loader->mutex);
    if (loader->filled == loader->taken) {
        double began = clock_seconds();
        wait_for_slot(loader);
        loader->stall_seconds += clock_seconds() - began;
    }
    struct loader_slot *s = &loader->ring[loader->taken % loader->slots];
    if (!s->failed && !s->end) { /* a failed or final slot is returned again by later calls */
        loader->taken++;
        pthread_cond_signal(&loader->slot_freed);
    }
    pthread_mutex_unlock(&loader->mutex);
    *out = s->batch;
    *last = s->last;
    *end = s->end;
    return s->failed ? status_restore(&loader->note) : STATUS_OK;
}

double loader_stall_seconds(const struct loader *loader)
{
    return loader->stall_seconds;
}
