/* Gradient buckets: backward finishes gradients from the end of the flat buffer downwards; as soon as
 * a bucket's range is final its collective starts, behind the rest of backward.
 *
 * The buffer is [0, count) f32 elements, cut into segments (a layer each) and these into buckets: fixed
 * ranges, so that the same layout always sums the same pieces. Of each bucket every rank owns a contiguous
 * share (partition.h). Where the sums are scattered (ZeRO stages 1 and 2: Rajbhandari et al. 2020,
 * arXiv:1910.02054) a rank gets those of its shares alone; its optimizer needs no more, and the updated weights
 * are gathered by the same shares. Every element's sum is made in rank order in any case: the same bits.
 *
 * Ordered sums are the same bits at any number of ranks: the micro-batches of a step have numbers, rank r's are
 * r, r + ranks, ..., and every element's sum is made in the order of these numbers. So in each round
 * every rank's gradients are added, one rank after the other, to what the owner keeps beside them.
 *
 * Narrow sums have half the bytes: gradients are added up over micro-batches in f32, and what goes to other ranks is
 * rounded to bf16 first, in memory of its own (Megatron-LM's grad-reduce-in-bf16).
 *
 * A passing segment (stage 2) has no memory of its own for longer than its own backward: two slots are used
 * in turn, and the sums of this rank's shares are kept elsewhere, over all micro-batches. A round is the
 * backward pass of one micro-batch: passing segments are summed over ranks in each, the others in the last. */
#pragma once

#include "base/device.h"
#include "comm/comm.h"

struct bucket_set;

/* Consecutive segments begin where the one before ends; the first begins at 0. */
struct bucket_segment {
    int64_t count;
    bool passing;
};

/* to[count] += from[count], queued on the options' stream. */
typedef status (*bucket_add)(void *user, float *to, const float *from, int64_t count);

/* to = from, one of them f32 [1, count] and the other bf16, queued likewise. */
typedef status (*bucket_convert)(void *user, struct tensor to, struct tensor from);

struct bucket_options {
    struct comm *comm;
    struct device *device;  /* the comm's; NULL: the host */
    struct stream *stream;  /* of its work */
    bucket_add add;         /* of a device; NULL: the host adds */
    bucket_convert convert; /* likewise */
    void *user;             /* of both */
    const struct bucket_segment *segments;
    int segment_count;
    int64_t bucket_elems; /* of a bucket, at most */
    bool scatter;         /* false: all ranks get all sums */
    int64_t rounds;       /* the same on all ranks */
    int64_t
        ordered; /* micro-batches of a step over all ranks, whose sums are ordered; 0: they are not */
    bool narrow; /* sums over ranks are of gradients rounded to bf16; not with ordered */
};

/* Shares of ordered buckets are whole blocks of elements, counted from the bucket's first: sums over blocks are
 * the same at any number of ranks. */
#define BUCKET_BLOCK 4096

/* bucket_create - gradients, all zero. Collective.
 *
 * Memory    4 bytes per element of the comm's memory; of passing segments, twice the largest, and 4 bytes
 *           per element of this rank's shares; the latter of all segments where sums are ordered. Narrow: half as much
 *           of the comm's memory again */
status bucket_create(const struct bucket_options *options, struct bucket_set **out);
status bucket_destroy(struct bucket_set **set);

/* bucket_place - where backward leaves the gradient of this element, and of its whole segment around it. */
float *bucket_place(const struct bucket_set *set, int64_t element);

/* bucket_begin_round - before gradients are written: what other ranks still read of them is waited for. */
status bucket_begin_round(struct bucket_set *set);

/* bucket_advance - everything from element `first` on is final in this round: start what is complete.
 *
 * Order     a passing segment is written once everything above it is final; it is zero then */
status bucket_advance(struct bucket_set *set, int64_t first);

/* bucket_end_round - as if advanced to 0; the next round begins. */
status bucket_end_round(struct bucket_set *set);

/* bucket_finish - end the rounds that are left, with zeros, and wait for all. */
status bucket_finish(struct bucket_set *set);

/* ---- between bucket_finish and the next round: by bucket, from element 0 upwards ---- */

int bucket_count(const struct bucket_set *set);

/* bucket_share - the elements that this rank owns. */
struct range bucket_share(const struct bucket_set *set, int bucket);

/* bucket_sum - the sum of an element that this rank has, and of the held ones behind it. */
float *bucket_sum(const struct bucket_set *set, int bucket, int64_t element);

/* bucket_rehearse - measure how fast sums are made with nobody computing (comm_rehearse), before the first gradient:
 * gradients are zero, and stay so. Collective. */
status bucket_rehearse(struct bucket_set *set);

/* bucket_rehearse_gather - the same of bucket_gather_start; data, equal on all ranks, stay as they are, and gradients
 * become zero again. */
status bucket_rehearse_gather(struct bucket_set *set, void *data, size_t element_bytes);

/* bucket_clear - the gradients become zero, for a rank that has none (passing segments are zero by then). */
status bucket_clear(struct bucket_set *set);

/* bucket_gather_start - every rank's share of this bucket of data[count] reaches all ranks, in place.
 *
 * Order     where ranks see each other's memory a share lies over its sums until all have fetched it: they are gone,
 *           and bucket_begin_round and bucket_clear wait for that
 * Units     element_bytes: 4 or a part of it */
status bucket_gather_start(struct bucket_set *set, int bucket, void *data, size_t element_bytes);

/* bucket_gather_until - wait until elements below `end` are here, and push the other gathers on. */
status bucket_gather_until(struct bucket_set *set, int64_t end);

/* bucket_gather_finish - wait until the gathers under way have reached all ranks. */
status bucket_gather_finish(struct bucket_set *set);

/* ---- the same, known beforehand ---- */

/* bucket_memory_bytes - what bucket_create allocates on this rank of `ranks`: *shared in the comm's memory.
 * A pure function, for `bireme plan`. */
void bucket_memory_bytes(const struct bucket_options *options, int ranks, int rank, int64_t *shared,
                         int64_t *own);

/* bucket_owned_elements - of all buckets' shares of this rank of `ranks`. */
int64_t bucket_owned_elements(const struct bucket_options *options, int ranks, int rank);
