/* One rank's files: HDF5 with a checksum a chunk, then fsync and SHA-256 of what is really on disk.
 *
 * Runs in the writing thread, without a communicator. Data go through HDF5 in chunks of about 4 MiB:
 * its one lock is then never held long enough to make the loader wait. Equal tensors give equal bytes:
 * no time stamps, a fixed order of creation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/shard/h5file.h"
#include "trainer/checkpoint/checkpoint_impl.h"

enum { CHUNK_ELEMENTS = 1 << 20, TURN_BLOCK = 32 };

/* ---- one dataset ---- */

/* Chunks of at most CHUNK_ELEMENTS, as equal as they can be: the last one is stored whole too. */
static int64_t even_chunk(int64_t length, int64_t most)
{
    int64_t parts = (length + most - 1) / most;
    return (length + parts - 1) / parts;
}

static void chunk_shape(const struct checkpoint_piece *p, int64_t chunk[2])
{
    chunk[1] = even_chunk(p->shape[1], CHUNK_ELEMENTS);
    chunk[0] = even_chunk(p->shape[0], CHUNK_ELEMENTS / chunk[1]);
}

/* Rows [r0, r0 + rows) and columns [c0, c0 + columns) of the file, from memory that has it turned. */
static void turn(float *out, const struct checkpoint_piece *p, int64_t r0, int64_t rows, int64_t c0,
                 int64_t columns)
{
    for (int64_t rb = 0; rb < rows; rb += TURN_BLOCK) {
        int64_t r_end = rb + TURN_BLOCK < rows ? rb + TURN_BLOCK : rows;
        for (int64_t cb = 0; cb < columns; cb += TURN_BLOCK) {
            int64_t c_end = cb + TURN_BLOCK < columns ? cb + TURN_BLOCK : columns;
            for (int64_t r = rb; r < r_end; r++) {
                for (int64_t c = cb; c < c_end; c++) {
                    out[r * columns + c] = p->data[(c0 + c) * p->columns + r0 + r];
                }
            }
        }
    }
}

/* The box as contiguous memory: in place where it is, else through buffer. */
static const float *box_data(const struct checkpoint_piece *p, float *buffer, int64_t r0,
                             int64_t rows, int64_t c0, int64_t columns)
{
    if (p->transposed) {
        turn(buffer, p, r0, rows, c0, columns);
        return buffer;
    }
    const float *start = p->data + r0 * p->columns + c0;
    if (columns == p->columns) {
        return start;
    }
    for (int64_t r = 0; r < rows; r++) {
        memcpy(buffer + r * columns, start + r * p->columns, (size_t)columns * sizeof(float));
    }
    return buffer;
}

static bool write_box(hid_t dataset, int dimensions, const float *data, const int64_t offset[2],
                      const int64_t shape[2])
{
    hsize_t start[2] = {(hsize_t)offset[0], (hsize_t)offset[1]};
    hsize_t count[2] = {(hsize_t)shape[0], (hsize_t)shape[1]};
    hid_t file_space = H5Dget_space(dataset);
    hid_t memory_space = H5Screate_simple(dimensions, count, NULL);
    bool written =
        file_space >= 0 && memory_space >= 0 &&
        H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
        H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory_space, file_space, H5P_DEFAULT, data) >= 0;
    H5Sclose(memory_space);
    H5Sclose(file_space);
    return written;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static status box_read(const struct checkpoint_job *job, const struct checkpoint_piece *p,
                       const int64_t offset[2], const int64_t shape[2], float *buffer)
{
    const struct checkpoint_source *source = job->source;
    const struct manifest_tensor *t =
        manifest_find(source->manifest, job->stems[p->family], p->name);
    int64_t place[2] = {p->offset[0] + offset[0], p->offset[1] + offset[1]};
    return source->read(source->context, t, place, shape, buffer);
}

