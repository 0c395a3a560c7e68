/* The loader: a ring of micro-batches that one thread fills and loader_next empties.
 *
 * The thread alone touches the shards and the position in the data; the ring's counters are the only
 * state that both sides share, under one mutex. A slot that is handed out stays the caller's until the
 * next call. An error ends the thread and is delivered in its place, after the good batches before it. */
#include "datasets/loader/loader_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "datasets/shard/h5file.h"
#include "datasets/loader/order.h"
#include "datasets/shard/shard_set.h"

enum {
    OPEN_SHARDS = 32,       /* at once, over all sources */
    AHEAD_BYTES = 16 << 20, /* read ahead about this much ... */
    AHEAD_LEAST = 4,        /* ... and between these numbers of micro-batches */
    AHEAD_MOST = 64,
    SHARD_BYTES = 700 << 10 /* one open shard: two chunks and HDF5's tables, as measured */
};

/* Whether an example is read whole before it is a part of the batch. */
static bool has_example(const struct loader_options *o)
{
    return loader_is_masked(o) || loader_is_preference(o) || loader_is_task(o);
}

/* Of one example: ids of three parts; or ids, segments, positions, labels, and twice its tokens for masking. */
static int64_t example_values(const struct loader_options *o)
{
    if (loader_is_preference(o)) {
        return 2 * o->sequence_tokens;
    }
    if (loader_is_task(o)) {
        return loader_texts(o) * (2 * o->sequence_tokens + 1) + 1 + loader_predictions(o) +
               loader_labels(o);
    }
    return 4 * o->sequence_tokens + 2 * loader_predictions(o);
}

static int64_t slot_rows(const struct loader_options *o)
{
    return o->micro_sequences * o->sequence_tokens * loader_texts(o);
}

static int64_t slot_bytes(const struct loader_options *o)
{
    int64_t rows = slot_rows(o);
    int64_t values = 3 * rows + rows + 1;
    if (loader_is_masked(o) || loader_is_task(o)) {
        values += rows + o->micro_sequences * (1 + loader_predictions(o) + loader_labels(o));
    }
    values += loader_is_task(o) ? 2 * o->micro_sequences + 1 : 0;
    values += loader_is_preference(o) ? 5 * o->micro_sequences + 1 : 0;
    int64_t bytes =
        values * (int64_t)sizeof(int32_t) + o->micro_sequences * (int64_t)sizeof(int64_t);
    bytes += loader_is_preference(o) ? 2 * o->micro_sequences * (int64_t)sizeof(double) : 0;
    return (bytes + 63) / 64 * 64;
}

static int64_t slot_count(const struct loader_options *o)
{
    if (o->ahead_batches > 0) {
        return o->ahead_batches + 1; /* one is in the caller's hands */
    }
    int64_t count = AHEAD_BYTES / slot_bytes(o);
    count = count < AHEAD_LEAST ? AHEAD_LEAST : count;
    return (count > AHEAD_MOST ? AHEAD_MOST : count) + 1;
}

/* Of each source at once. */
static int open_limit(const struct loader_options *o)
{
    int each = OPEN_SHARDS / o->source_count;
    return each > 1 ? each : 1;
}

/* Of all sources; one of each whose shards are not there yet. */
static int64_t open_shards(const struct loader_options *o)
{
    int64_t count = 0;
    for (int i = 0; i < o->source_count; i++) {
        int found = shard_set_count(o->sources[i].path), most = open_limit(o);
        count += found < 1 ? 1 : found < most ? found : most;
    }
    return count;
}

int64_t loader_memory_bytes(const struct loader_options *options)
{
    int64_t window = (3 * options->sequence_tokens + 1) * (int64_t)sizeof(int32_t);
    window += has_example(options) ? example_values(options) * (int64_t)sizeof(int32_t) : 0;
    int64_t slots = slot_count(options) * (slot_bytes(options) + (int64_t)sizeof(struct slot));
    return slots + window + open_shards(options) * SHARD_BYTES;
}

