#include "trainer/formats/checkpoint/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/checkpoint/manifest_impl.h"
#include "trainer/formats/checkpoint/manifest_spikes_impl.h"

enum { GROUP_SLASHES = 7 };
enum { SET_NAME_MAX = 31, TENSOR_KEY_BYTES = SET_NAME_MAX + 1 + MANIFEST_NAME_BYTES };

void manifest_destroy(struct manifest *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        struct manifest_tensor *t = &m->tensors[i];
        for (int p = 0; p < t->shard_count; p++) {
            free(t->shards[p].dataset);
        }
        free(t->shards);
        free(t->set);
        free(t->name);
    }
    free(m->tensors);
    free(m->files);
    free(m->version);
    free(m->recipe);
    free(m->data_fingerprint);
    text_map_free(&m->file_index);
    text_map_free(&m->tensor_index);
    text_store_free(&m->index_keys);
    *m = (struct manifest){0};
}

/* ---- names ---- */

/* Returns whether the name of a tensor set can begin a file name: [a-z_][a-z0-9_]{0,30}. */
static bool is_set_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    size_t length = strlen(name);
    bool starts_with_digit = name[0] >= '0' && name[0] <= '9';
    return length > 0 && length <= SET_NAME_MAX && !starts_with_digit &&
           strspn(name, letters) == length;
}

/* ---- building ---- */

/* Stores the position of a key. */
static status add_to_index(struct manifest *m, struct text_map *index, const char *key,
                           int position)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(index, &m->index_keys, key, strlen(key), &slot, &is_new));
    slot->value = position;
    return STATUS_OK;
}

static int find_in_index(const struct text_map *index, const char *key)
{
    const struct text_slot *slot = text_map_find(index, key, strlen(key));
    return slot == NULL ? -1 : (int)slot->value;
}

/* Formats "set/name". Returns false if the names are too long for a tensor. */
static bool format_tensor_key(char key[TENSOR_KEY_BYTES], const char *set, const char *name)
{
    size_t set_bytes = strlen(set), name_bytes = strlen(name);
    if (set_bytes > SET_NAME_MAX || name_bytes >= MANIFEST_NAME_BYTES) {
        return false;
    }
    memcpy(key, set, set_bytes);
    key[set_bytes] = '/';
    memcpy(key + set_bytes + 1, name, name_bytes + 1);
    return true;
}

int manifest_find_file(const struct manifest *m, const char *name)
{
    return find_in_index(&m->file_index, name);
}

status manifest_add_file(struct manifest *m, const char *name, int64_t bytes, const char *sha256)
{
    REQUIRE(file_is_safe_name(name, MANIFEST_FILE_SLASHES), STATUS_INTERNAL,
            "invalid file name '%.300s'", name);
    TRY(RESERVE(m->files, m->file_capacity, m->file_count + 1, "the files of a manifest"));
    TRY(add_to_index(m, &m->file_index, name, m->file_count));
    struct manifest_file *file = &m->files[m->file_count++];
    snprintf(file->name, sizeof file->name, "%s", name);
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
    file->bytes = bytes;
    return STATUS_OK;
}

const struct manifest_tensor *manifest_find_tensor(const struct manifest *m, const char *set,
                                                   const char *name)
{
    char key[TENSOR_KEY_BYTES];
    int i = format_tensor_key(key, set, name) ? find_in_index(&m->tensor_index, key) : -1;
    return i < 0 ? NULL : &m->tensors[i];
}

/* Checks the names of a tensor and of its set. */
static status check_names(const char *set, const char *name)
{
    REQUIRE(is_set_name(set), STATUS_INTERNAL, "invalid tensor family '%.100s'", set);
    REQUIRE(file_is_safe_name(name, GROUP_SLASHES), STATUS_INTERNAL, "invalid tensor name '%.300s'",
            name);
    return STATUS_OK;
}