static status write_chunks(const struct checkpoint_job *job, hid_t dataset, const char *path,
                           const struct checkpoint_piece *p, float *buffer)
{
    int64_t chunk[2];
    chunk_shape(p, chunk);
    for (int64_t r = 0; r < p->shape[0]; r += chunk[0]) {
        for (int64_t c = 0; c < p->shape[1]; c += chunk[1]) {
            int64_t offset[2] = {r, c};
            int64_t shape[2] = {smaller(chunk[0], p->shape[0] - r),
                                smaller(chunk[1], p->shape[1] - c)};
            const float *data = buffer;
            if (p->data == NULL) {
                TRY(box_read(job, p, offset, shape, buffer));
            } else {
                data = box_data(p, buffer, r, shape[0], c, shape[1]);
            }
            REQUIRE(write_box(dataset, p->dimensions, data, offset, shape), STATUS_WRITE,
                    "cannot write %s of %s: %s", p->name, path, h5file_reason());
        }
    }
    return STATUS_OK;
}

static status create_dataset(hid_t file, const char *path, const struct checkpoint_piece *p,
                             hid_t *out)
{
    int64_t chunk[2];
    chunk_shape(p, chunk);
    hsize_t chunk_size[2] = {(hsize_t)chunk[0], (hsize_t)chunk[1]};
    hsize_t shape[2] = {(hsize_t)p->shape[0], (hsize_t)p->shape[1]};
    hid_t properties;
    TRY(h5file_chunked(p->dimensions, chunk_size, &properties));
    hid_t space = H5Screate_simple(p->dimensions, shape, NULL);
    *out =
        H5Dcreate2(file, p->dataset, H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    status result = STATUS_OK;
    if (*out < 0) {
        result = status_raise(STATUS_WRITE, __FILE__, __LINE__, "cannot write %s of %s: %s",
                              p->name, path, h5file_reason());
    }
    H5Sclose(space);
    H5Pclose(properties);
    return result;
}

/* The groups of "exp_avg/name", made by hand: those that HDF5 makes in passing bear time stamps. */
static status create_groups(hid_t file, const char *path, const char *name)
{
    char group[MANIFEST_NAME_BYTES];
    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - name);
        REQUIRE(length > 0 && length < sizeof group, STATUS_INTERNAL, "unusable name %s", name);
        memcpy(group, name, length);
        group[length] = '\0';
        if (H5Lexists(file, group, H5P_DEFAULT) > 0) {
            continue;
        }
        hid_t properties = H5Pcreate(H5P_GROUP_CREATE);
        bool set = properties >= 0 && H5Pset_obj_track_times(properties, 0) >= 0;
        hid_t made = set ? H5Gcreate2(file, group, H5P_DEFAULT, properties, H5P_DEFAULT) : -1;
        H5Pclose(properties);
        REQUIRE(made >= 0, STATUS_WRITE, "cannot write /%s of %s: %s", group, path,
                h5file_reason());
        H5Gclose(made);
    }
    return STATUS_OK;
}

static status write_piece(const struct checkpoint_job *job, hid_t file, const char *path,
                          const struct checkpoint_piece *p, float *buffer)
{
    hid_t dataset;
    TRY(create_groups(file, path, p->dataset));
    TRY(create_dataset(file, path, p, &dataset));
    status result = write_chunks(job, dataset, path, p, buffer);
    if (result == STATUS_OK) {
        result = h5file_write_i64(dataset, path, "global_shape", p->global_shape, p->dimensions);
    }
    if (result == STATUS_OK) {
        result = h5file_write_i64(dataset, path, "offset", p->offset, p->dimensions);
    }
    if (H5Dclose(dataset) < 0 && result == STATUS_OK) {
        result = status_raise(STATUS_WRITE, __FILE__, __LINE__, "cannot write %s of %s: %s",
                              p->name, path, h5file_reason());
    }
    return result;
}

/* ---- files ---- */

/* Sync and digest a finished file, and note it in the manifest. */
static status finish_file(struct checkpoint_job *job, const char *path, const char *name)
{
    char digest[HASH_TEXT_BYTES];
    int64_t bytes = 0;
    TRY(file_sync(path));
    TRY(hash_file(path, digest, &bytes));
    return manifest_add_file(&job->part, name, bytes, digest);
}

