/* The relative position bias of attention on the CPU.
 *
 * The table of buckets is expanded to one value for each distance of a key from a query. The keys
 * of a row then read adjacent values. The backward pass first adds the gradients of the scores of a
 * head by distance, a row at a time, and then by bucket.
 *
 * Order     The sequences i, i + PARTS, ... of a head belong to part i and to one thread. The parts
 *           are added in order, so the number of threads does not change the result. */
#pragma once

#include "kernels/cpu/attention/attention_tile.h"

/* attention_bias_span - return the number of distances of a call. The last ones are padding, for
 * whole vectors. */
static inline int64_t attention_bias_span(int64_t longest_q, int64_t longest_k)
{
    return longest_q + longest_k + ATTENTION_KEYS;
}

/* attention_bias_part_floats - return the floats of the partial gradients of a table. */
static inline size_t attention_bias_part_floats(int heads, int64_t buckets)
{
    return (size_t)(ATTENTION_BIAS_PARTS * heads * buckets);
}

/* attention_bias_scratch - return the scratch memory for the largest call of a context. */
static inline size_t attention_bias_scratch(int threads, const struct kernels_limits *limits)
{
    if (limits->bias_buckets == 0) {
        return 0;
    }
    size_t span = (size_t)attention_bias_span(limits->sequence, limits->sequence) * sizeof(float);
    size_t bytes = cpu_scratch_align((size_t)limits->heads * span) + cpu_scratch_align(span);
    if (limits->training) {
        size_t floats = attention_bias_part_floats(limits->heads, limits->bias_buckets);
        bytes +=
            cpu_scratch_align(floats * sizeof(float)) + (size_t)threads * cpu_scratch_align(span);
    }
    return bytes;
}

/* attention_bias_expand - write the bucket of each distance, and its bias for each head. */
static inline void attention_bias_expand(struct attention_distances *d, const struct attention *a)
{
    const struct tensor *t = &a->bias.table;
    for (int64_t i = 0; i < d->span; i++) {
        d->buckets[i] = attention_bucket(a, i - (a->longest_k - 1));
        const float *row = (const float *)t->data + d->buckets[i] * t->stride;
        for (int64_t head = 0; head < a->heads; head++) {
            d->values[head * d->span + i] = row[head];
        }
    }
}

/* attention_bias_make - expand the bias of a call; without a bias, *d is all 0.
 *
 * Memory    from the arena; with a gradient also `threads` sums by distance and the parts */
static inline status attention_bias_make(struct attention_distances *d, struct arena *scratch,
                                         const struct attention *a, bool gradient, int threads)
{
    *d = (struct attention_distances){0};
    if (a->bias.table.data == NULL) {
        return STATUS_OK;
    }
    d->span = attention_bias_span(a->longest_q, a->longest_k);
    size_t row_bytes = (size_t)d->span * sizeof(float);
    void *memory;
    TRY(arena_take(scratch, cpu_scratch_align((size_t)a->heads * row_bytes), &memory));
    d->values = memory;
    TRY(arena_take(scratch, cpu_scratch_align(row_bytes), &memory));
    d->buckets = memory;
    attention_bias_expand(d, a);
    if (!gradient || a->bias.gradient.data == NULL) {
        return STATUS_OK;
    }
    size_t part_bytes = attention_bias_part_floats(a->heads, a->bias.table.rows) * sizeof(float);
    TRY(arena_take(scratch, cpu_scratch_align(part_bytes), &memory));
    d->parts = memory;
    memset(d->parts, 0, part_bytes);
    d->thread_bytes = cpu_scratch_align(row_bytes);
    TRY(arena_take(scratch, (size_t)threads * d->thread_bytes, &memory));
    d->sums = memory;
    return STATUS_OK;
}

/* attention_bias_finish_head - add the sums of one head of one sequence to their part. */
static inline void attention_bias_finish_head(const struct attention_distances *d,
                                              const struct attention_head *h, int64_t sequence,
                                              const float *sums)
{
    int64_t buckets = h->a->bias.table.rows;
    float *part = d->parts + (sequence % ATTENTION_BIAS_PARTS * h->a->heads + h->head) * buckets;
    for (int64_t i = h->a->longest_k - h->keys; i < h->a->longest_k - 1 + h->queries; i++) {
        part[d->buckets[i]] += sums[i];
    }
}

/* attention_bias_finish - add all parts to the gradient of the table. */
static inline void attention_bias_finish(const struct attention_distances *d,
                                         const struct attention *a)
{
    int64_t buckets = a->bias.table.rows;
    for (int64_t b = 0; d->parts != NULL && b < buckets; b++) {
        for (int64_t head = 0; head < a->heads; head++) {
            float sum = 0;
            for (int64_t i = 0; i < ATTENTION_BIAS_PARTS; i++) {
                sum += d->parts[(i * a->heads + head) * buckets + b];
            }
            ((float *)a->bias.gradient.data)[b * a->bias.gradient.stride + head] += sum;
        }
    }
}
