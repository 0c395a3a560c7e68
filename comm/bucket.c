#include "comm/bucket.h"

#include <stdlib.h>

struct bucket_set {
    struct comm *comm;
    float *data;
    int64_t count;
    int64_t bucket_elems;
    int64_t buckets;
    int64_t next;  /* the bucket that starts next, from the last one down; -1: all have started */
    int64_t final; /* everything from this element on is final */
    struct comm_request **requests;
};

static void rewind_set(struct bucket_set *set)
{
    set->next = set->buckets - 1;
    set->final = set->count;
}

status bucket_create(struct comm *comm, float *data, int64_t count, int64_t bucket_elems,
                     struct bucket_set **out)
{
    *out = NULL;
    REQUIRE(count >= 0 && bucket_elems > 0, STATUS_INTERNAL,
            "buckets of %lld elements over %lld: both must be positive", (long long)bucket_elems,
            (long long)count);
    struct bucket_set *set = calloc(1, sizeof *set);
    REQUIRE(set != NULL, STATUS_INTERNAL, "out of memory: a bucket set");
    *set = (struct bucket_set){
        .comm = comm, .data = data, .count = count, .bucket_elems = bucket_elems};
    set->buckets = (count + bucket_elems - 1) / bucket_elems;
    set->requests = calloc((size_t)set->buckets + 1, sizeof *set->requests);
    if (set->requests == NULL) {
        free(set);
        RAISE(STATUS_INTERNAL, "out of memory: buckets of %lld elements over %lld",
              (long long)bucket_elems, (long long)count);
    }
    rewind_set(set);
    *out = set;
    return STATUS_OK;
}

static status start_next(struct bucket_set *set)
{
    int64_t first = set->next * set->bucket_elems;
    int64_t left = set->count - first;
    int64_t count = left < set->bucket_elems ? left : set->bucket_elems;
    TRY(comm_all_reduce_start(set->comm, set->data + first, count, &set->requests[set->next]));
    set->next--;
    return STATUS_OK;
}

status bucket_advance(struct bucket_set *set, int64_t first)
{
    REQUIRE(first >= 0 && first <= set->final, STATUS_INTERNAL,
            "gradients became final from element %lld on after %lld: the number must fall",
            (long long)first, (long long)set->final);
    set->final = first;
    while (set->next >= 0 && set->next * set->bucket_elems >= first) {
        TRY(start_next(set));
    }
    return comm_progress(set->comm);
}

status bucket_finish(struct bucket_set *set)
{
    status result = bucket_advance(set, 0);
    for (int64_t i = set->buckets - 1; i >= 0; i--) {
        KEEP_FIRST(result, comm_wait(set->comm, &set->requests[i]));
    }
    rewind_set(set);
    return result;
}

status bucket_destroy(struct bucket_set **set)
{
    if (*set == NULL) {
        return STATUS_OK;
    }
    status result = STATUS_OK;
    for (int64_t i = (*set)->buckets - 1; i >= 0; i--) {
        KEEP_FIRST(result, comm_wait((*set)->comm, &(*set)->requests[i]));
    }
    free((*set)->requests);
    free(*set);
    *set = NULL;
    return result;
}
