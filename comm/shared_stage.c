/* Collectives on memory that other ranks cannot see: piece by piece through a stage that they can (shared.c).
 * Each piece is a collective of its own on the stages of all ranks. */
#include <string.h>

#include "comm/shared_impl.h"

static struct range cut(struct range range, int64_t first, int64_t count)
{
    int64_t from = range.first > first ? range.first : first;
    int64_t to =
        range.first + range.count < first + count ? range.first + range.count : first + count;
    return (struct range){from - first, to > from ? to - from : 0};
}

static void copy_range(char *to, const char *from, struct range range, size_t element_bytes)
{
    size_t offset = (size_t)range.first * element_bytes;
    memcpy(to + offset, from + offset, (size_t)range.count * element_bytes);
}

static void copy_in(const struct shared_group *group, const struct comm_work *work, char *stage,
                    const char *data, int64_t count)
{
    if (work->kind != COMM_BROADCAST || work->root == group->rank) {
        memcpy(stage, data, (size_t)count * work->element_bytes);
    }
}

static void copy_out(const struct shared_group *group, const struct comm_work *work, char *data,
                     const char *stage, int64_t count)
{
    if (work->kind == COMM_ALL_REDUCE || work->kind == COMM_BROADCAST) {
        memcpy(data, stage, (size_t)count * work->element_bytes);
    } else if (work->kind != COMM_ADD) { /* what is added lies elsewhere already */
        copy_range(data, stage, group->cut[group->rank], work->element_bytes);
    }
}

static status in_pieces(struct shared_group *group, const struct comm_work *work, int64_t total)
{
    int64_t most = (int64_t)(SHARED_STAGE_BYTES / work->element_bytes);
    REQUIRE(most > 0, STATUS_INTERNAL, "elements of %zu bytes in a collective",
            work->element_bytes);
    for (int64_t first = 0; first < total; first += most) {
        int64_t count = total - first < most ? total - first : most;
        struct comm_work piece = *work;
        piece.count = count;
        for (int r = 0; r < group->size && work->ranges != NULL; r++) {
            group->cut[r] = cut(work->ranges[r], first, count);
            piece.ranges = group->cut;
        }
        if (work->kind == COMM_ADD) {
            struct range mine = work->ranges[group->rank];
            int64_t before = first - mine.first < mine.count ? first - mine.first : mine.count;
            piece.addition.sums += before > 0 ? before : 0;
        }
        char *data = work->data + (size_t)first * work->element_bytes;
        copy_in(group, work, group->stages[group->place], data, count);
        struct comm_request *request = NULL;
        TRY(shared_launch(group, &piece, group->stages, 0, 0, &request));
        TRY(shared_wait(group, &request));
        copy_out(group, work, data, group->stages[group->place], count);
    }
    return STATUS_OK;
}

/* Rank r's strip between its range and the stage. */
static void move_strip(const struct shared_group *group, const struct comm_work *work, int r,
                       int64_t done, bool in)
{
    size_t bytes = (size_t)group->cut[r].count * work->element_bytes;
    if (bytes == 0) {
        return;
    }
    char *staged = group->stages[group->place] + (size_t)group->cut[r].first * work->element_bytes;
    char *own = work->data + (size_t)(work->ranges[r].first + done) * work->element_bytes;
    memcpy(in ? staged : own, in ? own : staged, bytes);
}

/* A gather takes a strip of every rank's range at once, so that all ranks copy at the same time. */
static status gather_strips(struct shared_group *group, const struct comm_work *work)
{
    int64_t strip = (int64_t)(SHARED_STAGE_BYTES / work->element_bytes) / group->size;
    REQUIRE(strip > 0, STATUS_INTERNAL, "elements of %zu bytes gathered by %d ranks",
            work->element_bytes, group->size);
    int64_t longest = 0;
    for (int r = 0; r < group->size; r++) {
        longest = work->ranges[r].count > longest ? work->ranges[r].count : longest;
    }
    struct comm_work piece = *work;
    piece.ranges = group->cut;
    for (int64_t done = 0; done < longest; done += strip) {
        for (int r = 0; r < group->size; r++) {
            int64_t left = work->ranges[r].count - done;
            left = left > strip ? strip : left;
            group->cut[r] = (struct range){r * strip, left > 0 ? left : 0};
        }
        move_strip(group, work, group->rank, done, true);
        struct comm_request *request = NULL;
        TRY(shared_launch(group, &piece, group->stages, 0, 0, &request));
        TRY(shared_wait(group, &request));
        for (int r = 0; r < group->size; r++) {
            if (r != group->rank) {
                move_strip(group, work, r, done, false);
            }
        }
    }
    return STATUS_OK;
}

status shared_through_stage(struct shared_group *group, const struct comm_work *work, int64_t total)
{
    return work->kind == COMM_ALL_GATHER ? gather_strips(group, work)
                                         : in_pieces(group, work, total);
}
