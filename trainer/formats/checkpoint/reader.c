#include "trainer/formats/checkpoint/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/formats/checkpoint/reader_impl.h"
#include "trainer/formats/checkpoint/verify.h"

/* ---- overlap of a stored shard and a tensor in memory ---- */

/* In the coordinates of the tensor in the file. A vector is a matrix with one column. */
struct block {
    int64_t offset[2], shape[2];
};

/* Returns the block of the file that t holds. */
static struct block get_tensor_block(const struct checkpoint_tensor *t)
{
    if (t->dimensions == 1) {
        return (struct block){{t->offset[0], 0}, {t->rows * t->columns, 1}};
    }
    return (struct block){
        {t->offset[0], t->offset[1]},
        {t->transposed ? t->columns : t->rows, t->transposed ? t->rows : t->columns}};
}

static bool intersect_blocks(struct block a, const struct manifest_shard *s, struct block *out)
{
    for (int d = 0; d < 2; d++) {
        struct comm_range common =
            comm_range_intersect((struct comm_range){a.offset[d], a.shape[d]},
                                 (struct comm_range){s->offset[d], s->shape[d]});
        if (common.count == 0) {
            return false;
        }
        out->offset[d] = common.first;
        out->shape[d] = common.count;
    }
    return true;
}

bool checkpoint_reader_overlaps(const struct checkpoint_tensor *tensor,
                                const struct manifest_shard *shard)
{
    struct block common;
    return intersect_blocks(get_tensor_block(tensor), shard, &common);
}

/* Reads a block of the file as f32. HDF5 reads bf16 into the second half of `out`. */
static status read_block(hid_t dataset, const char *path, const struct checkpoint_tensor *t,
                         enum dtype dtype, const struct block *block, float *out)
{
    hsize_t start[2] = {(hsize_t)block->offset[0], (hsize_t)block->offset[1]};
    hsize_t count[2] = {(hsize_t)block->shape[0], (hsize_t)block->shape[1]};
    TRY(h5file_check_chunks(dataset, path, t->name, start, count));
    hid_t file_space = H5Dget_space(dataset);
    hid_t memory_space = H5Screate_simple(t->dimensions, count, NULL);
    int64_t elements = block->shape[0] * block->shape[1];
    bf16 *stored = (bf16 *)(void *)out + (dtype == DTYPE_BF16 ? elements : 0);
    hid_t type = h5file_float_type(dtype);
    bool done = file_space >= 0 && memory_space >= 0 &&
                H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                H5Dread(dataset, type, memory_space, file_space, H5P_DEFAULT, stored) >= 0;
    const char *reason = done ? "" : h5file_reason();
    H5Tclose(type);
    H5Sclose(memory_space);
    H5Sclose(file_space);
    REQUIRE(done, STATUS_CHECKPOINT, "%s: cannot read %s: %s", path, t->name, reason);
    for (int64_t i = 0; dtype == DTYPE_BF16 && i < elements; i++) {
        bf16 x;
        memcpy(&x, stored + i, sizeof x);
        out[i] = bf16_to_f32(x);
    }
    return STATUS_OK;
}

/* Stores f32 values in t->data from element `at` on; bf16 tensors round to nearest. */
static void store_values(const struct checkpoint_tensor *t, int64_t at, const float *values,
                         int64_t count)
{
    if (t->dtype == DTYPE_F32) {
        memcpy((float *)t->data + at, values, (size_t)count * sizeof *values);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        ((bf16 *)t->data)[at + i] = f32_to_bf16(values[i]);
    }
}

/* Copies a block into t->data and transposes it if necessary. `held` is the block of t. */
static void scatter_block(const struct checkpoint_tensor *t, const struct block *held,
                          const struct block *block, const float *data)
{
    int64_t r0 = block->offset[0] - held->offset[0], c0 = block->offset[1] - held->offset[1];
    bool transposed = t->transposed && t->dimensions == 2;
    int64_t stride = transposed ? held->shape[0] : held->shape[1];
    for (int64_t r = 0; r < block->shape[0]; r++) {
        const float *row = data + r * block->shape[1];
        if (!transposed) {
            store_values(t, (r0 + r) * stride + c0, row, block->shape[1]);
            continue;
        }
        for (int64_t c = 0; c < block->shape[1]; c++) {
            store_values(t, (c0 + c) * stride + r0 + r, row + c, 1);
        }
    }
}

