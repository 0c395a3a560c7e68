#include "trainer/formats/checkpoint/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/checkpoint/manifest_spikes_impl.h"

/* The text ends with this tail, which contains the digest of all bytes before the tail. */
#define TAIL_START ",\n \"sha256\": \""
#define TAIL_END "\"\n}\n"
enum { FILE_SLASHES = 1, GROUP_SLASHES = 7 };
enum { SET_NAME_MAX = 31, TENSOR_KEY_BYTES = SET_NAME_MAX + 1 + MANIFEST_NAME_BYTES };
enum { TAIL_BYTES = sizeof TAIL_START - 1 + HASH_TEXT_BYTES - 1 + sizeof TAIL_END - 1 };

static const char FORMAT[] = "bireme-checkpoint";

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
    json_decref(m->file_index);
    json_decref(m->tensor_index);
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

/* Stores the position of a name. Creates the index with its first name. */
static bool add_to_index(json_t **index, const char *key, int position)
{
    if (*index == NULL) {
        *index = json_object();
    }
    return json_object_set_new(*index, key, json_integer(position)) == 0;
}

static int find_in_index(const json_t *index, const char *key)
{
    const json_t *position = json_object_get(index, key);
    return position == NULL ? -1 : (int)json_integer_value(position);
}

static void format_tensor_key(char key[TENSOR_KEY_BYTES], const char *set, const char *name)
{
    snprintf(key, TENSOR_KEY_BYTES, "%s/%s", set, name);
}

status manifest_add_file(struct manifest *m, const char *name, int64_t bytes, const char *sha256)
{
    REQUIRE(file_is_safe_name(name, FILE_SLASHES), STATUS_INTERNAL, "invalid file name '%.300s'",
            name);
    TRY(RESERVE(m->files, m->file_capacity, m->file_count + 1, "the files of a manifest"));
    REQUIRE(add_to_index(&m->file_index, name, m->file_count), STATUS_INTERNAL,
            "out of memory for a manifest of %d files", m->file_count);
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
    format_tensor_key(key, set, name);
    int i = find_in_index(m->tensor_index, key);
    return i < 0 ? NULL : &m->tensors[i];
}

status manifest_add_tensor(struct manifest *m, const char *set, const char *name, enum dtype dtype,
                           int dimensions, const int64_t *shape)
{
    REQUIRE(is_set_name(set), STATUS_INTERNAL, "invalid tensor family '%.100s'", set);
    REQUIRE(file_is_safe_name(name, GROUP_SLASHES), STATUS_INTERNAL, "invalid tensor name '%.300s'",
            name);
    TRY(RESERVE(m->tensors, m->tensor_capacity, m->tensor_count + 1, "the tensors of a manifest"));
    struct manifest_tensor *t = &m->tensors[m->tensor_count];
    *t = (struct manifest_tensor){.dtype = dtype,
                                  .dimensions = dimensions,
                                  .shape = {shape[0], dimensions == 2 ? shape[1] : 1}};
    t->set = strdup(set);
    t->name = strdup(name);
    m->tensor_count++;
    char key[TENSOR_KEY_BYTES];
    format_tensor_key(key, set, name);
    REQUIRE(t->set != NULL && t->name != NULL &&
                add_to_index(&m->tensor_index, key, m->tensor_count - 1),
            STATUS_INTERNAL, "out of memory for %s", name);
    return STATUS_OK;
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
    REQUIRE(is_set_name(set), STATUS_INTERNAL, "invalid tensor family '%.100s'", set);
    REQUIRE(file_is_safe_name(name, GROUP_SLASHES), STATUS_INTERNAL, "invalid tensor name '%.300s'",
            name);
    REQUIRE(file_is_safe_name(dataset, GROUP_SLASHES), STATUS_INTERNAL,
            "tensor %s: invalid dataset name '%.300s'", name, dataset);
    int index = find_in_index(m->file_index, file);
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
    char *dataset_copy = strdup(dataset);
    REQUIRE(dataset_copy != NULL, STATUS_INTERNAL, "out of memory for the shards of %s", name);
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

/* Formats a fault into reason[MANIFEST_REASON_BYTES] and returns false. */
static bool report_fault(char *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool report_fault(char *reason, const char *format, ...)
{
    static const char file[] = MANIFEST_FILE ": ";
    va_list arguments;
    va_start(arguments, format);
    memcpy(reason, file, sizeof file);
    vsnprintf(reason + sizeof file - 1, MANIFEST_REASON_BYTES - sizeof file + 1, format, arguments);
    va_end(arguments);
    return false;
}

/* A reason that reports missing memory begins with "out of memory for". No other reason does,
 * because none begins with text from a manifest. */
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

/* Moves the pending error to `reason` and returns false. */
static bool report_pending(char *reason)
{
    struct status_note note;
    status_take(&note);
    manifest_report_note(&note, reason);
    return manifest_lacks_memory(reason) ? false : report_fault(reason, "%s", note.text);
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

/* Returns whether two shards overlap. Sorts a copy along the dimension that splits the tensor, so
 * that each shard is compared with its neighbours only. *failed: out of memory. */
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
            return report_fault(reason, "%s: a shard lies outside the tensor", t->name);
        }
        covered += s->shape[0] * s->shape[1];
    }
    if (has_overlap(t, &failed)) {
        return report_fault(reason, "%s: two shards overlap", t->name);
    }
    if (failed) {
        snprintf(reason, MANIFEST_REASON_BYTES, "%s", memory_fault);
        return false;
    }
    int64_t total = t->shape[0] * t->shape[1];
    return covered == total ||
           report_fault(reason, "%s: the shards cover %" PRId64 " of %" PRId64 " elements", t->name,
                        covered, total);
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
        "{s:s, s:i, s:s, s:I, s:I, s:I, s:f, s:o, s:i, s:o*, s:s, s:s, s:o, s:o}", "format", FORMAT,
        "format_version", MANIFEST_FORMAT_VERSION, "version", m->version, "step",
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
    KEEP_FIRST(result, GROW(plain, body + TAIL_BYTES + 1, "a manifest"));
    if (result != STATUS_OK) {
        free(plain);
        return result;
    }
    snprintf(plain + body, TAIL_BYTES + 1, "%s%s%s", TAIL_START, digest, TAIL_END);
    *out = plain;
    *out_bytes = body + TAIL_BYTES;
    return STATUS_OK;
}

