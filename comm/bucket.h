/* Gradient buckets: the reduction of gradients over data-parallel ranks, overlapped with backward.
 *
 * Backward completes the gradients from the end of the flat buffer towards its start. As soon as
 * the range of a bucket is final, its collective starts and runs during the rest of backward.
 *
 * The buffer is [0, count) f32 elements. It is divided into segments (one per layer), and each
 * segment into buckets. The ranges are fixed, so that the same layout always adds the same
 * elements. In each bucket every rank owns a contiguous shard (partition.h). In ZeRO stages 1 and 2
 * (Rajbhandari et al. 2020, arXiv:1910.02054) a rank receives only the sums of its shards, which is
 * all that its optimizer needs. The updated weights are gathered by the same shards. Every sum has
 * a fixed order in host memory (comm.h).
 *
 * Deterministic order: the sums have the same bits for any number of ranks. The micro-batches of a
 * step are numbered; rank r has r, r + ranks, ... Every element is added in the order of these
 * numbers. In each micro-batch the gradients of all ranks are added, one rank after the other, to
 * an accumulator of the owner.
 *
 * bf16 transport: collectives move half the bytes. Gradients are accumulated over micro-batches in
 * f32 and rounded to bf16 in a separate buffer before they are sent (as Megatron-LM's
 * grad_reduce_in_bf16).
 *
 * Transient segments (ZeRO stage 2): such a segment has gradient memory only during its own
 * backward. Two slots are used in turn. The sums of this rank's shards are accumulated in separate
 * memory over all micro-batches. Transient segments are reduced over ranks in every micro-batch,
 * other segments only in the last one. */
#pragma once

#include "base/device.h"
#include "comm/comm.h"

struct bucket_set;

/* A segment begins where the previous one ends; the first begins at 0. */
struct bucket_segment {
    int64_t count;
    bool transient;
};

/* Adds from[count] to to[count], queued on the stream of the options. */
typedef status (*bucket_add_fn)(void *user, float *to, const float *from, int64_t count);

/* Casts between f32 [1, count] and bf16 [1, count], queued on the stream of the options. */
typedef status (*bucket_cast_fn)(void *user, struct tensor to, struct tensor from);

struct bucket_options {
    struct comm *comm;
    struct device *device; /* of the communicator; NULL: the host */
    struct stream *stream; /* stream of the device's work */
    bucket_add_fn add;     /* for device memory; NULL: the host adds */
    bucket_cast_fn cast;   /* for device memory; NULL: the host casts */
    void *user;            /* argument of add and cast */
    const struct bucket_segment *segments;
    int segment_count;
    int64_t bucket_elems;  /* maximum elements of a bucket */
    bool scatter;          /* reduce-scatter; false: all-reduce */
    int64_t micro_batches; /* of a step: the maximum over ranks */
    /* micro-batches of a step over all ranks, added in their order; 0: off */
    int64_t deterministic_order;
    /* collectives move gradients rounded to bf16; not with deterministic_order */
    bool bf16_transport;
};

/* With deterministic_order, shards are whole blocks of this many elements, counted from the start
 * of the bucket. Thus sums over blocks have the same bits for any number of ranks. */
#define BUCKET_BLOCK 4096

/* bucket_create - allocate gradients, all zero.
 *
 * Memory    4 bytes per element of the communicator's memory. Transient segments use twice the
 *           largest of them, and 4 bytes per element of this rank's shards. With
 *           deterministic_order all segments need memory for this rank's shards. bf16_transport
 *           adds half of the communicator's memory.
 * Order     collective */
status bucket_create(const struct bucket_options *options, struct bucket_set **out);

/* bucket_destroy - wait for all collectives and free the set. Collective. */
status bucket_destroy(struct bucket_set **set);

/* bucket_gradient - return where backward writes the gradient of this element.
 *
 * The gradients of its whole segment are contiguous around it. */
float *bucket_gradient(const struct bucket_set *set, int64_t element);

/* bucket_begin_micro_batch - call it before backward writes gradients.
 *
 * It waits until the other ranks no longer read the gradient memory of this rank. */
status bucket_begin_micro_batch(struct bucket_set *set);

/* bucket_advance - declare the gradients from element `first` on final in this micro-batch.
 *
 * It starts the collectives of the buckets that are complete.
 *
 * Order     `first` must not increase. A transient segment may be written only after all segments
 *           above it are final; its gradients are zero then.
 * Errors    STATUS_INTERNAL if `first` increases */
status bucket_advance(struct bucket_set *set, int64_t first);

/* bucket_end_micro_batch - declare all gradients final; the next micro-batch begins. */
status bucket_end_micro_batch(struct bucket_set *set);

/* bucket_finish - reduce zeros for the remaining micro-batches and wait for all reductions. */
status bucket_finish(struct bucket_set *set);

/* ---- between bucket_finish and the next micro-batch: by bucket, from element 0 upwards ---- */

/* bucket_count - return the number of buckets. */
int bucket_count(const struct bucket_set *set);

/* bucket_shard - return the elements of the bucket that this rank owns. */
struct range bucket_shard(const struct bucket_set *set, int bucket);

/* bucket_reduced_gradient - return this rank's reduced gradients of the bucket, from `element` on.
 *
 * `element` must be in this rank's shard; the rest of the shard follows it. */
float *bucket_reduced_gradient(const struct bucket_set *set, int bucket, int64_t element);

/* bucket_calibrate - measure the rate of the reductions without computation (comm_calibrate).
 *
 * Order     collective; before the first gradient. The gradients are zero and stay zero. */
status bucket_calibrate(struct bucket_set *set);

/* bucket_calibrate_gather - measure the rate of bucket_gather_start without computation.
 *
 * The content of data, which is equal on all ranks, does not change. The gradients become zero.
 *
 * Order     collective */
status bucket_calibrate_gather(struct bucket_set *set, void *data, size_t element_bytes);

/* bucket_clear - set the gradients to zero.
 *
 * Transient segments need no clearing: their slot is zeroed when it is assigned. */
status bucket_clear(struct bucket_set *set);

/* bucket_gather_start - start the all-gather of the shards of this bucket of data[count], in place.
 *
 * Units     element_bytes: 4 or a divisor of 4
 * Memory    If ranks share memory, a shard is copied over this rank's reduced gradients, and the
 *           other ranks of the node pull it from there. The reduced gradients are lost.
 * Order     bucket_begin_micro_batch and bucket_clear wait until all ranks have pulled */
status bucket_gather_start(struct bucket_set *set, int bucket, void *data, size_t element_bytes);

/* bucket_gather_until - wait until elements [0, end) have been gathered, and advance other
 * gathers. */
status bucket_gather_until(struct bucket_set *set, int64_t end);

/* bucket_gather_finish - wait until the gathers in flight are complete on all ranks. */
status bucket_gather_finish(struct bucket_set *set);

/* ---- sizes before creation ---- */

/* bucket_memory_bytes - compute what bucket_create allocates on `rank` of `ranks`.
 *
 * *shared is in the communicator's memory, *own in other memory. A pure function, for `bireme
 * plan`. */
void bucket_memory_bytes(const struct bucket_options *options, int ranks, int rank, int64_t *shared,
                         int64_t *own);

/* bucket_owned_elements - return the number of elements that `rank` of `ranks` owns in all
 * buckets. */
int64_t bucket_owned_elements(const struct bucket_options *options, int ranks, int rank);