status manifest_add_tensor(struct manifest *m, const char *set, const char *name, enum dtype dtype,
                           int dimensions, const int64_t *shape)
{
    TRY(check_names(set, name));
    TRY(RESERVE(m->tensors, m->tensor_capacity, m->tensor_count + 1, "the tensors of a manifest"));
    struct manifest_tensor *t = &m->tensors[m->tensor_count];
    *t = (struct manifest_tensor){.dtype = dtype,
                                  .dimensions = dimensions,
                                  .shape = {shape[0], dimensions == 2 ? shape[1] : 1}};
    m->tensor_count++;
    TRY(memory_copy_text(&t->set, set, name));
    TRY(memory_copy_text(&t->name, name, name));
    char key[TENSOR_KEY_BYTES];
    format_tensor_key(key, set, name);
    return add_to_index(m, &m->tensor_index, key, m->tensor_count - 1);
}

static bool has_shape(const struct manifest_tensor *t, int dimensions, const int64_t *shape)
{
    return t->dimensions == dimensions && t->shape[0] == shape[0] &&
           (dimensions == 1 || t->shape[1] == shape[1]);
}

status manifest_add_shard(struct manifest *m, const char *set, const char *name, enum dtype dtype,
                          int dimensions, const int64_t *global_shape, const char *file,
                          const char *dataset, const int64_t *offset, const int64_t *shape)
{
    TRY(check_names(set, name));
    REQUIRE(file_is_safe_name(dataset, GROUP_SLASHES), STATUS_INTERNAL,
            "tensor %s: invalid dataset name '%.300s'", name, dataset);
    int index = manifest_find_file(m, file);
    REQUIRE(index >= 0, STATUS_INTERNAL, "tensor %s: the file %s is not in the manifest", name,
            file);
    struct manifest_tensor *t = (struct manifest_tensor *)manifest_find_tensor(m, set, name);
    if (t == NULL) {
        TRY(manifest_add_tensor(m, set, name, dtype, dimensions, global_shape));
        t = &m->tensors[m->tensor_count - 1];
    }
    REQUIRE(has_shape(t, dimensions, global_shape), STATUS_INTERNAL,
            "file %s: the shards of %s have different global shapes", file, name);
    REQUIRE(t->dtype == dtype, STATUS_INTERNAL, "file %s: the shards of %s have different dtypes",
            file, name);
    TRY(RESERVE(t->shards, t->shard_capacity, t->shard_count + 1, "the shards of a tensor"));
    char *dataset_copy;
    TRY(memory_copy_text(&dataset_copy, dataset, "the shards of a tensor"));
    bool matrix = dimensions == 2;
    t->shards[t->shard_count++] =
        (struct manifest_shard){.file = index,
                                .offset = {offset[0], matrix ? offset[1] : 0},
                                .shape = {shape[0], matrix ? shape[1] : 1},
                                .dataset = dataset_copy};
    return STATUS_OK;
}

/* ---- tiling ---- */

static bool is_overlapping(const struct manifest_shard *a, const struct manifest_shard *b)
{
    for (int d = 0; d < 2; d++) {
        if (a->offset[d] >= b->offset[d] + b->shape[d] ||
            b->offset[d] >= a->offset[d] + a->shape[d]) {
            return false;
        }
    }
    return true;
}

static bool is_inside(const struct manifest_tensor *t, const struct manifest_shard *p)
{
    for (int d = 0; d < 2; d++) {
        if (p->offset[d] < 0 || p->shape[d] < 1 || p->offset[d] > t->shape[d] ||
            p->shape[d] > t->shape[d] - p->offset[d]) {
            return false;
        }
    }
    return true;
}

bool manifest_report_fault(char *reason, const char *format, ...)
{
    static const char file[] = MANIFEST_FILE ": ";
    va_list arguments;
    va_start(arguments, format);
    memcpy(reason, file, sizeof file);
    vsnprintf(reason + sizeof file - 1, MANIFEST_REASON_BYTES - sizeof file + 1, format, arguments);
    va_end(arguments);
    return false;
}

/* A reason that reports missing memory begins with "out of memory for". All other reasons
 * that contain text from a manifest begin with the name of the file. */