/* ---- from text ---- */

static bool check_digest(const char *text, size_t bytes, char *reason)
{
    size_t body = bytes < TAIL_BYTES ? 0 : bytes - TAIL_BYTES;
    char digest[HASH_TEXT_BYTES];
    if (hash_memory(text, body, digest) != STATUS_OK) {
        return report_pending(reason);
    }
    char tail[TAIL_BYTES + 1];
    snprintf(tail, sizeof tail, "%s%s%s", TAIL_START, digest, TAIL_END);
    return (bytes >= TAIL_BYTES && memcmp(text + body, tail, TAIL_BYTES) == 0) ||
           report_fault(reason, "its sha256 does not match: truncated or edited");
}

static bool is_digest(const char *text)
{
    return strlen(text) == HASH_TEXT_BYTES - 1 && strspn(text, "0123456789abcdef") == 64;
}

static bool parse_files(struct manifest *m, json_t *array, char *reason)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *name, *sha256;
        json_int_t bytes;
        if (json_unpack(json_array_get(array, i), "{s:s, s:I, s:s}", "name", &name, "bytes", &bytes,
                        "sha256", &sha256) != 0) {
            return report_fault(reason, "file %zu has no name, bytes or sha256", i);
        }
        if (!file_is_safe_name(name, FILE_SLASHES) || bytes < 0 || !is_digest(sha256)) {
            return report_fault(reason, "file %zu has an invalid name, size or digest", i);
        }
        if (find_in_index(m->file_index, name) >= 0) {
            return report_fault(reason, "the file %s is listed twice", name);
        }
        if (manifest_add_file(m, name, bytes, sha256) != STATUS_OK) {
            return report_pending(reason);
        }
    }
    return true;
}

/* Parses an array of exactly `count` integers in [0, 2^40]. */
static bool parse_numbers(json_t *array, int64_t *out, int count)
{
    if (!json_is_array(array) || json_array_size(array) != (size_t)count) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        json_t *value = json_array_get(array, (size_t)i);
        out[i] = (int64_t)json_integer_value(value);
        if (!json_is_integer(value) || out[i] < 0 || out[i] > ((int64_t)1 << 40)) {
            return false;
        }
    }
    return true;
}

static bool parse_shard(struct manifest *m, json_t *item, const struct manifest_tensor *t,
                        char *reason)
{
    const char *file, *dataset = t->name;
    json_t *offsets, *shapes;
    int64_t offset[2], shape[2];
    if (json_unpack(item, "{s:s, s:o, s:o, s?s}", "file", &file, "offset", &offsets, "shape",
                    &shapes, "dataset", &dataset) != 0 ||
        !parse_numbers(offsets, offset, t->dimensions) ||
        !parse_numbers(shapes, shape, t->dimensions)) {
        return report_fault(reason, "%s: a shard has no file, offset or shape", t->name);
    }
    if (manifest_add_shard(m, t->set, t->name, t->dtype, t->dimensions, t->shape, file, dataset,
                           offset, shape) != STATUS_OK) {
        return report_pending(reason);
    }
    return true;
}

