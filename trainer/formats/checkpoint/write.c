/* Writes the files of one rank: HDF5 with a checksum per chunk, then fsync and the SHA-256 of the
 * bytes read back from the file.
 *
 * Runs in the writer thread and uses no communicator. The data are written in chunks of about
 * 4 MiB, so that the global HDF5 lock is not held long enough to block the data loader. Equal
 * tensors give equal bytes: files have no time stamps, and the order of creation is fixed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/h5file.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"

enum { CHUNK_ELEMENTS = 1 << 20, TRANSPOSE_BLOCK = 32 };

/* ---- one dataset ---- */

/* Splits `length` into chunks of at most `limit` and of nearly equal size. The file stores the last
 * chunk with its full size, so unequal chunks would waste space. */
static int64_t compute_chunk(int64_t length, int64_t limit)
{
    int64_t chunks = number_divide_up(length, limit);
    return number_divide_up(length, chunks);
}

static void compute_chunk_shape(const struct checkpoint_shard *p, int64_t chunk[2])
{
    chunk[1] = compute_chunk(p->shape[1], CHUNK_ELEMENTS);
    chunk[0] = compute_chunk(p->shape[0], CHUNK_ELEMENTS / chunk[1]);
}

/* Copies element `from` of a shard to element `to` of `out`. */
static void copy_element(void *out, int64_t to, const struct checkpoint_shard *p, int64_t from)
{
    if (p->dtype == DTYPE_BF16) {
        ((bf16 *)out)[to] = ((const bf16 *)p->data)[from];
    } else {
        ((float *)out)[to] = ((const float *)p->data)[from];
    }
}

/* Copies rows [r0, r0 + rows) and columns [c0, c0 + columns) of a transposed shard. */
static void transpose_block(void *out, const struct checkpoint_shard *p, int64_t r0, int64_t rows,
                            int64_t c0, int64_t columns)
{
    for (int64_t rb = 0; rb < rows; rb += TRANSPOSE_BLOCK) {
        int64_t r_end = number_min(rb + TRANSPOSE_BLOCK, rows);
        for (int64_t cb = 0; cb < columns; cb += TRANSPOSE_BLOCK) {
            int64_t c_end = number_min(cb + TRANSPOSE_BLOCK, columns);
            for (int64_t r = rb; r < r_end; r++) {
                for (int64_t c = cb; c < c_end; c++) {
                    copy_element(out, r * columns + c, p, (c0 + c) * p->columns + r0 + r);
                }
            }
        }
    }
}

/* Returns a block as contiguous memory: a pointer into the shard or `buffer`. */
static const void *gather_block(const struct checkpoint_shard *p, void *buffer, int64_t r0,
                                int64_t rows, int64_t c0, int64_t columns)
{
    if (p->transposed) {
        transpose_block(buffer, p, r0, rows, c0, columns);
        return buffer;
    }
    size_t unit = dtype_bytes(p->dtype);
    const char *start = (const char *)p->data + (size_t)(r0 * p->columns + c0) * unit;
    if (columns == p->columns) {
        return start;
    }
    for (int64_t r = 0; r < rows; r++) {
        memcpy((char *)buffer + (size_t)(r * columns) * unit,
               start + (size_t)(r * p->columns) * unit, (size_t)columns * unit);
    }
    return buffer;
}

/* Writes a block. `data` has the type of the dataset. */
static bool write_block(hid_t dataset, int dimensions, const void *data, const int64_t offset[2],
                        const int64_t shape[2])
{
    hsize_t start[2] = {(hsize_t)offset[0], (hsize_t)offset[1]};
    hsize_t count[2] = {(hsize_t)shape[0], (hsize_t)shape[1]};
    hid_t file_space = H5Dget_space(dataset);
    hid_t memory_space = H5Screate_simple(dimensions, count, NULL), type = H5Dget_type(dataset);
    bool written = file_space >= 0 && memory_space >= 0 && type >= 0 &&
                   H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                   H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, data) >= 0;
    H5Tclose(type);
    H5Sclose(memory_space);
    H5Sclose(file_space);
    return written;
}

/* Reads a block of a shard from the callback of the source, and converts it to the shard's type. */
static status read_source_block(const struct checkpoint_save_state *save,
                                const struct checkpoint_shard *p, const int64_t offset[2],
                                const int64_t shape[2], float *buffer)
{
    const struct checkpoint_source *source = save->source;
    const struct manifest_tensor *t =
        manifest_find_tensor(source->manifest, save->set_names[p->set], p->name);
    int64_t tensor_offset[2] = {p->offset[0] + offset[0], p->offset[1] + offset[1]};
    TRY(source->read(source->context, t, tensor_offset, shape, buffer));
    for (int64_t i = 0; p->dtype == DTYPE_BF16 && i < shape[0] * shape[1]; i++) {
        bf16 rounded = f32_to_bf16(buffer[i]); /* in place: element i ends before buffer[i] */
        memcpy((char *)buffer + (size_t)i * sizeof rounded, &rounded, sizeof rounded);
    }
    return STATUS_OK;
}