static const char memory_fault[] = "out of memory for the manifest";
enum { MEMORY_FAULT_PREFIX = 17 };

void manifest_report_note(const struct status_note *note, char *reason)
{
    bool hash_failed =
        note->code == STATUS_INTERNAL && strncmp(note->text, "libcrypto", strlen("libcrypto")) == 0;
    snprintf(reason, MANIFEST_REASON_BYTES, "%s%.*s",
             hash_failed ? "out of memory for a digest: " : "", MANIFEST_REASON_BYTES - 40,
             note->text);
}

bool manifest_lacks_memory(const char *reason)
{
    return strncmp(reason, memory_fault, MEMORY_FAULT_PREFIX) == 0;
}

bool manifest_report_pending(const char *what, char *reason)
{
    struct status_note note;
    status_take(&note);
    manifest_report_note(&note, reason);
    bool lacks_memory = note.code == STATUS_INTERNAL && manifest_lacks_memory(reason);
    return lacks_memory ? false : manifest_report_fault(reason, "%s%s", what, note.text);
}

static int compare_rows(const void *a, const void *b)
{
    const struct manifest_shard *x = a, *y = b;
    return (x->offset[0] > y->offset[0]) - (x->offset[0] < y->offset[0]);
}

static int compare_columns(const void *a, const void *b)
{
    const struct manifest_shard *x = a, *y = b;
    return (x->offset[1] > y->offset[1]) - (x->offset[1] < y->offset[1]);
}

/* Returns whether two shards overlap. It sorts a copy of the shards along the dimension that splits
 * the tensor, so that each shard is compared with its neighbors only. *failed: out of memory. */
static bool has_overlap(const struct manifest_tensor *t, bool *failed)
{
    int count = t->shard_count, d = 1;
    if (count < 2) {
        return false;
    }
    struct manifest_shard *sorted = malloc((size_t)count * sizeof *sorted);
    *failed = sorted == NULL;
    if (*failed) {
        return false;
    }
    memcpy(sorted, t->shards, (size_t)count * sizeof *sorted);
    for (int i = 0; i < count; i++) {
        d = sorted[i].shape[0] < t->shape[0] ? 0 : d;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, d == 0 ? compare_rows : compare_columns);
    bool found = false;
    for (int i = 0; i < count && !found; i++) {
        int64_t end = sorted[i].offset[d] + sorted[i].shape[d];
        for (int j = i + 1; j < count && sorted[j].offset[d] < end && !found; j++) {
            found = is_overlapping(&sorted[i], &sorted[j]);
        }
    }
    free(sorted);
    return found;
}

static bool check_tensor_tiling(const struct manifest_tensor *t, char *reason)
{
    int64_t covered = 0;
    bool failed = false;
    for (int i = 0; i < t->shard_count; i++) {
        const struct manifest_shard *s = &t->shards[i];
        if (!is_inside(t, s)) {
            return manifest_report_fault(reason, "%s: a shard lies outside the tensor", t->name);
        }
        covered += s->shape[0] * s->shape[1];
    }
    if (has_overlap(t, &failed)) {
        return manifest_report_fault(reason, "%s: two shards overlap", t->name);
    }
    if (failed) {
        snprintf(reason, MANIFEST_REASON_BYTES, "%s", memory_fault);
        return false;
    }
    int64_t total = t->shape[0] * t->shape[1];
    return covered == total ||
           manifest_report_fault(reason, "%s: the shards cover %" PRId64 " of %" PRId64 " elements",
                                 t->name, covered, total);
}

int64_t manifest_count_bytes(const struct manifest *m)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->file_count; i++) {
        bytes += m->files[i].bytes;
    }
    return bytes;
}

bool manifest_check_tiling(const struct manifest *m, char *reason)
{
    for (int i = 0; i < m->tensor_count; i++) {
        if (!check_tensor_tiling(&m->tensors[i], reason)) {
            return false;
        }
    }
    return true;
}

/* ---- to text ---- */

