/* Sequences in the slots of one key-value cache, and the forward passes that extend them. Private
 * to trainer/inference: engine.c samples their tokens, beam_search.c moves them between slots.
 *
 * On CPUs, a pass has the rows of one prompt, or one row of each of at most KERNELS_FEW_ROWS
 * sequences. The logits of a sequence therefore do not depend on the sequences in other slots. On
 * GPUs, a pass has one row of each of as many sequences as the model has rows. */
#pragma once

#include "base/device/mirror.h"
#include "comm/comm.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/model/cache.h"
#include "trainer/model/model.h"

struct slots_sequence {
    struct token_list tokens; /* prompt and new tokens */
    struct token_list source; /* of the encoder; empty after it has read them, and in decoders */
    int64_t prompt_tokens;
    int64_t window;      /* first token that the model reads */
    int64_t limit;       /* maximum tokens with prompt */
    bool is_used;        /* the slot holds a sequence */
    bool is_prompt_read; /* the cache holds the whole prompt */
    bool is_ended;       /* it gets no more tokens */
    float *logits;       /* host, f32 [V]: of its next token; valid until the next pass */
};

struct slots_limits {
    int64_t slots;
    int64_t max_tokens;    /* of the window of a sequence, at most the positions of the model */
    int64_t source_tokens; /* of the longest source; 0: the model has no encoder */
    int64_t chunk_tokens;  /* maximum rows of a pass that reads a prompt */
    int64_t logits_rows;   /* rows of logits of a pass, at least slots */
    bool use_cache;        /* false: recompute the whole sequence for each token */
};

struct slots {
    struct kernels *kernels;
    struct model *model;
    struct slots_limits limits;
    struct model_cache *cache;
    struct slots_sequence *sequences;  /* [slots] */
    int64_t *counts;                   /* [slots] rows of this pass */
    int32_t *inputs;                   /* [slots] newest tokens */
    struct mirror logits_mirror;       /* f32 [logits_rows, logits_stride] */
    int64_t vocabulary, logits_stride; /* the stride is at least V */
    int64_t logits_count;              /* rows in use */
    /* on the device, f32 [rows of this rank's vocabulary shard]; NULL: one rank has all */
    float *shard_logits;
    size_t shard_bytes;
};

/* slots_create - allocate the cache and the logits.
 *
 * Memory    d is zero before; the caller calls slots_destroy, also after an error. k and m must
 *           outlive it */
status slots_create(struct slots *d, struct kernels *k, struct model *m,
                    const struct slots_limits *limits);

/* slots_destroy - free everything. */
void slots_destroy(struct slots *d);

/* slots_begin - put a sequence into a free slot. `source` is copied. NULL: there is no source,
 * or model_cache_reorder sets it later.
 *
 * Units     limit: maximum tokens with prompt */
status slots_begin(struct slots *d, int64_t slot, const struct token_list *source,
                   const struct token_list *prompt, int64_t limit);

/* slots_release - remove the sequence of a slot. */
void slots_release(struct slots *d, int64_t slot);

/* slots_kept_tokens - return how many tokens of a full sequence remain as context. */
static inline int64_t slots_kept_tokens(int64_t positions)
{
    return (positions + 1) / 2;
}

/* slots_is_running - return whether a slot holds a sequence that gets another token. */
bool slots_is_running(const struct slots *d, int64_t slot);

/* slots_read_chunk - extend the cache of a sequence by the next chunk of its tokens. The encoder
 * reads its source first.
 *
 * Shapes    *hidden [*rows, C]: the rows of the chunk; the first one is token *first
 * Order     collective over the tensor-parallel group, as all passes */
status slots_read_chunk(struct slots *d, int64_t slot, struct tensor *hidden, int64_t *first,
                        int64_t *rows);

/* slots_is_read - return whether the cache of a sequence holds all its tokens. */
bool slots_is_read(const struct slots *d, int64_t slot);

/* slots_begin_pass - release the logits of the previous pass. */
void slots_begin_pass(struct slots *d);

/* slots_read_logits - compute the logits of rows [first, first + count) of hidden.
 *
 * Shapes    *out f32 [count, logits_stride], on the host, valid until slots_begin_pass
 * Units     count: all calls of a pass together at most logits_rows */
status slots_read_logits(struct slots *d, struct tensor hidden, int64_t first, int64_t count,
                         float **out);

/* slots_read_all - extend the cache of a sequence by all its tokens, then compute its logits. */
status slots_read_all(struct slots *d, int64_t slot);

/* slots_advance - compute the next logits of every running sequence with a new token. If the
 * window of a sequence is full, it moves to its last half and is read again. */
status slots_advance(struct slots *d);
