#include "datasets/loader/batch_upload.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadlines.h"
#include "base/device/mirror.h"
#include "base/memory.h"

/* One slot is read while the other one is filled. */
enum { SLOTS = 2, ARRAYS = 19, ROW_ARRAYS = 15 };

struct slot {
    struct mirror memory;
    struct event *arrived, *read;
    struct batch device_batch;
};

struct batch_upload {
    struct device *device;
    struct stream *stream, *copies;
    int64_t rows;
    struct slot slots[SLOTS];
    int next; /* the slot that is filled next */
};

/* ---- arrays ---- */

struct array {
    size_t offset; /* of the pointer in struct batch */
    int64_t count;
};

/* Lists the arrays that kernels read. An array of another kind of batch has 0 elements. */
static void list_arrays(const struct batch *b, struct array out[ARRAYS])
{
    bool has_sentences = b->kind == BATCH_SENTENCE_PAIRS, is_task = b->kind == BATCH_TASK;
    bool has_pairs = b->kind == BATCH_PREFERENCE_PAIRS, has_sources = b->kind == BATCH_SEQ2SEQ;
    const int32_t *first_targets = has_pairs ? b->preference_pairs.first_targets : NULL;
    int64_t targets = first_targets != NULL ? first_targets[2 * b->sequences] : 0;
    const struct array all[ARRAYS] = {
        /* doubles first, for their alignment */
        {offsetof(struct batch, preference_pairs.reference_logps),
         first_targets != NULL ? 4 * b->sequences : 0},
        {offsetof(struct batch, inputs), b->rows},
        {offsetof(struct batch, targets), b->rows},
        {offsetof(struct batch, positions), b->rows},
        {offsetof(struct batch, cu_rows), b->segments + 1},
        {offsetof(struct batch, token_type_ids), b->rows},
        {offsetof(struct batch, outputs.rows), b->outputs.count},
        {offsetof(struct batch, outputs.targets), b->outputs.count},
        {offsetof(struct batch, outputs.example_rows), b->sequences + 1},
        {offsetof(struct batch, sentence_pairs.next_sentence), has_sentences ? b->sequences : 0},
        {offsetof(struct batch, task.labels), is_task ? b->task.label_count : 0},
        {offsetof(struct batch, task.float_labels), is_task ? b->task.label_count : 0},
        {offsetof(struct batch, preference_pairs.shared_prefix_offsets),
         has_pairs ? 2 * b->sequences : 0},
        {offsetof(struct batch, preference_pairs.first_targets),
         first_targets != NULL ? 2 * b->sequences + 1 : 0},
        {offsetof(struct batch, preference_pairs.target_rows), targets},
        {offsetof(struct batch, preference_pairs.target_ids), targets},
        {offsetof(struct batch, source.inputs), has_sources ? b->source.rows : 0},
        {offsetof(struct batch, source.positions), has_sources ? b->source.rows : 0},
        {offsetof(struct batch, source.cu_rows), has_sources ? b->segments + 1 : 0},
    };
    memcpy(out, all, sizeof all);
}

/* Elements of all arrays are int32_t or float, or a double that counts as two elements. */
static const void *get_pointer(const struct batch *b, const struct array *a)
{
    const void *pointer;
    memcpy(&pointer, (const char *)b + a->offset, sizeof pointer);
    return pointer;
}

static void set_pointer(struct batch *b, const struct array *a, const void *pointer)
{
    memcpy((char *)b + a->offset, &pointer, sizeof pointer);
}

/* Returns the bytes of all arrays of a batch. An array has at most one element per row, or one
 * more. There are two exceptions: an example with one row may have two labels, and preference pairs
 * have log-probabilities. Batches with these arrays do not have many other arrays, so they fit
 * too. */
static size_t compute_slot_bytes(int64_t rows)
{
    return ROW_ARRAYS * ((size_t)rows + 1) * sizeof(int32_t);
}

size_t batch_upload_bytes(enum device_kind kind, int64_t rows)
{
    return kind == DEVICE_CPU ? 0 : SLOTS * compute_slot_bytes(rows);
}