static json_t *numbers_to_json(const int64_t *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(array, json_integer(values[i]));
    }
    return array;
}

static json_t *files_to_json(const struct manifest *m)
{
    json_t *array = json_array();
    for (int i = 0; i < m->file_count; i++) {
        const struct manifest_file *f = &m->files[i];
        json_array_append_new(array, json_pack("{s:s, s:I, s:s}", "name", f->name, "bytes",
                                               (json_int_t)f->bytes, "sha256", f->sha256));
    }
    return array;
}

static json_t *shard_to_json(const struct manifest *m, const struct manifest_tensor *t,
                             const struct manifest_shard *p)
{
    json_t *shard = json_pack("{s:s, s:o, s:o}", "file", m->files[p->file].name, "offset",
                              numbers_to_json(p->offset, t->dimensions), "shape",
                              numbers_to_json(p->shape, t->dimensions));
    if (strcmp(p->dataset, t->name) != 0) {
        json_object_set_new(shard, "dataset", json_string(p->dataset));
    }
    return shard;
}

static json_t *tensors_to_json(const struct manifest *m)
{
    json_t *array = json_array();
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        json_t *shards = json_array();
        for (int p = 0; p < t->shard_count; p++) {
            json_array_append_new(shards, shard_to_json(m, t, &t->shards[p]));
        }
        json_array_append_new(
            array, json_pack("{s:s, s:s, s:s, s:o, s:o}", "family", t->set, "name", t->name,
                             "dtype", t->dtype == DTYPE_BF16 ? "bf16" : "f32", "shape",
                             numbers_to_json(t->shape, t->dimensions), "pieces", shards));
    }
    return array;
}

static status dump_and_release(json_t *document, size_t flags, char **out)
{
    *out = document == NULL ? NULL : json_dumps(document, flags);
    json_decref(document);
    REQUIRE(*out != NULL, STATUS_INTERNAL,
            "cannot format a manifest: out of memory, or a string in it (recipe, tensor name) is "
            "not UTF-8");
    return STATUS_OK;
}

status manifest_rank_to_text(const struct manifest *m, char **out)
{
    return dump_and_release(
        json_pack("{s:o, s:o}", "files", files_to_json(m), "tensors", tensors_to_json(m)),
        JSON_COMPACT, out);
}

status manifest_to_text(const struct manifest *m, char **out, size_t *out_bytes)
{
    *out = NULL;
    json_t *document = json_pack(
        "{s:s, s:i, s:s, s:I, s:I, s:I, s:f, s:o, s:i, s:o*, s:s, s:s, s:o, s:o}", "format",
        MANIFEST_FORMAT, "format_version", MANIFEST_FORMAT_VERSION, "version", m->version, "step",
        (json_int_t)m->state.step, "samples", (json_int_t)m->state.samples, "tokens",
        (json_int_t)m->state.tokens, "train_seconds", m->state.train_seconds, "spikes",
        manifest_spikes_to_json(&m->state.spikes), "ranks", m->ranks, "dropout_law",
        m->dropout_scheme > 1 ? json_integer(m->dropout_scheme) : NULL, "data_fingerprint",
        m->data_fingerprint, "recipe", m->recipe, "files", files_to_json(m), "tensors",
        tensors_to_json(m));
    char *plain = NULL;
    TRY(dump_and_release(document, JSON_INDENT(1) | JSON_REAL_PRECISION(17), &plain));
    size_t body = strlen(plain) - 2; /* without the closing "\n}" */
    char digest[HASH_TEXT_BYTES];
    status result = hash_memory(plain, body, digest);
    KEEP_FIRST(result, GROW(plain, body + MANIFEST_TAIL_BYTES + 1, "a manifest"));
    if (result != STATUS_OK) {
        free(plain);
        return result;
    }
    snprintf(plain + body, MANIFEST_TAIL_BYTES + 1, MANIFEST_TAIL, digest);
    *out = plain;
    *out_bytes = body + MANIFEST_TAIL_BYTES;
    return STATUS_OK;
}