/* Reads the common block in smaller blocks that fit the buffer. */
static status read_common(hid_t dataset, const char *path, const struct checkpoint_tensor *t,
                          enum dtype dtype, const struct manifest_shard *s,
                          const struct block *common, float *buffer)
{
    enum { LIMIT = CHECKPOINT_READ_ELEMENTS };
    struct block held = get_tensor_block(t);
    int64_t columns = number_min(common->shape[1], LIMIT);
    int64_t rows = LIMIT / columns;
    for (int64_t r = 0; r < common->shape[0]; r += rows) {
        for (int64_t c = 0; c < common->shape[1]; c += columns) {
            struct block block = {{common->offset[0] + r, common->offset[1] + c},
                                  {number_min(common->shape[0] - r, rows),
                                   number_min(common->shape[1] - c, columns)}};
            struct block stored = block;
            stored.offset[0] -= s->offset[0];
            stored.offset[1] -= s->offset[1];
            TRY(read_block(dataset, path, t, dtype, &stored, buffer));
            scatter_block(t, &held, &block, buffer);
        }
    }
    return STATUS_OK;
}

/* Checks that the attributes and the shape of the dataset match the manifest. */
static status check_dataset(hid_t dataset, const char *path, const struct manifest_tensor *m,
                            const struct manifest_shard *s, const int64_t *shape, int dimensions)
{
    int64_t global[2] = {0, 1}, offset[2] = {0, 0};
    TRY(h5file_read_i64(dataset, path, "global_shape", global, m->dimensions));
    TRY(h5file_read_i64(dataset, path, "offset", offset, m->dimensions));
    bool same = dimensions == m->dimensions && shape[0] == s->shape[0] && shape[1] == s->shape[1] &&
                global[0] == m->shape[0] && global[1] == m->shape[1] && offset[0] == s->offset[0] &&
                offset[1] == s->offset[1];
    REQUIRE(same, STATUS_CHECKPOINT, "%s: /%s is not the shard that the manifest describes", path,
            s->dataset);
    return STATUS_OK;
}

/* Reports refused content of a file as a fault of its checkpoint. */
static status report_as_damage(status result)
{
    return result == STATUS_DATA ? status_change(STATUS_CHECKPOINT) : result;
}

status checkpoint_reader_open_file(const char *path, hid_t *out)
{
    return report_as_damage(h5file_open_checked(path, out));
}

static status read_overlap(hid_t file, const char *path, const struct checkpoint_tensor *tensor,
                           const struct manifest_tensor *stored, const struct manifest_shard *shard,
                           float *buffer)
{
    struct block common;
    if (!intersect_blocks(get_tensor_block(tensor), shard, &common)) {
        return STATUS_OK;
    }
    hid_t dataset;
    int64_t shape[2] = {0, 1};
    int dimensions = 0;
    hid_t type = h5file_float_type(stored->dtype);
    REQUIRE(type >= 0, STATUS_INTERNAL, "out of memory for the type of %s", tensor->name);
    status result =
        h5file_open_dataset(file, path, shard->dataset, type, 2, &dataset, shape, &dimensions);
    H5Tclose(type);
    TRY(result);
    result = check_dataset(dataset, path, stored, shard, shape, dimensions);
    if (result == STATUS_OK) {
        result = read_common(dataset, path, tensor, stored->dtype, shard, &common, buffer);
    }
    H5Dclose(dataset);
    return result;
}

status checkpoint_reader_read_overlap(hid_t file, const char *path,
                                      const struct checkpoint_tensor *tensor,
                                      const struct manifest_tensor *stored,
                                      const struct manifest_shard *shard, float *buffer)
{
    return report_as_damage(read_overlap(file, path, tensor, stored, shard, buffer));
}

/* ---- reader ---- */

struct checkpoint_reader {
    char folder[FILE_PATH_BYTES];
    struct manifest manifest;
    float *buffer; /* [CHECKPOINT_READ_ELEMENTS] */
    hid_t *files;  /* [manifest.file_count], opened at first use; H5I_INVALID_HID before */
};

