/* Filling tensors from a checkpoint of any layout: the boxes that are stored are intersected with the
 * boxes that this rank wants, file by file, each file opened once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "datasets/shard/h5file.h"
#include "trainer/checkpoint/checkpoint_impl.h"
#include "trainer/checkpoint/reader.h"

enum { READ_ELEMENTS = CHECKPOINT_READ_ELEMENTS };

struct box {
    int64_t offset[2], shape[2];
};

/* A load under way. */
struct load {
    const char *folder;
    const struct manifest *manifest;
    const struct checkpoint_family *families;
    int count;
    float *buffer; /* READ_ELEMENTS */
    bool body;     /* heads may differ */
    bool part;     /* there may be more */
};

/* The part of t in the file's coordinates; a vector is a column. */
static struct box box_of(const struct checkpoint_tensor *t)
{
    if (t->dimensions == 1) {
        return (struct box){{t->offset[0], 0}, {t->rows * t->columns, 1}};
    }
    return (struct box){
        {t->offset[0], t->offset[1]},
        {t->transposed ? t->columns : t->rows, t->transposed ? t->rows : t->columns}};
}

static bool intersect(struct box a, const struct manifest_piece *p, struct box *out)
{
    for (int d = 0; d < 2; d++) {
        int64_t first = a.offset[d] > p->offset[d] ? a.offset[d] : p->offset[d];
        int64_t a_end = a.offset[d] + a.shape[d], p_end = p->offset[d] + p->shape[d];
        int64_t end = a_end < p_end ? a_end : p_end;
        if (first >= end) {
            return false;
        }
        out->offset[d] = first;
        out->shape[d] = end - first;
    }
    return true;
}

/* ---- what is asked for must be what is there ---- */

static bool same_shape(const struct checkpoint_tensor *t, const struct manifest_tensor *m)
{
    int64_t columns = t->dimensions == 2 ? t->global_shape[1] : 1;
    return m->dimensions == t->dimensions && m->shape[0] == t->global_shape[0] &&
           m->shape[1] == columns;
}

/* Behind the body of a model: what belongs to what was learned, by transformers' names. */
static bool is_head(const char *name)
{
    static const char *const heads[] = {"cls.", "lm_head.", "classifier.", "score.", "qa_outputs."};
    bool head = strstr(name, ".pooler.dense.") != NULL;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        head = head || strncmp(name, heads[i], strlen(heads[i])) == 0;
    }
    return head;
}

/* The stored tensor for one of this run; NULL: a head that is not there, and keeps what it holds. */
static const struct manifest_tensor *find_for(const struct load *load, const char *stem,
                                              const struct checkpoint_tensor *t)
{
    const struct manifest_tensor *m = manifest_find(load->manifest, stem, t->name);
    bool free_head = load->body && is_head(t->name);
    return m != NULL && free_head && !same_shape(t, m) ? NULL : m;
}

static status check_shape(const struct checkpoint_tensor *t, const struct manifest_tensor *m,
                          const char *folder)
{
    int64_t columns = t->dimensions == 2 ? t->global_shape[1] : 1;
    REQUIRE(same_shape(t, m), STATUS_CHECKPOINT,
            "%s: %s has the shape [%lld, %lld] there and [%lld, %lld] in this run; use the model "
            "settings that wrote it, or another run_dir",
            folder, t->name, (long long)m->shape[0], (long long)m->shape[1],
            (long long)t->global_shape[0], (long long)columns);
    return STATUS_OK;
}

static status check_wanted(const struct load *load, const struct checkpoint_family *family,
                           double *asked)
{
    for (int i = 0; i < family->count; i++) {
        const struct checkpoint_tensor *t = &family->tensors[i];
        const struct manifest_tensor *m = find_for(load, family->stem, t);
        if (m == NULL && load->body && is_head(t->name)) {
            if (!load->part) {
                log_info("%s begins at random: %s has none of its shape", t->name, load->folder);
            }
            continue;
        }
        REQUIRE(m != NULL, STATUS_CHECKPOINT,
                "%s: %s-*.h5 hold no tensor %s, which this run needs; use the model settings that "
                "wrote it, or another run_dir",
                load->folder, family->stem, t->name);
        TRY(check_shape(t, m, load->folder));
        asked[m - load->manifest->tensors] = 1;
    }
    return STATUS_OK;
}

static bool family_is_loaded(const struct load *load, const char *stem)
{
    for (int f = 0; f < load->count; f++) {
        if (strcmp(load->families[f].stem, stem) == 0) {
            return true;
        }
    }
    return false;
}

