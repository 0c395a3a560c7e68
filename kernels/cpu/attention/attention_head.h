/* A head of a sequence in attention, and the keys to which its queries attend. */
#pragma once

#include "base/number.h"
#include "kernels/cpu/cpu.h"

enum {
    ATTENTION_QUERIES = 256, /* query rows for which the forward pass packs a tile of keys once */
    ATTENTION_KEYS = 64,     /* keys of a tile: whole vectors in every instruction set */
    ATTENTION_GROUP = 6,     /* rows of a register block */
    ATTENTION_TILE = 16,     /* rows, columns and pairs of an AMX register */
    ATTENTION_STEP = 2 * ATTENTION_TILE, /* numbers that an AMX instruction adds */
};

/* The bias of a call by distance, and the memory for its gradient (attention_bias.h). Element i
 * belongs to the distance i - (longest_k - 1). */
struct attention_distances {
    int64_t span;     /* number of distances */
    float *values;    /* [H][span] */
    int32_t *buckets; /* [span] */
    float *parts;     /* [PARTS][H][buckets] gradients; NULL: no gradient */
    void *sums;       /* [threads][span] gradients of one head, thread_bytes apart */
    size_t thread_bytes;
};

/* One head of one sequence. Rows of q, o and lse start at first_q, rows of keys and values
 * at first_k. */
struct attention_head {
    const struct attention *a;
    int64_t head, kv_head;
    int64_t first_q, queries;
    int64_t first_k, keys;
    struct cpu_range hidden; /* keys of the first response, hidden from queries after them */
    const float *bias;       /* bias[j - i] of query i and key j; NULL: none */
    bool is_modified;        /* the scores have a soft-cap or a bias */
    float score_scale;       /* factor of the scores in a tile; 1 if they are modified */
};

/* attention_distance_zero - return the element of the distances for j - i = 0 in a sequence. */
static inline int64_t attention_distance_zero(const struct attention *a, int64_t queries,
                                              int64_t keys)
{
    return a->longest_k - 1 - (keys - queries);
}

/* attention_make_head - describe head `head` of a sequence. */
static inline struct attention_head attention_make_head(const struct attention *a,
                                                        const struct attention_distances *d,
                                                        int64_t sequence, int64_t head)
{
    int64_t queries = a->cu_q[sequence + 1] - a->cu_q[sequence];
    int64_t keys = a->cu_k[sequence + 1] - a->cu_k[sequence];
    bool is_modified = a->softcap > 0 || d->span > 0;
    const int32_t *offsets =
        a->shared_prefix_offsets != NULL ? a->shared_prefix_offsets + 2 * sequence : NULL;
    return (struct attention_head){
        .hidden = {offsets != NULL ? offsets[0] : 0, offsets != NULL ? offsets[1] : 0},
        .a = a,
        .head = head,
        .kv_head = head / (a->heads / a->kv_heads),
        .first_q = a->cu_q[sequence],
        .queries = queries,
        .first_k = a->cu_k[sequence],
        .keys = keys,
        .bias = d->span > 0 ? d->values + head * d->span + attention_distance_zero(a, queries, keys)
                            : NULL,
        .is_modified = is_modified,
        .score_scale = is_modified ? 1 : a->scale,
    };
}

/* attention_dropout_element - return the dropout element index of a query and key 0. */
static inline int64_t attention_dropout_element(const struct attention_head *h, int64_t query)
{
    int heads = h->a->all_heads > 0 ? h->a->all_heads : h->a->heads;
    int64_t pitch = attention_dropout_pitch(h->a->longest_k);
    return ((h->first_q + query) * heads + h->a->first_head + h->head) * pitch;
}

/* attention_visible_keys - return the keys [first, last) of query i; both ends increase with i. */
static inline struct cpu_range attention_visible_keys(const struct attention_head *h, int64_t i)
{
    int64_t position = i + h->keys - h->queries, window = h->a->window; /* of the key that is i */
    int64_t last = h->a->causal ? position + 1 : window > 0 ? position + window : h->keys;
    last = number_clamp(last, 0, h->keys);
    int64_t first = window > 0 && position >= window ? position + 1 - window : 0;
    return (struct cpu_range){number_min(first, last), last};
}

/* attention_is_tile_hidden - return whether the keys [first, last) are hidden from all rows from
 * `query` on, because they belong to the first of two responses. */
static inline bool attention_is_tile_hidden(const struct attention_head *h, int64_t query,
                                            int64_t first, int64_t last)
{
    return query >= h->hidden.last && first >= h->hidden.first && last <= h->hidden.last;
}

/* The hidden keys [low, high) of a query within a tile; empty if low >= high. */
struct attention_gap {
    int32_t low, high;
};

/* attention_get_gap - return the keys of the tile at `key` to which query i does not attend. */
static inline struct attention_gap attention_get_gap(const struct attention_head *h, int64_t i,
                                                     int64_t key)
{
    if (i < h->hidden.last || key >= h->hidden.last || key + ATTENTION_KEYS <= h->hidden.first) {
        return (struct attention_gap){0, 0};
    }
    int64_t low = h->hidden.first - key, high = h->hidden.last - key;
    return (struct attention_gap){(int32_t)number_max(low, 0),
                                  (int32_t)number_min(high, ATTENTION_KEYS)};
}
