/* Gradient buckets: the reduction of gradients over data-parallel ranks, overlapped with backward.
 *
 * Backward completes the gradients from the end of the flat buffer towards its start. As soon as
 * the range of a bucket is final, its collective starts and runs during the rest of backward.
 *
 *   flat buffer  The f32 gradients, elements [0, count).
 *   segment      A contiguous part of the buffer, one for each layer.
 *   bucket       A contiguous part of a segment that one collective reduces.
 *   shard        A contiguous part of a bucket, one for each rank, which owns it.
 *
 * A bucket has a multiple of 32 elements per rank, so that the shards are equal. Rank 0 also owns
 * the rest of the last bucket of a segment (partition_equal_shard). In ZeRO stages 1 and 2
 * (Rajbhandari et al. 2020, arXiv:1910.02054) a rank receives only the sums of its shards, because
 * its optimizer updates only these weights. The all-gather of the updated weights uses the same
 * shards. All ranges are fixed at creation. Sums in host memory also have a fixed order (comm.h),
 * so that equal runs of one layout give equal bits.
 *
 * Reproducible sums: the sums have the same bits for any number of ranks. Buckets and shards are
 * whole blocks (BUCKET_BLOCK), so that the buckets do not depend on the number of ranks. The
 * micro-batches of a step are numbered. Rank r processes the micro-batches r, r + ranks, ... The
 * owner of a shard adds the gradients of all micro-batches to an accumulator in the order of
 * their numbers.
 *
 * bf16 transport: collectives move half the bytes. Gradients are accumulated over micro-batches in
 * f32 and rounded to bf16 in a separate buffer before they are sent (as Megatron-LM's
 * grad_reduce_in_bf16).
 *
 * Transient segments (ZeRO stage 2): a transient segment has gradient memory only during its own
 * backward pass, in one of two slots that the segments use in turn. It is reduced over ranks in
 * every micro-batch, and separate memory accumulates the sums of this rank's shards. Other segments
 * are reduced only in the last micro-batch.
 *
 * Calls     For each micro-batch: bucket_begin_micro_batch, bucket_advance during backward,
 *           bucket_end_micro_batch. For each step: bucket_finish, the update of the weights with
 *           bucket_reduced_gradient and bucket_gather_start, and bucket_gather_until during the
 *           next forward pass
 * Errors    unless stated otherwise, as the collectives (comm.h) and the device (device.h) */
#pragma once

#include "base/device/device.h"
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
    int64_t bucket_elems;  /* maximum elements of a bucket, rounded up to 32 per rank */
    bool scatter;          /* reduce-scatter; false: all-reduce */
    int64_t micro_batches; /* of one rank in a step: the maximum over ranks */
    /* > 0: reproducible sums; the number of micro-batches of a step over all ranks */
    int64_t reproducible_micro_batches;
    /* collectives move gradients rounded to bf16; not with reproducible_micro_batches */
    bool bf16_transport;
};

/* With reproducible sums, a shard consists of whole blocks of this many elements, counted from the
 * start of the bucket. A sum over a block then has the same bits for any number of ranks. */
#define BUCKET_BLOCK 4096

/* bucket_create - allocate gradients, all zero.
 *
 * Memory    from comm_allocate: 4 bytes per element of all segments that are not transient, and two
 *           slots of the size of the largest transient segment; bf16_transport adds half of that.
 *           Other memory: 4 bytes per element of this rank's shards, of transient segments or, with
 *           reproducible sums, of all segments. bucket_memory_bytes computes both
 * Order     collective */
status bucket_create(const struct bucket_options *options, struct bucket_set **out);

/* bucket_destroy - wait for all collectives and free the set.
 *
 * Order     collective */
status bucket_destroy(struct bucket_set **set);

/* bucket_gradient - return the address of the gradient of an element, for backward to write.
 *
 * The gradients of a segment are contiguous. */
float *bucket_gradient(const struct bucket_set *set, int64_t element);

/* ---- a micro-batch ----
 *
 * Each rank calls these functions for its own micro-batches. bucket_finish calls them for the
 * missing ones, so that every rank starts the same collectives. */

/* bucket_begin_micro_batch - wait until the other ranks no longer read this rank's gradients.
 *
 * Order     waits for other ranks, also for their gathers; backward writes gradients after it */
status bucket_begin_micro_batch(struct bucket_set *set);