/* A tensor that no rank asks for would be lost without a word: another, larger model wrote it. */
static status check_unasked(const struct load *load, const double *asked)
{
    for (int i = 0; i < load->manifest->tensor_count && !load->part; i++) {
        const struct manifest_tensor *m = &load->manifest->tensors[i];
        if (asked[i] == 0 && load->body && is_head(m->name) && family_is_loaded(load, m->family)) {
            log_info("%s of %s is left out", m->name, load->folder);
            continue;
        }
        REQUIRE(asked[i] > 0 || !family_is_loaded(load, m->family), STATUS_CHECKPOINT,
                "%s holds %s (%s), which this run's model does not have; use the model settings "
                "that wrote it, or another run_dir",
                load->folder, m->name, m->family);
    }
    return STATUS_OK;
}

static status check_names(struct comm *world, struct load *load)
{
    double *asked = calloc((size_t)load->manifest->tensor_count + 1, sizeof *asked);
    status result = STATUS_OK;
    if (asked == NULL) {
        result = status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory");
    }
    for (int f = 0; f < load->count && result == STATUS_OK; f++) {
        result = check_wanted(load, &load->families[f], asked);
    }
    result = comm_agree(world, result);
    if (result == STATUS_OK) {
        result = comm_sum_doubles(world, asked, load->manifest->tensor_count + 1);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, check_unasked(load, asked));
    }
    free(asked);
    return result;
}

/* ---- data ---- */

static bool read_box(hid_t dataset, int dimensions, const struct box *box, float *out)
{
    hsize_t start[2] = {(hsize_t)box->offset[0], (hsize_t)box->offset[1]};
    hsize_t count[2] = {(hsize_t)box->shape[0], (hsize_t)box->shape[1]};
    hid_t file_space = H5Dget_space(dataset);
    hid_t memory_space = H5Screate_simple(dimensions, count, NULL);
    bool done = file_space >= 0 && memory_space >= 0 &&
                H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                H5Dread(dataset, H5T_NATIVE_FLOAT, memory_space, file_space, H5P_DEFAULT, out) >= 0;
    H5Sclose(memory_space);
    H5Sclose(file_space);
    return done;
}

/* Put a box (in the tensor's own file coordinates) where memory has it. */
static void scatter(const struct checkpoint_tensor *t, const struct box *mine,
                    const struct box *box, const float *from)
{
    int64_t r0 = box->offset[0] - mine->offset[0], c0 = box->offset[1] - mine->offset[1];
    bool turned = t->transposed && t->dimensions == 2;
    int64_t stride = turned ? mine->shape[0] : mine->shape[1];
    for (int64_t r = 0; r < box->shape[0]; r++) {
        const float *row = from + r * box->shape[1];
        if (!turned) {
            memcpy(t->data + (r0 + r) * stride + c0, row, (size_t)box->shape[1] * sizeof(float));
            continue;
        }
        for (int64_t c = 0; c < box->shape[1]; c++) {
            t->data[(c0 + c) * stride + r0 + r] = row[c];
        }
    }
}

/* Read the common box in blocks that fit the buffer. */
static status read_common(const struct load *load, hid_t dataset, const char *path,
                          const struct checkpoint_tensor *t, const struct manifest_piece *p,
                          const struct box *common)
{
    struct box mine = box_of(t);
    int64_t columns = common->shape[1] < READ_ELEMENTS ? common->shape[1] : READ_ELEMENTS;
    int64_t rows = READ_ELEMENTS / columns;
    for (int64_t r = 0; r < common->shape[0]; r += rows) {
        for (int64_t c = 0; c < common->shape[1]; c += columns) {
            struct box block = {{common->offset[0] + r, common->offset[1] + c},
                                {common->shape[0] - r < rows ? common->shape[0] - r : rows,
                                 common->shape[1] - c < columns ? common->shape[1] - c : columns}};
            struct box stored = block;
            stored.offset[0] -= p->offset[0];
            stored.offset[1] -= p->offset[1];
            REQUIRE(read_box(dataset, t->dimensions, &stored, load->buffer), STATUS_CHECKPOINT,
                    "%s: %s cannot be read: %s", path, t->name, h5file_reason());
            scatter(t, &mine, &block, load->buffer);
        }
    }
    return STATUS_OK;
}