static status open_reader(struct checkpoint_reader *r)
{
    struct comm *self = NULL;
    bool good = false;
    char reason[MANIFEST_REASON_BYTES];
    TRY(comm_self_create(&self));
    status result = checkpoint_read_manifest(self, r->folder, &r->manifest, &good, reason);
    KEEP_FIRST(result, comm_destroy(&self));
    TRY(result);
    REQUIRE(good, STATUS_CHECKPOINT, "%s: %s", r->folder, reason);
    h5file_init();
    TRY(ALLOCATE(r->files, r->manifest.file_count, r->folder));
    for (int i = 0; i < r->manifest.file_count; i++) {
        r->files[i] = H5I_INVALID_HID;
    }
    return ALLOCATE(r->buffer, CHECKPOINT_READ_ELEMENTS, r->folder);
}

status checkpoint_reader_open(const char *folder, struct checkpoint_reader **out)
{
    TRY(ALLOCATE(*out, 1, folder));
    snprintf((*out)->folder, sizeof(*out)->folder, "%s", folder);
    status result = open_reader(*out);
    if (result != STATUS_OK) {
        checkpoint_reader_close(out);
    }
    return result;
}

void checkpoint_reader_close(struct checkpoint_reader **reader)
{
    struct checkpoint_reader *r = *reader;
    if (r == NULL) {
        return;
    }
    for (int i = 0; i < r->manifest.file_count && r->files != NULL; i++) {
        if (r->files[i] >= 0) {
            H5Fclose(r->files[i]);
        }
    }
    free(r->files);
    free(r->buffer);
    manifest_destroy(&r->manifest);
    free(r);
    *reader = NULL;
}

const struct manifest *checkpoint_reader_manifest(const struct checkpoint_reader *reader)
{
    return &reader->manifest;
}

static status read_shard(struct checkpoint_reader *r, const struct checkpoint_tensor *t,
                         const struct manifest_tensor *m, const struct manifest_shard *s)
{
    char path[FILE_PATH_BYTES];
    if (!checkpoint_reader_overlaps(t, s)) {
        return STATUS_OK;
    }
    TRY(file_join(path, r->folder, r->manifest.files[s->file].name));
    if (r->files[s->file] < 0) {
        TRY(checkpoint_reader_open_file(path, &r->files[s->file]));
    }
    return checkpoint_reader_read_overlap(r->files[s->file], path, t, m, s, r->buffer);
}

status checkpoint_reader_read(struct checkpoint_reader *reader,
                              const struct manifest_tensor *tensor, const int64_t offset[2],
                              const int64_t shape[2], float *out)
{
    struct checkpoint_tensor block = {
        .name = tensor->name,
        .dimensions = tensor->dimensions,
        .global_shape = {tensor->shape[0], tensor->shape[1]},
        .offset = {offset[0], offset[1]},
        .rows = shape[0],
        .columns = shape[1],
        .data = out,
    };
    for (int i = 0; i < tensor->shard_count; i++) {
        TRY(read_shard(reader, &block, tensor, &tensor->shards[i]));
    }
    return STATUS_OK;
}

/* ---- blocks of a tensor ---- */

bool checkpoint_reader_block(const struct manifest_tensor *tensor, const int64_t offset[2],
                             int64_t shape[2])
{
    enum { LIMIT = CHECKPOINT_READ_ELEMENTS };
    int64_t columns = tensor->shape[1] - offset[1], rows = tensor->shape[0] - offset[0];
    shape[1] = number_min(columns, LIMIT);
    int64_t max_rows = shape[1] == tensor->shape[1] ? LIMIT / tensor->shape[1] : 1;
    shape[0] = number_min(rows, max_rows);
    return rows > 0;
}

void checkpoint_reader_next_block(const struct manifest_tensor *tensor, int64_t offset[2],
                                  const int64_t shape[2])
{
    offset[1] += shape[1];
    if (offset[1] == tensor->shape[1]) {
        offset[1] = 0;
        offset[0] += shape[0];
    }
}