static status write_chunks(const struct checkpoint_save_state *save, hid_t dataset,
                           const char *path, const struct checkpoint_shard *p, float *buffer)
{
    int64_t chunk[2];
    compute_chunk_shape(p, chunk);
    for (int64_t r = 0; r < p->shape[0]; r += chunk[0]) {
        for (int64_t c = 0; c < p->shape[1]; c += chunk[1]) {
            int64_t offset[2] = {r, c};
            int64_t shape[2] = {number_min(chunk[0], p->shape[0] - r),
                                number_min(chunk[1], p->shape[1] - c)};
            const void *data = buffer;
            if (p->data == NULL) {
                TRY(read_source_block(save, p, offset, shape, buffer));
            } else {
                data = gather_block(p, buffer, r, shape[0], c, shape[1]);
            }
            REQUIRE(write_block(dataset, p->dimensions, data, offset, shape), STATUS_WRITE,
                    "cannot write %s of %s: %s", p->name, path, h5file_reason());
        }
    }
    return STATUS_OK;
}

static status create_dataset(hid_t file, const char *path, const struct checkpoint_shard *p,
                             hid_t *out)
{
    int64_t chunk[2];
    compute_chunk_shape(p, chunk);
    hsize_t chunk_size[2] = {(hsize_t)chunk[0], (hsize_t)chunk[1]};
    hsize_t shape[2] = {(hsize_t)p->shape[0], (hsize_t)p->shape[1]};
    hid_t properties;
    TRY(h5file_create_chunk_properties(p->dimensions, chunk_size, &properties));
    hid_t space = H5Screate_simple(p->dimensions, shape, NULL), type = h5file_float_type(p->dtype);
    *out = H5Dcreate2(file, p->dataset, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    status result = STATUS_OK;
    if (*out < 0) {
        result =
            RAISE_STATUS(STATUS_WRITE, "cannot write %s of %s: %s", p->name, path, h5file_reason());
    }
    H5Tclose(type);
    H5Sclose(space);
    H5Pclose(properties);
    return result;
}

/* Creates the groups of "exp_avg/name". Implicitly created groups would have time stamps. */
static status create_groups(hid_t file, const char *path, const char *name)
{
    char group[MANIFEST_NAME_BYTES];
    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - name);
        REQUIRE(length > 0 && length < sizeof group, STATUS_INTERNAL, "invalid tensor name %s",
                name);
        memcpy(group, name, length);
        group[length] = '\0';
        if (H5Lexists(file, group, H5P_DEFAULT) > 0) {
            continue;
        }
        hid_t properties = H5Pcreate(H5P_GROUP_CREATE);
        bool set = properties >= 0 && H5Pset_obj_track_times(properties, 0) >= 0;
        hid_t created = set ? H5Gcreate2(file, group, H5P_DEFAULT, properties, H5P_DEFAULT) : -1;
        H5Pclose(properties);
        REQUIRE(created >= 0, STATUS_WRITE, "cannot write /%s of %s: %s", group, path,
                h5file_reason());
        H5Gclose(created);
    }
    return STATUS_OK;
}

static status write_shard(const struct checkpoint_save_state *save, hid_t file, const char *path,
                          const struct checkpoint_shard *p, float *buffer)
{
    hid_t dataset;
    TRY(create_groups(file, path, p->dataset));
    TRY(create_dataset(file, path, p, &dataset));
    status result = write_chunks(save, dataset, path, p, buffer);
    if (result == STATUS_OK) {
        result = h5file_write_i64(dataset, path, "global_shape", p->global_shape, p->dimensions);
    }
    if (result == STATUS_OK) {
        result = h5file_write_i64(dataset, path, "offset", p->offset, p->dimensions);
    }
    if (H5Dclose(dataset) < 0 && result == STATUS_OK) {
        result =
            RAISE_STATUS(STATUS_WRITE, "cannot write %s of %s: %s", p->name, path, h5file_reason());
    }
    return result;
}

/* ---- files ---- */

/* Syncs a closed file, computes its digest and adds it to the manifest. */
static status finish_file(struct checkpoint_save_state *save, const char *path, const char *name)
{
    char digest[HASH_TEXT_BYTES];
    int64_t bytes = 0;
    TRY(file_sync(path));
    TRY(hash_file(path, digest, &bytes));
    return manifest_add_file(&save->written, name, bytes, digest);
}

static status add_shards_to_manifest(struct checkpoint_save_state *save, int set, const char *file)
{
    for (int i = 0; i < save->shard_count; i++) {
        const struct checkpoint_shard *p = &save->shards[i];
        if (p->set == set) {
            TRY(manifest_add_shard(&save->written, save->set_names[set], p->name, p->dtype,
                                   p->dimensions, p->global_shape, file, p->dataset, p->offset,
                                   p->shape));
        }
    }
    return STATUS_OK;
}