/* The dataset must say of itself what the manifest says of it. */
static status check_dataset(hid_t dataset, const char *path, const struct manifest_tensor *m,
                            const struct manifest_piece *p, const int64_t *shape, int rank)
{
    int64_t global[2] = {0, 1}, offset[2] = {0, 0};
    TRY(h5file_read_i64(dataset, path, "global_shape", global, m->dimensions));
    TRY(h5file_read_i64(dataset, path, "offset", offset, m->dimensions));
    bool same = rank == m->dimensions && shape[0] == p->shape[0] && shape[1] == p->shape[1] &&
                global[0] == m->shape[0] && global[1] == m->shape[1] && offset[0] == p->offset[0] &&
                offset[1] == p->offset[1];
    REQUIRE(same, STATUS_CHECKPOINT, "%s: /%s is not the piece that the manifest describes", path,
            p->dataset);
    return STATUS_OK;
}

static status read_piece(const struct load *load, hid_t file, const char *path,
                         const struct checkpoint_tensor *t, const struct manifest_tensor *m,
                         const struct manifest_piece *p)
{
    struct box common;
    if (!intersect(box_of(t), p, &common)) {
        return STATUS_OK;
    }
    hid_t dataset;
    int64_t shape[2] = {0, 1};
    int rank = 0;
    TRY(h5file_dataset(file, path, p->dataset, H5T_IEEE_F32LE, 2, &dataset, shape, &rank));
    status result = check_dataset(dataset, path, m, p, shape, rank);
    if (result == STATUS_OK) {
        result = read_common(load, dataset, path, t, p, &common);
    }
    H5Dclose(dataset);
    return result;
}

/* The same where the tensor is a device's: what is there, with the piece in it. */
static status read_piece_to_device(const struct load *load, const struct checkpoint_family *f,
                                   hid_t file, const char *path, const struct checkpoint_tensor *t,
                                   const struct manifest_tensor *m, const struct manifest_piece *p)
{
    struct box common;
    if (!intersect(box_of(t), p, &common)) {
        return STATUS_OK;
    }
    size_t bytes = (size_t)(t->rows * t->columns) * sizeof(float);
    struct checkpoint_tensor here = *t;
    here.data = malloc(bytes + 1);
    REQUIRE(here.data != NULL, STATUS_INTERNAL, "out of memory to read %s", t->name);
    status result = device_read(f->device, f->stream, here.data, t->data, bytes);
    if (result == STATUS_OK) {
        result = read_piece(load, file, path, &here, m, p);
    }
    if (result == STATUS_OK) {
        result = device_write(f->device, f->stream, t->data, here.data, bytes);
    }
    free(here.data);
    return result;
}

static status read_tensors(const struct load *load, hid_t file, const char *path, int index)
{
    for (int f = 0; f < load->count; f++) {
        const struct checkpoint_family *family = &load->families[f];
        for (int i = 0; i < family->count; i++) {
            const struct checkpoint_tensor *t = &family->tensors[i];
            const struct manifest_tensor *m = find_for(load, family->stem, t);
            for (int p = 0; m != NULL && p < m->count; p++) {
                if (m->pieces[p].file == index) {
                    TRY(family->device != NULL
                            ? read_piece_to_device(load, family, file, path, t, m, &m->pieces[p])
                            : read_piece(load, file, path, t, m, &m->pieces[p]));
                }
            }
        }
    }
    return STATUS_OK;
}

/* Does this rank want anything of that file? */
static bool is_wanted(const struct load *load, int index)
{
    for (int i = 0; i < load->manifest->tensor_count; i++) {
        const struct manifest_tensor *m = &load->manifest->tensors[i];
        for (int p = 0; p < m->count; p++) {
            if (m->pieces[p].file == index) {
                return family_is_loaded(load, m->family);
            }
        }
    }
    return false;
}

static status read_files(const struct load *load)
{
    for (int i = 0; i < load->manifest->file_count; i++) {
        if (!is_wanted(load, i)) {
            continue;
        }
        char path[FILE_PATH_BYTES];
        hid_t file;
        TRY(file_join(path, load->folder, load->manifest->files[i].name));
        TRY(h5file_open(path, &file));
        status result = read_tensors(load, file, path, i);
        KEEP_FIRST(result, h5file_close(path, &file));
        TRY(result);
    }
    return STATUS_OK;
}

static status load_all(struct comm *world, struct load *load)
{
    TRY(check_names(world, load));
    load->buffer = malloc((size_t)READ_ELEMENTS * sizeof *load->buffer);
    status result = load->buffer != NULL
                        ? read_files(load)
                        : status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory");
    free(load->buffer);
    return comm_agree(world, result);
}