static status note_pieces(struct checkpoint_job *job, int family, const char *file)
{
    for (int i = 0; i < job->count; i++) {
        const struct checkpoint_piece *p = &job->pieces[i];
        if (p->family == family) {
            TRY(manifest_add_piece(&job->part, job->stems[family], p->name, p->dimensions,
                                   p->global_shape, file, p->dataset, p->offset, p->shape));
        }
    }
    return STATUS_OK;
}

static status write_family(struct checkpoint_job *job, int family, float *buffer)
{
    char name[MANIFEST_NAME_BYTES], path[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", job->stems[family], job->rank, job->ranks);
    TRY(file_join(path, job->folder, name));
    hid_t file;
    TRY(h5file_create(path, &file));
    status result = h5file_write_text(file, path, "format", "bireme-checkpoint");
    for (int i = 0; i < job->count && result == STATUS_OK; i++) {
        if (job->pieces[i].family == family) {
            result = write_piece(job, file, path, &job->pieces[i], buffer);
        }
    }
    KEEP_FIRST(result, h5file_close(path, &file));
    TRY(result);
    TRY(finish_file(job, path, name));
    return note_pieces(job, family, name);
}

static status write_seconds(hid_t file, const char *path, double seconds)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute =
        H5Acreate2(file, "train_seconds", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    bool written = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_DOUBLE, &seconds) >= 0;
    H5Aclose(attribute);
    H5Sclose(space);
    REQUIRE(written, STATUS_WRITE, "cannot write train_seconds of %s", path);
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

static status write_state(struct checkpoint_job *job)
{
    static const char name[] = "state-00000.h5";
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->folder, name));
    hid_t file;
    TRY(h5file_create(path, &file));
    status result = write_counters(file, path, &job->state);
    KEEP_FIRST(result, h5file_close(path, &file));
    TRY(result);
    return finish_file(job, path, name);
}

static status write_beside(struct checkpoint_job *job, const char *name, const char *bytes,
                           size_t count)
{
    char inside[MANIFEST_NAME_BYTES], path[FILE_PATH_BYTES];
    int used = snprintf(inside, sizeof inside, "tokenizer/%s", name);
    REQUIRE(used > 0 && used < (int)sizeof inside, STATUS_CREATE, "name too long: %s", name);
    TRY(file_join(path, job->folder, inside));
    TRY(file_write(path, bytes, count));
    return finish_file(job, path, inside);
}

/* What this run puts beside it; a file of its name that came with the tokenizer is another run's. */
static status write_tokenizer(struct checkpoint_job *job)
{
    char folder[FILE_PATH_BYTES];
    TRY(file_join(folder, job->folder, "tokenizer"));
    TRY(file_make_folders(folder));
    for (int i = 0; job->tokenizer != NULL && i < job->tokenizer->count; i++) {
        const struct checkpoint_file *file = &job->tokenizer->files[i];
        if (job->beside_text == NULL || strcmp(file->name, job->beside_name) != 0) {
            TRY(write_beside(job, file->name, file->bytes, file->count));
        }
    }
    if (job->beside_text != NULL) {
        TRY(write_beside(job, job->beside_name, job->beside_text, strlen(job->beside_text)));
    }
    return file_sync(folder);
}

static status write_all(struct checkpoint_job *job)
{
    float *buffer = malloc((size_t)CHUNK_ELEMENTS * sizeof *buffer);
    REQUIRE(buffer != NULL, STATUS_INTERNAL, "out of memory to write a checkpoint");
    status result = STATUS_OK;
    for (int f = 0; f < job->families && result == STATUS_OK; f++) {
        result = write_family(job, f, buffer);
    }
    free(buffer);
    TRY(result);
    if (job->rank == 0) {
        TRY(write_state(job));
    }
    return job->tokenizer != NULL || job->beside_text != NULL ? write_tokenizer(job) : STATUS_OK;
}

/* The folder was made a moment ago: a file that cannot be made in it is a disk that fails or is full,
 * not a wrong run_dir. */
status checkpoint_write_files(struct checkpoint_job *job)
{
    h5file_start();
    status result = write_all(job);
    if (result == STATUS_CREATE) {
        struct status_note note;
        status_take(&note);
        note.code = result = STATUS_WRITE;
        status_restore(&note);
    }
    return result;
}
