/* Collectives on memory that other ranks cannot access. The data passes in chunks through staging
 * buffers that all ranks of the node can access (shared.c). Each chunk is a separate collective on
 * the staging buffers of all ranks. */
#include <string.h>

#include "base/number.h"
#include "comm/shared/shared.h"

static void copy_range(char *to, const char *from, struct comm_range range, size_t element_bytes)
{
    size_t offset = (size_t)range.first * element_bytes;
    memcpy(to + offset, from + offset, (size_t)range.count * element_bytes);
}

static void copy_to_stage(const struct shared_group *group, const struct comm_work *work,
                          char *stage, const char *data, int64_t count)
{
    if (work->kind != COMM_BROADCAST || work->root == group->rank) {
        memcpy(stage, data, (size_t)count * work->element_bytes);
    }
}

static void copy_from_stage(const struct shared_group *group, const struct comm_work *work,
                            char *data, const char *stage, int64_t count)
{
    if (work->kind == COMM_ALL_REDUCE || work->kind == COMM_BROADCAST) {
        memcpy(data, stage, (size_t)count * work->element_bytes);
    } else if (work->kind != COMM_ACCUMULATE) { /* the result is already in the accumulator */
        copy_range(data, stage, group->chunk_ranges[group->rank], work->element_bytes);
    }
}

static status run_in_chunks(struct shared_group *group, const struct comm_work *work, int64_t total)
{
    int64_t chunk_elems = (int64_t)(SHARED_STAGE_BYTES / work->element_bytes);
    REQUIRE(chunk_elems > 0, STATUS_INTERNAL,
            "elements of %zu bytes in a collective: larger than the staging buffer",
            work->element_bytes);
    for (int64_t first = 0; first < total; first += chunk_elems) {
        int64_t count = number_min(total - first, chunk_elems);
        struct comm_work chunk = *work;
        chunk.count = count;
        for (int r = 0; r < group->size && work->ranges != NULL; r++) {
            group->chunk_ranges[r] =
                comm_range_intersect(work->ranges[r], (struct comm_range){first, count});
            group->chunk_ranges[r].first -= first;
            chunk.ranges = group->chunk_ranges;
        }
        if (work->kind == COMM_ACCUMULATE) {
            struct comm_range own_range = work->ranges[group->rank];
            int64_t before = number_min(first - own_range.first, own_range.count);
            chunk.accumulation.sums += number_max(before, 0);
        }
        char *data = work->data + (size_t)first * work->element_bytes;
        copy_to_stage(group, work, group->stages[group->local_rank], data, count);
        struct comm_request *request = NULL;
        TRY(shared_launch(group, &chunk, group->stages, 0, 0, &request));
        TRY(shared_wait(group, &request));
        copy_from_stage(group, work, data, group->stages[group->local_rank], count);
    }
    return STATUS_OK;
}

/* Copies a strip of rank r's range between its memory and the staging buffer. */
static void copy_strip(const struct shared_group *group, const struct comm_work *work, int r,
                       int64_t done, bool to_stage)
{
    size_t bytes = (size_t)group->chunk_ranges[r].count * work->element_bytes;
    if (bytes == 0) {
        return;
    }
    char *staged = group->stages[group->local_rank] +
                   (size_t)group->chunk_ranges[r].first * work->element_bytes;
    char *own = work->data + (size_t)(work->ranges[r].first + done) * work->element_bytes;
    memcpy(to_stage ? staged : own, to_stage ? own : staged, bytes);
}

/* Gathers a strip of every rank's range at a time, so that all ranks copy concurrently. */
static status gather_in_strips(struct shared_group *group, const struct comm_work *work)
{
    int64_t strip = (int64_t)(SHARED_STAGE_BYTES / work->element_bytes) / group->size;
    REQUIRE(strip > 0, STATUS_INTERNAL,
            "elements of %zu bytes gathered by %d ranks: larger than the staging buffer",
            work->element_bytes, group->size);
    int64_t longest = 0;
    for (int r = 0; r < group->size; r++) {
        longest = number_max(longest, work->ranges[r].count);
    }
    struct comm_work chunk = *work;
    chunk.ranges = group->chunk_ranges;
    for (int64_t done = 0; done < longest; done += strip) {
        for (int r = 0; r < group->size; r++) {
            int64_t left = work->ranges[r].count - done;
            left = number_min(left, strip);
            group->chunk_ranges[r] = (struct comm_range){r * strip, number_max(left, 0)};
        }
        copy_strip(group, work, group->rank, done, true);
        struct comm_request *request = NULL;
        TRY(shared_launch(group, &chunk, group->stages, 0, 0, &request));
        TRY(shared_wait(group, &request));
        for (int r = 0; r < group->size; r++) {
            if (r != group->rank) {
                copy_strip(group, work, r, done, false);
            }
        }
    }
    return STATUS_OK;
}

status shared_run_staged(struct shared_group *group, const struct comm_work *work, int64_t total)
{
    return work->kind == COMM_ALL_GATHER ? gather_in_strips(group, work)
                                         : run_in_chunks(group, work, total);
}