static status load_from(struct comm *world, const struct load *how,
                        status (*act)(struct comm *world, struct load *load))
{
    const char *folder = how->folder;
    struct manifest manifest;
    bool good = false;
    char reason[MANIFEST_REASON_BYTES];
    TRY(checkpoint_read_manifest(world, folder, &manifest, &good, reason));
    status result = STATUS_OK;
    if (!good) {
        result = status_raise(STATUS_CHECKPOINT, __FILE__, __LINE__, "%s: %s", folder, reason);
        result = comm_agree(world, result);
    } else {
        struct load load = *how;
        load.manifest = &manifest;
        result = act(world, &load);
    }
    manifest_destroy(&manifest);
    return result;
}

status checkpoint_load(struct comm *world, const char *folder,
                       const struct checkpoint_family *families, int count)
{
    struct load load = {.folder = folder, .families = families, .count = count};
    return load_from(world, &load, load_all);
}

status checkpoint_load_body(struct comm *world, const char *folder,
                            const struct checkpoint_family *families, int count)
{
    struct load load = {.folder = folder, .families = families, .count = count, .body = true};
    return load_from(world, &load, load_all);
}

status checkpoint_load_part(struct comm *world, const char *folder,
                            const struct checkpoint_family *families, int count)
{
    struct load load = {
        .folder = folder, .families = families, .count = count, .body = true, .part = true};
    return load_from(world, &load, load_all);
}

status checkpoint_compare(struct comm *world, const char *folder,
                          const struct checkpoint_family *families, int count, bool body)
{
    struct load load = {.folder = folder, .families = families, .count = count, .body = body};
    return load_from(world, &load, check_names);
}

/* ---- box by box, without a model ---- */

struct checkpoint_reader {
    char folder[FILE_PATH_BYTES];
    struct manifest manifest;
    struct load load;
    hid_t *files; /* [manifest.file_count], opened when first needed; H5I_INVALID_HID until then */
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
    h5file_start();
    r->files = malloc((size_t)r->manifest.file_count * sizeof *r->files);
    r->load = (struct load){.folder = r->folder, .manifest = &r->manifest};
    r->load.buffer = malloc((size_t)READ_ELEMENTS * sizeof *r->load.buffer);
    for (int i = 0; i < r->manifest.file_count && r->files != NULL; i++) {
        r->files[i] = H5I_INVALID_HID;
    }
    REQUIRE(r->files != NULL && r->load.buffer != NULL, STATUS_INTERNAL, "out of memory to read %s",
            r->folder);
    return STATUS_OK;
}

status checkpoint_reader_open(const char *folder, struct checkpoint_reader **out)
{
    *out = calloc(1, sizeof **out);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory to read %s", folder);
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
    free(r->load.buffer);
    manifest_destroy(&r->manifest);
    free(r);
    *reader = NULL;
}

const struct manifest *checkpoint_reader_manifest(const struct checkpoint_reader *reader)
{
    return &reader->manifest;
}

static status read_from(struct checkpoint_reader *r, const struct checkpoint_tensor *t,
                        const struct manifest_tensor *m, const struct manifest_piece *p)
{
    char path[FILE_PATH_BYTES];
    struct box common;
    if (!intersect(box_of(t), p, &common)) {
        return STATUS_OK;
    }
    TRY(file_join(path, r->folder, r->manifest.files[p->file].name));
    if (r->files[p->file] < 0) {
        TRY(h5file_open(path, &r->files[p->file]));
    }
    return read_piece(&r->load, r->files[p->file], path, t, m, p);
}

status checkpoint_reader_read(struct checkpoint_reader *reader, const struct manifest_tensor *m,
                              const int64_t offset[2], const int64_t shape[2], float *out)
{
    struct checkpoint_tensor t = {
        .name = m->name,
        .dimensions = m->dimensions,
        .global_shape = {m->shape[0], m->shape[1]},
        .offset = {offset[0], offset[1]},
        .rows = shape[0],
        .columns = shape[1],
        .data = out,
    };
    for (int i = 0; i < m->count; i++) {
        TRY(read_from(reader, &t, m, &m->pieces[i]));
    }
    return STATUS_OK;
}

bool checkpoint_block(const struct manifest_tensor *m, const int64_t offset[2], int64_t shape[2])
{
    int64_t columns = m->shape[1] - offset[1], rows = m->shape[0] - offset[0];
    shape[1] = columns < READ_ELEMENTS ? columns : READ_ELEMENTS;
    int64_t most = shape[1] == m->shape[1] ? READ_ELEMENTS / m->shape[1] : 1;
    shape[0] = rows < most ? rows : most;
    return rows > 0;
}

void checkpoint_block_next(const struct manifest_tensor *m, int64_t offset[2],
                           const int64_t shape[2])
{
    offset[1] += shape[1];
    if (offset[1] == m->shape[1]) {
        offset[1] = 0;
        offset[0] += shape[0];
    }
}
