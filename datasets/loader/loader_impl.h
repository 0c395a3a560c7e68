/* Internals of the loader: the ring buffer and the state of its thread (loader.c), and the
 * functions that fill slots (loader_fill.c). */
#pragma once

#include <pthread.h>

#include "base/hash.h"
#include "datasets/loader/loader.h"
#include "datasets/loader/sample_order.h"
#include "datasets/shard/shard_set.h"

/* A micro-batch in the ring buffer. loader.c lists the sizes of its arrays. */
struct loader_slot {
    struct batch batch;
    bool last, end, failed;
    int32_t *inputs, *targets, *positions, *cu_rows;
    int32_t *token_type_ids; /* sentence pairs, tasks */
    int32_t *output_rows;    /* sentence pairs, tasks, preference pairs */
    int32_t *example_rows;   /* tasks, preference pairs */
    int32_t *next_sentence;  /* sentence pairs */
    int32_t *labels;         /* tasks; for sentence pairs the ids of the masked tokens */
    int32_t *token_flags;    /* answer */
    int32_t *dataset_rows;   /* answer */
    float *float_labels;     /* tasks */
    int64_t *samples;
    double *reference_logps;                           /* preference pairs */
    int32_t *shared_prefix_offsets;                    /* preference pairs */
    int32_t *first_targets, *target_rows, *target_ids; /* preference pairs without a task head */
    int32_t *source_inputs, *source_positions, *source_cu_rows; /* seq2seq */
};

struct loader {
    struct loader_options options; /* its pointers are not used after loader_open */
    struct shard_set *sets[SAMPLE_ORDER_SOURCES_MAX];
    struct packing *packs[SAMPLE_ORDER_SOURCES_MAX]; /* NULL: not packed */
    struct packing_rules rules;
    struct packing_report packing;
    struct sample_order order;
    int64_t limit; /* samples of the run; INT64_MAX: no limit */
    char fingerprint[HASH_TEXT_BYTES];

    /* state of the thread; samples are counted from the start of the run */
    int64_t step_first_sample;
    int64_t next_sample; /* first sample of the next micro-batch */
    int64_t end_sample;  /* end of this rank's samples of the step; interleaved: end of the step */
    int64_t next_row;    /* packs, targets: global index of the first row after the `counted`
                          * samples */
    int64_t next_source_row; /* sources: the same */
    bool counts_known;       /* rank_counts is set, because the step was read in advance */
    struct batch_counts rank_counts;
    int64_t counted;          /* next_row and the counts include the samples before this one */
    int64_t rows_before;      /* rows of this rank's shard; when interleaved, rows of the step */
    int64_t outputs_before;   /* outputs, counted in the same way */
    int32_t *window;          /* [T + 1] */
    int32_t *document_starts; /* [T] */
    uint32_t *loss_mask;      /* [T] of a packed example */
    struct example example;
    int32_t *example_memory; /* arrays of `example`, and scratch memory for masking */
    int32_t *denoise_memory; /* [4 T] */

    int64_t slots;
    struct loader_slot *ring;
    void *memory; /* the arrays of all slots */
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t mutex;
    pthread_cond_t slot_filled, slot_freed;
    /* Slots filled and taken so far. filled - taken slots are ready; the slot before `taken` is in
     * use by the caller of loader_next. */
    int64_t filled, taken;
    bool stop;
    struct status_note note; /* error of a failed slot */
    double stall_seconds;
};

/* loader_is_masked - return whether samples are sentence pairs. */
static inline bool loader_is_masked(const struct loader_options *o)
{
    return o->kind == EXAMPLE_SENTENCE_PAIRS;
}

/* loader_is_task - return whether samples are examples for a task head. */
static inline bool loader_is_task(const struct loader_options *o)
{
    return o->kind >= EXAMPLE_CLASSIFY;
}

/* loader_max_texts - return the largest number of texts in an example. Each has at most
 * sequence_tokens tokens. */
static inline int64_t loader_max_texts(const struct loader_options *o)
{
    bool two = o->kind == EXAMPLE_PREFERENCE_PAIRS || o->kind == EXAMPLE_EMBED;
    return two ? 2 : o->kind == EXAMPLE_CHOOSE && o->max_texts > 0 ? o->max_texts : 1;
}

/* loader_reads_one_row - return whether a task head reads one row of each text, not all rows. */
static inline bool loader_reads_one_row(const struct loader_options *o)
{
    return o->kind == EXAMPLE_CLASSIFY || o->kind == EXAMPLE_REGRESS || o->kind == EXAMPLE_CHOOSE;
}

/* loader_max_predictions - return the largest number of rows of an example that are predicted, or
 * that the head of a task reads. */
static inline int64_t loader_max_predictions(const struct loader_options *o)
{
    int64_t texts = loader_max_texts(o);
    return !loader_is_task(o)        ? o->masking.max_predictions
           : loader_reads_one_row(o) ? texts
                                     : texts * o->sequence_tokens;
}

/* loader_max_labels - return the size of the label array of an example: one label for each row of
 * loader_max_predictions; for answer, the first and last token of the answer and the flags of
 * all tokens. */
static inline int64_t loader_max_labels(const struct loader_options *o)
{
    return loader_max_predictions(o) + 2;
}

/* loader_is_preference - return whether samples are preference pairs. */
static inline bool loader_is_preference(const struct loader_options *o)
{
    return o->kind == EXAMPLE_PREFERENCE_PAIRS;
}

/* loader_is_packed - return whether samples are packs of SFT examples. */
static inline bool loader_is_packed(const struct loader_options *o)
{
    return o->kind == EXAMPLE_SFT;
}

/* loader_is_denoising - return whether sources and targets are made from windows of texts. */
static inline bool loader_is_denoising(const struct loader_options *o)
{
    return o->denoise.kind != DENOISE_NONE;
}

/* loader_is_seq2seq - return whether samples are sources with targets. */
static inline bool loader_is_seq2seq(const struct loader_options *o)
{
    return o->kind == EXAMPLE_SEQ2SEQ || loader_is_denoising(o);
}

/* loader_begin_step - set the state of the thread to the step that begins with sample `first`. */
void loader_begin_step(struct loader *l, int64_t first);

/* loader_packing_epoch - return the permutation key for the pack at a position. */
struct packing_epoch loader_packing_epoch(const struct loader *l,
                                          const struct sample_position *position);

/* loader_fill - read the next micro-batch into a slot. */
status loader_fill(struct loader *l, struct loader_slot *s);