static bool parse_tensor(struct manifest *m, json_t *item, char *reason)
{
    struct manifest_tensor t = {0};
    const char *dtype;
    json_t *shape, *shards;
    if (json_unpack(item, "{s:s, s:s, s:s, s:o, s:o}", "family", &t.set, "name", &t.name, "dtype",
                    &dtype, "shape", &shape, "pieces", &shards) != 0) {
        return report_fault(reason, "a tensor has no family, name, dtype, shape or pieces");
    }
    t.dimensions = (int)json_array_size(shape);
    t.dtype = strcmp(dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    if (t.dtype == DTYPE_F32 && strcmp(dtype, "f32") != 0) {
        return report_fault(reason, "%s: unknown dtype %s", t.name, dtype);
    }
    if (t.dimensions < 1 || t.dimensions > 2 || !parse_numbers(shape, t.shape, t.dimensions) ||
        t.shape[0] < 1 || (t.dimensions == 2 && t.shape[1] < 1) ||
        (t.dimensions == 2 && t.shape[0] > ((int64_t)1 << 40) / t.shape[1])) {
        return report_fault(reason, "%s: invalid shape", t.name);
    }
    if (json_array_size(shards) == 0) {
        return report_fault(reason, "%s: its list 'pieces' is empty", t.name);
    }
    for (size_t i = 0; i < json_array_size(shards); i++) {
        if (!parse_shard(m, json_array_get(shards, i), &t, reason)) {
            return false;
        }
    }
    return true;
}

static bool parse_lists(struct manifest *m, json_t *document, char *reason)
{
    json_t *files = json_object_get(document, "files");
    json_t *tensors = json_object_get(document, "tensors");
    if (!json_is_array(files) || !json_is_array(tensors)) {
        return report_fault(reason, "files or tensors is missing");
    }
    if (!parse_files(m, files, reason)) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        if (!parse_tensor(m, json_array_get(tensors, i), reason)) {
            return false;
        }
    }
    return true;
}

status manifest_merge_rank(struct manifest *m, const char *text)
{
    char reason[MANIFEST_REASON_BYTES] = "";
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool good = parse_lists(m, document, reason);
    json_decref(document);
    REQUIRE(good, STATUS_INTERNAL, "the manifest of a rank is invalid: %s", reason);
    return STATUS_OK;
}

static bool parse_header(struct manifest *m, json_t *document, char *reason)
{
    json_int_t step, samples, tokens;
    const char *version, *fingerprint, *recipe;
    m->dropout_scheme = 1;
    if (json_unpack(document, "{s:I, s:I, s:I, s:F, s:i, s?i, s:s, s:s, s:s}", "step", &step,
                    "samples", &samples, "tokens", &tokens, "train_seconds",
                    &m->state.train_seconds, "ranks", &m->ranks, "dropout_law", &m->dropout_scheme,
                    "version", &version, "data_fingerprint", &fingerprint, "recipe",
                    &recipe) != 0) {
        return report_fault(reason, "a field is missing or has the wrong type");
    }
    m->state.step = step;
    m->state.samples = samples;
    m->state.tokens = tokens;
    m->state.spikes.updated_step = step; /* older checkpoints have no field `spikes` */
    json_t *spikes = json_object_get(document, "spikes");
    if (step < 0 || samples < 0 || tokens < 0 || m->ranks < 1 || m->dropout_scheme < 1 ||
        !(m->state.train_seconds >= 0) ||
        (spikes != NULL && !manifest_parse_spikes(spikes, step, &m->state.spikes))) {
        return report_fault(reason, "a number is out of range");
    }
    m->version = strdup(version);
    m->data_fingerprint = strdup(fingerprint);
    m->recipe = strdup(recipe);
    bool copied = m->version != NULL && m->data_fingerprint != NULL && m->recipe != NULL;
    if (!copied) {
        snprintf(reason, MANIFEST_REASON_BYTES, "%s", memory_fault);
    }
    return copied;
}

/* Checks the format version. It runs before the check of the digest, because a later format may
 * store its digest elsewhere. */
static bool check_format(json_t *document, char *reason)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    json_t *version = json_object_get(document, "format_version");
    if (format == NULL || strcmp(format, FORMAT) != 0 || !json_is_integer(version)) {
        return report_fault(reason, "not a manifest of %s", FORMAT);
    }
    json_int_t number = json_integer_value(version);
    return number == MANIFEST_FORMAT_VERSION ||
           report_fault(reason,
                        "format_version %" PRId64 " is not supported, this program reads %d",
                        (int64_t)number, MANIFEST_FORMAT_VERSION);
}

bool manifest_parse(const char *text, size_t bytes, struct manifest *out, char *reason)
{
    *out = (struct manifest){0};
    json_error_t error;
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (document == NULL) {
        return report_fault(reason, "truncated or empty: line %d: %s", error.line, error.text);
    }
    bool good = check_format(document, reason) && check_digest(text, bytes, reason) &&
                parse_header(out, document, reason) && parse_lists(out, document, reason) &&
                manifest_check_tiling(out, reason);
    json_decref(document);
    return good;
}