static status write_set(struct checkpoint_save_state *save, int set, float *buffer)
{
    char name[MANIFEST_NAME_BYTES], path[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", save->set_names[set], save->rank,
             save->ranks);
    TRY(file_join(path, save->folder, name));
    hid_t file;
    TRY(h5file_create(path, &file));
    status result = h5file_write_text(file, path, "format", "bireme-checkpoint");
    for (int i = 0; i < save->shard_count && result == STATUS_OK; i++) {
        if (save->shards[i].set == set) {
            result = write_shard(save, file, path, &save->shards[i], buffer);
        }
    }
    KEEP_FIRST(result, h5file_close(path, &file));
    TRY(result);
    TRY(finish_file(save, path, name));
    return add_shards_to_manifest(save, set, name);
}

static status write_seconds(hid_t file, const char *path, double seconds)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute =
        H5Acreate2(file, "train_seconds", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    bool written = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_DOUBLE, &seconds) >= 0;
    H5Aclose(attribute);
    H5Sclose(space);
    REQUIRE(written, STATUS_WRITE, "cannot write train_seconds of %s: %s", path, h5file_reason());
    return STATUS_OK;
}

static status write_counters(hid_t file, const char *path, const struct checkpoint_state *s)
{
    TRY(h5file_write_text(file, path, "format", "bireme-checkpoint"));
    TRY(h5file_write_i64(file, path, "step", &s->step, 1));
    TRY(h5file_write_i64(file, path, "samples", &s->samples, 1));
    TRY(h5file_write_i64(file, path, "tokens", &s->tokens, 1));
    return write_seconds(file, path, s->train_seconds);
}

static status write_state(struct checkpoint_save_state *save)
{
    static const char name[] = "state-00000.h5";
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, save->folder, name));
    hid_t file;
    TRY(h5file_create(path, &file));
    status result = write_counters(file, path, &save->state);
    KEEP_FIRST(result, h5file_close(path, &file));
    TRY(result);
    return finish_file(save, path, name);
}

static status write_tokenizer_file(struct checkpoint_save_state *save, const char *name,
                                   const char *data, size_t bytes)
{
    char relative[MANIFEST_NAME_BYTES], path[FILE_PATH_BYTES];
    int used = snprintf(relative, sizeof relative, "tokenizer/%s", name);
    REQUIRE(used > 0 && used < (int)sizeof relative, STATUS_CREATE, "file name is too long: %s",
            name);
    TRY(file_join(path, save->folder, relative));
    TRY(file_write(path, data, bytes));
    return finish_file(save, path, relative);
}

/* Writes the folder tokenizer/. The extra file replaces a file of the same name in the tokenizer's
 * folder, because that file belongs to another run. */
static status write_tokenizer(struct checkpoint_save_state *save)
{
    char folder[FILE_PATH_BYTES];
    TRY(file_join(folder, save->folder, "tokenizer"));
    TRY(file_make_folders(folder));
    for (int i = 0; save->tokenizer != NULL && i < save->tokenizer->count; i++) {
        const struct checkpoint_attachment *file = &save->tokenizer->files[i];
        if (save->extra_file_text == NULL || strcmp(file->name, save->extra_file_name) != 0) {
            TRY(write_tokenizer_file(save, file->name, file->data, file->bytes));
        }
    }
    if (save->extra_file_text != NULL) {
        TRY(write_tokenizer_file(save, save->extra_file_name, save->extra_file_text,
                                 strlen(save->extra_file_text)));
    }
    return file_sync(folder);
}

static status write_all(struct checkpoint_save_state *save)
{
    float *buffer = NULL;
    TRY(ALLOCATE(buffer, CHUNK_ELEMENTS, "a block of a checkpoint"));
    status result = STATUS_OK;
    for (int f = 0; f < save->set_count && result == STATUS_OK; f++) {
        result = write_set(save, f, buffer);
    }
    free(buffer);
    TRY(result);
    if (save->rank == 0) {
        TRY(write_state(save));
    }
    return save->tokenizer != NULL || save->extra_file_text != NULL ? write_tokenizer(save)
                                                                    : STATUS_OK;
}

/* Changes STATUS_CREATE and STATUS_NO_INPUT to STATUS_WRITE: the folder was created before, so the
 * cause is a full or failing disk or a removed folder, and not a wrong run_dir. */
static status change_to_write(status result)
{
    return result == STATUS_CREATE || result == STATUS_NO_INPUT ? status_change(STATUS_WRITE)
                                                                : result;
}

status checkpoint_write_files(struct checkpoint_save_state *save)
{
    h5file_init();
    return change_to_write(write_all(save));
}

/* ---- manifest ---- */

status checkpoint_write_manifest(const char *folder, const struct manifest *whole)
{
    char reason[MANIFEST_REASON_BYTES], path[FILE_PATH_BYTES];
    REQUIRE(manifest_check_tiling(whole, reason), STATUS_INTERNAL,
            "the shards of the ranks do not tile the tensors: %s", reason);
    char *text = NULL;
    size_t bytes = 0;
    TRY(manifest_to_text(whole, &text, &bytes));
    status result = file_join(path, folder, MANIFEST_FILE);
    if (result == STATUS_OK) {
        result = change_to_write(file_write(path, text, bytes));
    }
    free(text);
    return result;
}