static status check_options(const struct loader_options *o)
{
    REQUIRE(o->source_count > 0 && o->source_count <= ORDER_SOURCES_MAX, STATUS_RECIPE,
            "%d data sources; 1 to %d are possible", o->source_count, ORDER_SOURCES_MAX);
    bool sizes = o->sequence_tokens > 0 && o->global_sequences > 0 && o->micro_sequences > 0 &&
                 o->sequence_tokens < INT32_MAX / 2 / o->micro_sequences / loader_texts(o);
    REQUIRE(sizes, STATUS_RECIPE, "a batch of %lld sequences of %lld tokens, %lld at a time",
            (long long)o->global_sequences, (long long)o->sequence_tokens,
            (long long)o->micro_sequences);
    REQUIRE(o->ranks > 0 && o->rank >= 0 && o->rank < o->ranks, STATUS_INTERNAL, "rank %d of %d",
            o->rank, o->ranks);
    REQUIRE(o->first_sample >= 0 && o->limit_samples >= LOADER_ONE_EPOCH && o->ahead_batches >= 0,
            STATUS_INTERNAL, "first sample %lld, limit %lld, %lld ahead",
            (long long)o->first_sample, (long long)o->limit_samples, (long long)o->ahead_batches);
    const struct masking *m = &o->masking;
    bool known = m->kinds == NULL || (m->mask_id >= 0 && m->vocab_size <= o->vocab_size);
    bool masks = known && m->probability > 0.0 && m->probability <= 1.0 && m->most > 0 &&
                 m->most <= o->sequence_tokens;
    REQUIRE(
        !loader_is_masked(o) || masks, STATUS_RECIPE,
        "masking of %g of %lld tokens, at most %lld: the share must be above 0 and at most 1, the "
        "limit 1 to the sequence length, and the tokenizer must have a [MASK]",
        m->probability, (long long)o->sequence_tokens, (long long)m->most);
    return STATUS_OK;
}

/* The examples of a source into packs. */
static status pack_source(struct loader *l, int source)
{
    struct packing_report one, *all = &l->packing;
    TRY(packing_scan(l->sets[source], &l->rules, l->options.sequence_tokens, &l->packs[source],
                     &one));
    all->examples += one.examples;
    all->cut += one.cut;
    all->cut_tokens += one.cut_tokens;
    all->empty += one.empty;
    all->packs += one.packs;
    all->tokens += one.tokens;
    return STATUS_OK;
}

static status open_sources(struct loader *l)
{
    const struct loader_options *o = &l->options;
    int64_t samples[ORDER_SOURCES_MAX];
    double weights[ORDER_SOURCES_MAX];
    for (int i = 0; i < o->source_count; i++) {
        struct shard_set_options set = {.path = o->sources[i].path,
                                        .sequence_tokens = o->sequence_tokens,
                                        .vocab_size = o->vocab_size,
                                        .tokenizer_sha256 = o->tokenizer_sha256,
                                        .labels_sha256 = o->labels_sha256,
                                        .kind = o->kind,
                                        .open_limit = open_limit(o)};
        TRY(shard_set_open(&set, &l->sets[i]));
        TRY(loader_is_packed(o) ? pack_source(l, i) : STATUS_OK);
        samples[i] =
            loader_is_packed(o) ? packing_packs(l->packs[i]) : shard_set_samples(l->sets[i]);
        weights[i] = o->sources[i].weight;
    }
    TRY(order_set(&l->order, samples, weights, o->source_count, o->seed, o->shuffle));
    l->order.window =
        o->kind != EXAMPLE_TEXT ? 0 : o->sequence_tokens; /* examples are not cut at other places */
    int64_t epoch = order_epoch(&l->order);
    l->limit = o->limit_samples > 0 ? o->limit_samples : INT64_MAX;
    if (o->limit_samples == LOADER_ONE_EPOCH || (!o->shuffle && o->limit_samples > epoch)) {
        l->limit = epoch;
    }
    return STATUS_OK;
}

static status hash_masking(const struct masking *m, struct hash *hash)
{
    char text[256];
    int used = snprintf(text, sizeof text, "examples masked %.17g most %lld whole %d mask %d\n",
                        m->probability, (long long)m->most, m->whole_words, m->mask_id);
    TRY(hash_update(hash, text, (size_t)used));
    return m->kinds != NULL ? hash_update(hash, m->kinds, (size_t)m->vocab_size) : STATUS_OK;
}

static status hash_task(const struct loader_options *o, struct hash *hash)
{
    char text[128];
    int used = snprintf(text, sizeof text, "%s, %s rows\n", example_format_of(o->kind)->name,
                        o->last_rows ? "last" : "first");
    return hash_update(hash, text, (size_t)used);
}

static status hash_packing(const struct packing_rules *rules, struct hash *hash)
{
    char text[128];
    int used = snprintf(text, sizeof text, "packed %d most %lld learn %u\n", (int)rules->kind,
                        (long long)rules->max_length, rules->learn);
    return hash_update(hash, text, (size_t)used);
}

