/* Distribution of the tensors among the ranks that write them.
 *
 * The rows (in memory) of a large tensor are split into one contiguous range per rank of the
 * replica group. A small tensor is assigned to the rank with the fewest elements so far. All ranks
 * compute the same distribution. A row range of a transposed tensor is a column range in the file:
 * the snapshot remains a plain memcpy, and the writer transposes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"

enum { MIN_SPLIT_ELEMENTS = 16384 }; /* smaller tensors are not split */

/* ---- rows of this rank ---- */

struct row_range {
    int64_t first, rows, columns; /* in memory; a vector has one column */
};

static int find_least_loaded(const int64_t *loads, int replica_count)
{
    int best = 0;
    for (int i = 1; i < replica_count; i++) {
        if (loads[i] < loads[best]) {
            best = i;
        }
    }
    return best;
}

/* Returns the rows of t that this rank writes, and adds the elements of each rank to loads. */
static struct row_range assign_rows(const struct checkpoint_tensor *t, bool sharded, int64_t *loads,
                                    int replica_count, int replica_index)
{
    int64_t rows = t->dimensions == 1 ? t->rows * t->columns : t->rows;
    int64_t columns = t->dimensions == 1 ? 1 : t->columns;
    if (sharded || t->load_only) {
        return (struct row_range){0, t->load_only ? 0 : rows, columns};
    }
    if (rows < replica_count || rows * columns < MIN_SPLIT_ELEMENTS) {
        int owner = find_least_loaded(loads, replica_count);
        loads[owner] += rows * columns;
        return (struct row_range){0, owner == replica_index ? rows : 0, columns};
    }
    for (int i = 0; i < replica_count; i++) {
        loads[i] += (rows * (i + 1) / replica_count - rows * i / replica_count) * columns;
    }
    int64_t first = rows * replica_index / replica_count;
    return (struct row_range){first, rows * (replica_index + 1) / replica_count - first, columns};
}

/* Returns the bytes of a shard in a snapshot. Every shard is aligned to an f32. */
static int64_t compute_snapshot_bytes(int64_t elements, enum dtype dtype)
{
    int64_t bytes = elements * (int64_t)dtype_bytes(dtype), unit = sizeof(float);
    return number_round_up(bytes, unit);
}

status checkpoint_memory_bytes(const struct checkpoint_tensor_set *sets, int count,
                               int replica_count, int replica_index, int64_t *bytes)
{
    *bytes = 0;
    int64_t *loads = NULL;
    TRY(ALLOCATE(loads, replica_count, "the loads of the ranks"));
    for (int f = 0; f < count; f++) {
        for (int i = 0; i < sets[f].count; i++) {
            struct row_range r = assign_rows(&sets[f].tensors[i], sets[f].sharded, loads,
                                             replica_count, replica_index);
            *bytes += compute_snapshot_bytes(r.rows * r.columns, sets[f].tensors[i].dtype);
        }
    }
    free(loads);
    return STATUS_OK;
}

/* ---- shards ---- */

/* Sets the offset and the shape of a shard in the file. */
static void set_file_block(struct checkpoint_shard *p, const struct checkpoint_tensor *t,
                           struct row_range r)
{
    int row_dimension = p->transposed ? 1 : 0; /* dimension in the file of the rows in memory */
    p->offset[0] = t->offset[0];
    p->offset[1] = p->dimensions == 2 ? t->offset[1] : 0;
    p->offset[row_dimension] += r.first;
    p->shape[row_dimension] = r.rows;
    p->shape[1 - row_dimension] = r.columns;
}

/* Returns the name, or name@K for the K-th further block of the same tensor on this rank. */
static status format_dataset_name(const struct checkpoint_save_state *save, int set,
                                  const char *name, char **out)
{
    int blocks = 0;
    size_t bytes = strlen(name) + 16;
    for (int i = save->shard_count - 1; i >= 0 && save->shards[i].set == set; i--) {
        if (strcmp(save->shards[i].name, name) != 0) {
            break;
        }
        blocks++;
    }
    TRY(ALLOCATE(*out, bytes, name));
    int used = snprintf(*out, bytes, "%s", name);
    if (blocks > 0) {
        snprintf(*out + used, bytes - (size_t)used, "@%d", blocks);
    }
    return STATUS_OK;
}