/* Copies the arrays one after the other into the slot. *used: their bytes. */
static status pack_arrays(struct slot *slot, const struct batch *batch, size_t *used)
{
    struct array arrays[ARRAYS];
    slot->device_batch = *batch;
    *used = 0;
    list_arrays(batch, arrays);
    for (int i = 0; i < ARRAYS; i++) {
        const void *from = get_pointer(batch, &arrays[i]);
        if (arrays[i].count == 0 || from == NULL) {
            continue;
        }
        size_t bytes = (size_t)arrays[i].count * sizeof(int32_t);
        REQUIRE(*used + bytes <= slot->memory.bytes, STATUS_INTERNAL,
                "a batch of %" PRId64 " rows and %" PRId64 " segments does not fit its memory",
                batch->rows, batch->segments);
        memcpy((char *)slot->memory.host + *used, from, bytes);
        set_pointer(&slot->device_batch, &arrays[i], (char *)slot->memory.device_data + *used);
        *used += bytes;
    }
    return STATUS_OK;
}

/* ---- upload ---- */

static status create_slots(struct batch_upload *u)
{
    if (device_is_host(u->device)) {
        return STATUS_OK;
    }
    TRY(device_stream_create(u->device, 0, &u->copies));
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &u->slots[i];
        TRY(mirror_create(u->device, u->copies, compute_slot_bytes(u->rows), "batches",
                          &slot->memory));
        TRY(device_event_create(u->device, &slot->arrived));
        TRY(device_event_create(u->device, &slot->read));
    }
    return STATUS_OK;
}

status batch_upload_create(struct device *dev, struct stream *stream, int64_t rows,
                           struct batch_upload **out)
{
    *out = NULL;
    struct batch_upload *u = NULL;
    TRY(ALLOCATE(u, 1, "batches"));
    *u = (struct batch_upload){.device = dev, .stream = stream, .rows = rows};
    status result = create_slots(u);
    if (result != STATUS_OK) {
        (void)batch_upload_destroy(&u);
    }
    *out = u;
    return result;
}

status batch_upload_destroy(struct batch_upload **upload)
{
    struct batch_upload *u = *upload;
    status result = STATUS_OK;
    if (u != NULL) {
        for (int i = 0; i < SLOTS; i++) {
            KEEP_FIRST(result, device_event_destroy(u->device, &u->slots[i].arrived));
            KEEP_FIRST(result, device_event_destroy(u->device, &u->slots[i].read));
            mirror_destroy(&u->slots[i].memory);
        }
        KEEP_FIRST(result, device_stream_destroy(u->device, &u->copies));
        free(u);
        *upload = NULL;
    }
    return result;
}

status batch_upload_begin(struct batch_upload *u, const struct batch *batch)
{
    if (u->copies == NULL) {
        return STATUS_OK;
    }
    struct slot *slot = &u->slots[u->next];
    size_t used = 0;
    /* The host memory is free after the previous copy, the device memory after its last reader. */
    TRY(device_event_wait(u->device, slot->arrived, DEADLINE_DEVICE_SECONDS));
    TRY(pack_arrays(slot, batch, &used));
    TRY(device_stream_wait(u->device, u->copies, slot->read));
    TRY(mirror_upload(&slot->memory, 0, used));
    return device_event_record(u->device, slot->arrived, u->copies);
}

status batch_upload_end(struct batch_upload *u, const struct batch *batch,
                        struct batch *device_batch)
{
    if (u->copies == NULL) {
        *device_batch = *batch;
        return STATUS_OK;
    }
    struct slot *slot = &u->slots[u->next], *previous = &u->slots[(u->next + SLOTS - 1) % SLOTS];
    /* Work queued so far has read the slot that is filled next. */
    TRY(device_event_record(u->device, previous->read, u->stream));
    u->next = (u->next + 1) % SLOTS;
    *device_batch = slot->device_batch;
    return device_stream_wait(u->device, u->stream, slot->arrived);
}