static status take_fingerprint(struct loader *l)
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    char text[256];
    int used =
        snprintf(text, sizeof text, "bireme-data 1 seed %llu tokens %lld shuffle %d mask %d\n",
                 (unsigned long long)l->options.seed, (long long)l->options.sequence_tokens,
                 l->options.shuffle, l->options.document_mask);
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
    for (int i = 0; i < l->order.sources; i++) {
        used = snprintf(text, sizeof text, "source %llu of %llu\n",
                        (unsigned long long)(l->order.before[i + 1] - l->order.before[i]),
                        (unsigned long long)l->order.before[l->order.sources]);
        TRY_GOTO(result, failed, hash_update(hash, text, (size_t)used));
        TRY_GOTO(result, failed, shard_set_hash(l->sets[i], hash));
    }
    return hash_finish(&hash, l->fingerprint);
failed:
    hash_destroy(&hash);
    return result;
}

/* Ids, segments, where texts begin, the rows that are read, and labels. */
static void arrange_task(struct loader *l)
{
    int64_t texts = loader_texts(&l->options), room = texts * l->options.sequence_tokens;
    int32_t *memory = l->example_memory;
    l->example = (struct example){.room = room,
                                  .ids = memory,
                                  .segments = memory + room,
                                  .texts_room = texts,
                                  .text_first = memory + 2 * room,
                                  .predictions_room = loader_predictions(&l->options),
                                  .positions = memory + 2 * room + texts + 1};
    l->example.labels = l->example.positions + l->example.predictions_room;
}

static status make_example(struct loader *l)
{
    int64_t tokens = l->options.sequence_tokens, most = loader_predictions(&l->options);
    size_t values = (size_t)example_values(&l->options);
    l->example_memory = malloc(values * sizeof *l->example_memory);
    REQUIRE(l->example_memory != NULL, STATUS_INTERNAL, "out of memory: an example");
    l->example = (struct example){.room = loader_is_preference(&l->options) ? 2 * tokens : tokens,
                                  .ids = l->example_memory};
    if (loader_is_preference(&l->options)) {
        return STATUS_OK;
    }
    if (loader_is_task(&l->options)) {
        arrange_task(l);
        return STATUS_OK;
    }
    l->example = (struct example){.room = tokens,
                                  .ids = l->example_memory,
                                  .segments = l->example_memory + tokens,
                                  .predictions_room = most,
                                  .positions = l->example_memory + 4 * tokens,
                                  .labels = l->example_memory + 4 * tokens + most};
    return STATUS_OK;
}

static status make_ring(struct loader *l)
{
    int64_t batch = l->options.micro_sequences, tokens = l->options.sequence_tokens;
    int64_t rows = slot_rows(&l->options), bytes = slot_bytes(&l->options);
    l->slots = slot_count(&l->options);
    l->ring = calloc((size_t)l->slots, sizeof *l->ring);
    l->memory = malloc((size_t)(l->slots * bytes));
    l->window = malloc((size_t)(tokens + 1) * sizeof *l->window);
    l->starts = malloc((size_t)tokens * sizeof *l->starts);
    l->marks = malloc((size_t)tokens * sizeof *l->marks);
    bool held = l->ring != NULL && l->memory != NULL && l->window != NULL && l->starts != NULL &&
                l->marks != NULL;
    REQUIRE(held, STATUS_INTERNAL, "out of memory: %lld micro-batches of %lld bytes",
            (long long)l->slots, (long long)bytes);
    TRY(has_example(&l->options) ? make_example(l) : STATUS_OK);
    for (int64_t i = 0; i < l->slots; i++) {
        struct slot *s = &l->ring[i];
        s->samples = (int64_t *)((char *)l->memory + i * bytes); /* the widest type first */
        s->reference = (double *)(s->samples + batch);
        s->inputs = (int32_t *)(s->reference + (loader_is_preference(&l->options) ? 2 * batch : 0));
        s->targets = s->inputs + rows;
        s->positions = s->targets + rows;
        s->cu_rows = s->positions + rows;
        if (loader_is_preference(&l->options)) {
            s->branches = s->cu_rows + rows + 1;
            s->masked_rows = s->branches + 2 * batch;
            s->example_rows = s->masked_rows + 2 * batch;
        }
        if (loader_is_masked(&l->options) || loader_is_task(&l->options)) {
            s->segment_ids = s->cu_rows + rows + 1;
            s->next_sentence = s->segment_ids + rows;
            s->masked_rows = s->next_sentence + batch;
            s->masked_ids = s->masked_rows + batch * loader_predictions(&l->options);
            s->example_rows = s->masked_ids + batch * loader_labels(&l->options);
            s->numbers = (float *)(void *)(s->example_rows + batch + 1);
        }
    }
    return STATUS_OK;
}