static status add_shard(struct checkpoint_save_state *save, int set,
                        const struct checkpoint_tensor *t, struct row_range r)
{
    struct checkpoint_shard p = {
        .set = set,
        .dtype = t->dtype,
        .dimensions = t->dimensions,
        .global_shape = {t->global_shape[0], t->dimensions == 2 ? t->global_shape[1] : 1},
        .rows = r.rows,
        .columns = r.columns,
        .transposed = t->transposed && t->dimensions == 2};
    int64_t skipped = r.first * r.columns * (int64_t)dtype_bytes(t->dtype);
    p.source = p.data = t->data != NULL ? (const char *)t->data + skipped : NULL;
    set_file_block(&p, t, r);
    TRY(format_dataset_name(save, set, t->name, &p.dataset));
    status result = memory_copy_text(&p.name, t->name, t->name);
    save->shards[save->shard_count++] = p;
    save->bytes += compute_snapshot_bytes(r.rows * r.columns, t->dtype);
    return result;
}

static status check_tensor(const struct checkpoint_tensor *t)
{
    bool vector = t->dimensions == 1;
    int64_t a = vector ? t->rows * t->columns : t->transposed ? t->columns : t->rows;
    int64_t b = vector ? 1 : t->transposed ? t->rows : t->columns;
    bool fits = (vector || t->dimensions == 2) && t->rows >= 0 && t->columns >= 0 &&
                t->offset[0] >= 0 && t->offset[0] + a <= t->global_shape[0] &&
                (vector || (t->offset[1] >= 0 && t->offset[1] + b <= t->global_shape[1]));
    REQUIRE(fits, STATUS_INTERNAL,
            "%s: a block of [%" PRId64 ", %" PRId64 "] lies outside the tensor", t->name, a, b);
    return STATUS_OK;
}

static status add_shards(struct checkpoint_save_state *save,
                         const struct checkpoint_tensor_set *sets, int count, int64_t *loads,
                         int replica_count, int replica_index)
{
    for (int f = 0; f < count; f++) {
        snprintf(save->set_names[f], sizeof save->set_names[f], "%s", sets[f].name);
        for (int i = 0; i < sets[f].count; i++) {
            const struct checkpoint_tensor *t = &sets[f].tensors[i];
            TRY(check_tensor(t));
            struct row_range r =
                assign_rows(t, sets[f].sharded, loads, replica_count, replica_index);
            if (r.rows > 0 && r.columns > 0) {
                TRY(add_shard(save, f, t, r));
            }
        }
    }
    return STATUS_OK;
}

status checkpoint_shards_create(struct checkpoint_save_state *save,
                                const struct checkpoint_tensor_set *sets, int count,
                                int replica_count, int replica_index)
{
    REQUIRE(count <= CHECKPOINT_SETS_MAX, STATUS_INTERNAL,
            "%d tensor sets, but at most %d are supported", count, CHECKPOINT_SETS_MAX);
    size_t capacity = 1;
    for (int f = 0; f < count; f++) {
        capacity += (size_t)sets[f].count;
    }
    save->set_count = count;
    int64_t *loads = NULL;
    TRY(ALLOCATE(save->shards, capacity, "tensors"));
    status result = ALLOCATE(loads, replica_count, "the loads of the ranks");
    if (result == STATUS_OK) {
        result = add_shards(save, sets, count, loads, replica_count, replica_index);
    }
    free(loads);
    return result;
}

void checkpoint_shards_destroy(struct checkpoint_save_state *save)
{
    for (int i = 0; i < save->shard_count; i++) {
        free(save->shards[i].name);
        free(save->shards[i].dataset);
    }
    free(save->shards);
    save->shards = NULL;
    save->shard_count = 0;
    save->bytes = 0;
}

/* ---- snapshot ---- */

status checkpoint_shards_snapshot(struct checkpoint_save_state *save,
                                  const struct checkpoint_tensor_set *sets, char *memory)
{
    for (int i = 0; i < save->shard_count; i++) {
        struct checkpoint_shard *p = &save->shards[i];
        const struct checkpoint_tensor_set *set = &sets[p->set];
        size_t bytes = (size_t)(p->rows * p->columns) * dtype_bytes(p->dtype);
        if (set->device != NULL) {
            TRY(device_copy(set->device, set->stream, memory, p->source, bytes));
        } else {
            memcpy(memory, p->source, bytes);
        }
        p->data = memory;
        memory += compute_snapshot_bytes(p->rows * p->columns, p->dtype);
    }
    for (int i = 0; i < save->set_count; i++) {
        if (sets[i].device != NULL) {
            TRY(device_wait(sets[i].device, sets[i].stream, DEADLINE_DEVICE_SECONDS));
        }
    }
    return STATUS_OK;
}
