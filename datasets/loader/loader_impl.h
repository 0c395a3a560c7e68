/* The loader's inside: the ring, and what its thread knows (loader.c), which fills the slots (loader_fill.c). */
#pragma once

#include <pthread.h>

#include "base/hash.h"
#include "datasets/loader/loader.h"
#include "datasets/loader/order.h"
#include "datasets/shard/shard_set.h"

struct slot {
    struct batch batch;
    bool last, end, failed;
    int32_t *inputs, *targets, *positions, *cu_rows;
    int32_t *segment_ids, *next_sentence, *masked_rows,
        *masked_ids;       /* of sentence pairs, and tasks */
    int32_t *example_rows; /* of tasks; so are the next */
    float *numbers;
    int64_t *samples;
    double *reference; /* of preference pairs; so is the next one */
    int32_t *branches;
};

struct loader {
    struct loader_options options; /* its pointers are not used after loader_open */
    struct shard_set *sets[ORDER_SOURCES_MAX];
    struct packing *packs[ORDER_SOURCES_MAX]; /* NULL: not packed */
    struct packing_rules rules;
    struct packing_report packing;
    struct order order;
    int64_t limit; /* samples of the run; INT64_MAX: none */
    char fingerprint[HASH_TEXT_BYTES];

    /* the thread's own */
    int64_t step_first, next, share_end;
    int64_t next_row; /* of packs: the global index of the row behind the first `counted` samples */
    bool share_known; /* looked ahead, and these are its sums: */
    struct batch_share share;
    int64_t rows_before;   /* of the share's first `counted` samples; with `deal` of the step's */
    int64_t masked_before; /* likewise */
    int64_t counted;       /* of the run */
    int32_t *window;       /* [T + 1] */
    int32_t *starts;       /* [T] */
    uint32_t *marks;       /* [T] of a packed example */
    struct example example;
    int32_t *example_memory; /* of ids, segments, predictions, and scratch for masking */

    int64_t slots;
    struct slot *ring;
    void *memory;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t mutex;
    pthread_cond_t filled_one, freed_one;
    int64_t filled,
        taken; /* slots in all; filled - taken are ready, the one before `taken` is held */
    bool stop;
    struct status_note note; /* of a failed slot */
    double stall_seconds;
};

static inline bool loader_is_masked(const struct loader_options *o)
{
    return o->kind == EXAMPLE_SENTENCE_PAIRS;
}

static inline bool loader_is_task(const struct loader_options *o)
{
    return o->kind >= EXAMPLE_CLASSIFY;
}

/* Texts of an example at most, each of sequence_tokens at most. */
static inline int64_t loader_texts(const struct loader_options *o)
{
    bool two = o->kind == EXAMPLE_PREFERENCE_PAIRS || o->kind == EXAMPLE_EMBED;
    return two ? 2 : o->kind == EXAMPLE_CHOOSE && o->texts > 0 ? o->texts : 1;
}

/* Whether a task's head reads one row of each text, not all of them. */
static inline bool loader_reads_one(const struct loader_options *o)
{
    return o->kind == EXAMPLE_CLASSIFY || o->kind == EXAMPLE_REGRESS || o->kind == EXAMPLE_CHOOSE;
}

/* Rows of an example at most that are predicted, or that the head of a task reads. */
static inline int64_t loader_predictions(const struct loader_options *o)
{
    int64_t texts = loader_texts(o);
    return !loader_is_task(o)    ? o->masking.most
           : loader_reads_one(o) ? texts
                                 : texts * o->sequence_tokens;
}

/* Labels of an example at most: one for each of those rows, or the two ends of an answer and its marks. */
static inline int64_t loader_labels(const struct loader_options *o)
{
    return loader_predictions(o) + 2;
}

static inline bool loader_is_preference(const struct loader_options *o)
{
    return o->kind == EXAMPLE_PREFERENCE_PAIRS;
}

static inline bool loader_is_packed(const struct loader_options *o)
{
    return o->kind == EXAMPLE_SFT;
}

/* loader_begin_step - this rank's share of the step that begins with sample `first`. */
void loader_begin_step(struct loader *l, int64_t first);

/* loader_epoch - of a packed sample. */
struct packing_epoch loader_epoch(const struct loader *l, const struct order_place *place);

/* loader_fill - the next micro-batch into a slot. */
status loader_fill(struct loader *l, struct slot *s);