static void *read_ahead(void *argument)
{
    struct loader *l = argument;
    bool more = true;
    while (more) {
        pthread_mutex_lock(&l->mutex);
        /* the slot before `taken` may be in the caller's hands: filling stops one short of it */
        while (!l->stop && l->filled - l->taken >= l->slots - 1) {
            pthread_cond_wait(&l->freed_one, &l->mutex);
        }
        bool stop = l->stop;
        pthread_mutex_unlock(&l->mutex);
        if (stop) {
            break;
        }
        struct slot *s = &l->ring[l->filled % l->slots]; /* only this thread changes `filled` */
        s->failed = loader_fill(l, s) != STATUS_OK;
        more = !s->failed && !s->end;
        pthread_mutex_lock(&l->mutex);
        if (s->failed) {
            status_take(&l->note);
        }
        l->filled++;
        pthread_cond_signal(&l->filled_one);
        pthread_mutex_unlock(&l->mutex);
    }
    return NULL;
}

static status start_thread(struct loader *l)
{
    int failed = thread_start(&l->thread, read_ahead, l);
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start the loader's thread: %s", strerror(failed));
    l->thread_runs = true;
    return STATUS_OK;
}

/* With the mutex held: the slot that comes next, filled. */
static struct slot *wait_for_slot(struct loader *l)
{
    while (l->filled == l->taken) {
        pthread_cond_wait(&l->filled_one, &l->mutex);
    }
    return &l->ring[l->taken % l->slots];
}

static status wait_for_first(struct loader *l)
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
            "examples for fine-tuning without rules for packing");
    TRY(h5file_require_threads());
    struct loader *l = calloc(1, sizeof *l);
    REQUIRE(l != NULL, STATUS_INTERNAL, "out of memory: a loader");
    l->options = *options;
    l->rules = options->packing != NULL ? *options->packing : (struct packing_rules){0};
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->filled_one, NULL);
    pthread_cond_init(&l->freed_one, NULL);
    status result = STATUS_OK;
    TRY_GOTO(result, failed, open_sources(l));
    TRY_GOTO(result, failed, take_fingerprint(l));
    TRY_GOTO(result, failed, make_ring(l));
    l->options.sources = NULL;
    l->options.packing = NULL;
    l->options.tokenizer_sha256 = NULL;
    l->options.labels_sha256 = NULL;
    loader_begin_step(l, l->options.first_sample);
    TRY_GOTO(result, failed, start_thread(l));
    TRY_GOTO(result, failed, wait_for_first(l));
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
        pthread_cond_signal(&l->freed_one);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    status result = STATUS_OK;
    for (int i = 0; i < ORDER_SOURCES_MAX; i++) {
        KEEP_FIRST(result, shard_set_close(&l->sets[i]));
        packing_destroy(&l->packs[i]);
    }
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->filled_one);
    pthread_cond_destroy(&l->freed_one);
    free(l->ring);
    free(l->memory);
    free(l->window);
    free(l->starts);
    free(l->marks);
    free(l->example_memory);
    free(l);
    return result;
}

int64_t loader_samples(const struct loader *loader)
{
    return order_epoch(&loader->order);
}

int64_t loader_tokens(const struct loader *loader)
{
    int64_t tokens = 0;
    for (int i = 0; i < loader->order.sources; i++) {
        tokens += shard_set_tokens(loader->sets[i]);
    }
    return tokens;
}

struct packing_report loader_packing(const struct loader *loader)
{
    return loader->packing;
}

const char *loader_fingerprint(const struct loader *loader)
{
    return loader->fingerprint;
}

void loader_locate(const struct loader *loader, int64_t number, char *text, int bytes)
{
    struct order_place place = order_at(&loader->order, number);
    if (loader->packs[place.source] != NULL) {
        struct packing_epoch epoch = loader_epoch(loader, &place);
        packing_locate(loader->packs[place.source], &epoch, loader->sets[place.source],
                       place.sample, text, bytes);
        return;
    }
    shard_set_locate(loader->sets[place.source], place.sample, place.shift, text, bytes);
}

status loader_next(struct loader *loader, struct batch *out, bool *last, bool *end)
{
    pthread_mutex_lock(&loader->mutex);
    if (loader->filled == loader->taken) {
        double began = clock_seconds();
        wait_for_slot(loader);
        loader->stall_seconds += clock_seconds() - began;
    }
    struct slot *s = &loader->ring[loader->taken % loader->slots];
    if (!s->failed && !s->end) { /* those two stay where they are and come again */
        loader->taken++;
        pthread_cond_signal(&loader->freed_one);
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
