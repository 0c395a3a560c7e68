#include "trainer/train/batch_upload.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mirror.h"

/* While one slot is read, the other is filled. */
enum { SLOTS = 2, ARRAYS = 9 };

static const double wait_seconds = 300;

struct slot {
    struct mirror memory;
    struct event *arrived, *read;
    struct batch placed;
};

struct feed {
    struct device *device;
    struct stream *stream, *copies;
    int64_t rows;
    struct slot slots[SLOTS];
    int next; /* the slot that is filled next */
};

/* ---- what kernels read of a batch ---- */

struct array {
    size_t place; /* of the pointer, in struct batch */
    int64_t count;
};

static void arrays_of(const struct batch *b, struct array out[ARRAYS])
{
    const struct array all[ARRAYS] = {
        {offsetof(struct batch, inputs), b->rows},
        {offsetof(struct batch, targets), b->rows},
        {offsetof(struct batch, positions), b->rows},
        {offsetof(struct batch, cu_rows), b->segments + 1},
        {offsetof(struct batch, segment_ids), b->rows},
        {offsetof(struct batch, masked_rows), b->masked},
        {offsetof(struct batch, masked_ids), b->masked},
        {offsetof(struct batch, next_sentence), b->sequences},
        {offsetof(struct batch, branches), 2 * b->sequences},
    };
    memcpy(out, all, sizeof all);
}

static const int32_t **pointer_of(struct batch *b, const struct array *a)
{
    return (const int32_t **)(void *)((char *)b + a->place);
}

/* Every array may have an element a row, and cu_rows one more. */
static size_t slot_bytes(int64_t rows)
{
    return ARRAYS * ((size_t)rows + 1) * sizeof(int32_t);
}

size_t feed_bytes(enum device_kind kind, int64_t rows)
{
    return kind == DEVICE_CPU ? 0 : SLOTS * slot_bytes(rows);
}

/* The arrays one after the other; *used: their bytes. */
static status pack(struct slot *slot, const struct batch *batch, size_t *used)
{
    struct array arrays[ARRAYS];
    struct batch source = *batch;
    slot->placed = *batch;
    *used = 0;
    arrays_of(batch, arrays);
    for (int i = 0; i < ARRAYS; i++) {
        const int32_t *from = *pointer_of(&source, &arrays[i]);
        size_t bytes = (size_t)arrays[i].count * sizeof *from;
        if (from == NULL) {
            continue;
        }
        REQUIRE(*used + bytes <= slot->memory.bytes, STATUS_INTERNAL,
                "a batch of %lld rows and %lld segments does not fit its memory",
                (long long)batch->rows, (long long)batch->segments);
        memcpy((char *)slot->memory.host + *used, from, bytes);
        *pointer_of(&slot->placed, &arrays[i]) =
            (const int32_t *)(const void *)((char *)slot->memory.placed + *used);
        *used += bytes;
    }
    return STATUS_OK;
}

/* ---- the way ---- */

static status make(struct feed *f)
{
    if (device_is_host(f->device)) {
        return STATUS_OK;
    }
    TRY(device_stream_create(f->device, 0, &f->copies));
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &f->slots[i];
        TRY(mirror_create(f->device, f->copies, slot_bytes(f->rows), "batches", &slot->memory));
        TRY(device_event_create(f->device, &slot->arrived));
        TRY(device_event_create(f->device, &slot->read));
    }
    return STATUS_OK;
}

status feed_create(struct device *dev, struct stream *stream, int64_t rows, struct feed **out)
{
    *out = NULL;
    struct feed *f = calloc(1, sizeof *f);
    REQUIRE(f != NULL, STATUS_INTERNAL, "out of memory for batches");
    *f = (struct feed){.device = dev, .stream = stream, .rows = rows};
    status result = make(f);
    if (result != STATUS_OK) {
        (void)feed_destroy(&f);
    }
    *out = f;
    return result;
}

status feed_destroy(struct feed **feed)
{
    struct feed *f = *feed;
    status result = STATUS_OK;
    if (f != NULL) {
        for (int i = 0; i < SLOTS; i++) {
            KEEP_FIRST(result, device_event_destroy(f->device, &f->slots[i].arrived));
            KEEP_FIRST(result, device_event_destroy(f->device, &f->slots[i].read));
            mirror_destroy(&f->slots[i].memory);
        }
        KEEP_FIRST(result, device_stream_destroy(f->device, &f->copies));
        free(f);
        *feed = NULL;
    }
    return result;
}

status feed_start(struct feed *f, const struct batch *batch)
{
    if (f->copies == NULL) {
        return STATUS_OK;
    }
    struct slot *slot = &f->slots[f->next];
    size_t used = 0;
    TRY(device_event_wait(f->device, slot->arrived, wait_seconds)); /* the host's side is free */
    TRY(pack(slot, batch, &used));
    TRY(device_stream_wait(f->device, f->copies, slot->read)); /* and so will the device's be */
    TRY(mirror_push(&slot->memory, 0, used));
    return device_event_record(f->device, slot->arrived, f->copies);
}

status feed_take(struct feed *f, const struct batch *batch, struct batch *placed)
{
    if (f->copies == NULL) {
        *placed = *batch;
        return STATUS_OK;
    }
    struct slot *slot = &f->slots[f->next], *before = &f->slots[(f->next + SLOTS - 1) % SLOTS];
    /* What was queued until now has read the slot that is filled next. */
    TRY(device_event_record(f->device, before->read, f->stream));
    f->next = (f->next + 1) % SLOTS;
    *placed = slot->placed;
    return device_stream_wait(f->device, f->stream, slot->arrived);
}