/* bucket_advance - report that the gradients of elements [first, count) are final in this
 * micro-batch, and start the collectives of the buckets that are complete.
 *
 * Order     starts collectives; `first` must not increase. The gradients of a transient segment are
 *           zero, and may be written, as soon as all elements after the segment are final
 * Errors    STATUS_INTERNAL if `first` increases */
status bucket_advance(struct bucket_set *set, int64_t first);

/* bucket_end_micro_batch - report that all gradients of this micro-batch are final, and start the
 * remaining collectives.
 *
 * Order     starts collectives, as bucket_advance */
status bucket_end_micro_batch(struct bucket_set *set);

/* bucket_finish - end the step: wait for all reductions. For each micro-batch that this rank has
 * fewer than other ranks, zeros are reduced.
 *
 * Order     collective */
status bucket_finish(struct bucket_set *set);

/* ---- between bucket_finish and the next micro-batch; buckets are numbered from element 0 ---- */

/* bucket_count - return the number of buckets. */
int bucket_count(const struct bucket_set *set);

/* bucket_shard - return the elements of the bucket that this rank owns. */
struct comm_range bucket_shard(const struct bucket_set *set, int bucket);

/* bucket_reduced_gradient - return a pointer to this rank's reduced gradients of the bucket,
 * starting at `element`, which must be in this rank's shard. */
float *bucket_reduced_gradient(const struct bucket_set *set, int bucket, int64_t element);

/* bucket_calibrate - measure the rate of the reductions without computation (comm_calibrate).
 *
 * Order     collective; before the first gradient is written, because it reduces zeros */
status bucket_calibrate(struct bucket_set *set);

/* bucket_calibrate_gather - measure the rate of bucket_gather_start without computation.
 *
 * Memory    data must be equal on all ranks and does not change; the gradients become zero
 * Order     collective */
status bucket_calibrate_gather(struct bucket_set *set, void *data, size_t element_bytes);

/* bucket_clear - set the gradients to zero. The slots of transient segments are cleared later, when
 * a segment begins to use them.
 *
 * Order     collective: waits for the gathers of all ranks */
status bucket_clear(struct bucket_set *set);

/* bucket_gather_start - start the all-gather of the shards of this bucket of data[count], in place.
 *
 * Units     element_bytes: 4 or a divisor of 4
 * Memory    overwrites this rank's reduced gradients if ranks share memory: the shard is copied
 *           there, and the other ranks of the node copy it from there (comm_lazy_gather_start)
 * Order     collective; bucket_begin_micro_batch and bucket_clear wait until all ranks have copied
 *           the shard */
status bucket_gather_start(struct bucket_set *set, int bucket, void *data, size_t element_bytes);

/* bucket_gather_until - wait until elements [0, end) have been gathered. Other gathers advance
 * during the wait.
 *
 * Order     every rank has started the gathers; not every rank needs to call this function */
status bucket_gather_until(struct bucket_set *set, int64_t end);

/* bucket_gather_finish - wait until all gathers are complete on all ranks; for tests.
 * bucket_begin_micro_batch and bucket_clear do the same.
 *
 * Order     collective */
status bucket_gather_finish(struct bucket_set *set);

/* ---- sizes before creation ---- */

/* bucket_memory_bytes - compute the bytes that bucket_create allocates on `rank` of `ranks`.
 *
 * Units     *shared: bytes of comm_allocate; *own: bytes of other memory. A pure function, also
 *           used by `bireme plan` */
void bucket_memory_bytes(const struct bucket_options *options, int ranks, int rank, int64_t *shared,
                         int64_t *own);

/* The windows of comm_allocate: resident gradients, slots, bf16 copies of both, sums. */
enum {
    BUCKET_WINDOW_RESIDENT,
    BUCKET_WINDOW_SLOTS,
    BUCKET_WINDOW_BF16,
    BUCKET_WINDOW_SUMS,
    BUCKET_WINDOWS
};

/* bucket_window_bytes - compute the bytes of each window of comm_allocate in host memory; -1: the
 * window does not exist. They are equal on all ranks. */
void bucket_window_bytes(const struct bucket_options *options, int ranks,
                         int64_t windows[BUCKET_WINDOWS]);

/* bucket_owned_elems - return the number of elements that `rank` of `ranks` owns in
 * all buckets. */
int64_t bucket_owned_elems(const struct bucket_options *options, int ranks, int rank);
