#include "trainer/checkpoint/manifest.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The digest is the last field; everything before this tail is what it digests. */
#define TAIL_START ",\n \"sha256\": \""
#define TAIL_END "\"\n}\n"
enum { TAIL_BYTES = sizeof TAIL_START - 1 + HASH_TEXT_BYTES - 1 + sizeof TAIL_END - 1 };

static const char FORMAT[] = "bireme-checkpoint";

void manifest_destroy(struct manifest *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        struct manifest_tensor *t = &m->tensors[i];
        for (int p = 0; p < t->count; p++) {
            free(t->pieces[p].dataset);
        }
        free(t->pieces);
        free(t->family);
        free(t->name);
    }
    free(m->tensors);
    free(m->files);
    free(m->version);
    free(m->recipe);
    free(m->data_fingerprint);
    *m = (struct manifest){0};
}

/* Room for one more element: sizes double, so that n additions cost O(n). */
static bool grow(void **array, int count, size_t element_bytes)
{
    if (count != 0 && (count & (count - 1)) != 0) {
        return true;
    }
    size_t next = count == 0 ? 1 : 2 * (size_t)count;
    void *larger = realloc(*array, next * element_bytes);
    if (larger == NULL) {
        return false;
    }
    *array = larger;
    return true;
}

status manifest_add_file(struct manifest *m, const char *name, int64_t bytes, const char *sha256)
{
    REQUIRE(strlen(name) < MANIFEST_NAME_BYTES, STATUS_INTERNAL, "file name too long: %s", name);
    REQUIRE(grow((void **)&m->files, m->file_count, sizeof *m->files), STATUS_INTERNAL,
            "out of memory for a manifest of %d files", m->file_count);
    struct manifest_file *file = &m->files[m->file_count++];
    snprintf(file->name, sizeof file->name, "%s", name);
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
    file->bytes = bytes;
    return STATUS_OK;
}

static int find_file(const struct manifest *m, const char *name)
{
    for (int i = m->file_count - 1; i >= 0; i--) {
        if (strcmp(m->files[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

const struct manifest_tensor *manifest_find(const struct manifest *m, const char *family,
                                            const char *name)
{
    for (int i = 0; i < m->tensor_count; i++) {
        if (strcmp(m->tensors[i].name, name) == 0 && strcmp(m->tensors[i].family, family) == 0) {
            return &m->tensors[i];
        }
    }
    return NULL;
}

static status add_tensor(struct manifest *m, const char *family, const char *name, int dimensions,
                         const int64_t *shape, struct manifest_tensor **out)
{
    REQUIRE(grow((void **)&m->tensors, m->tensor_count, sizeof *m->tensors), STATUS_INTERNAL,
            "out of memory for a manifest of %d tensors", m->tensor_count);
    struct manifest_tensor *t = &m->tensors[m->tensor_count];
    *t = (struct manifest_tensor){.dimensions = dimensions,
                                  .shape = {shape[0], dimensions == 2 ? shape[1] : 1}};
    t->family = strdup(family);
    t->name = strdup(name);
    m->tensor_count++;
    REQUIRE(t->family != NULL && t->name != NULL, STATUS_INTERNAL, "out of memory for %s", name);
    *out = t;
    return STATUS_OK;
}

static bool same_shape(const struct manifest_tensor *t, int dimensions, const int64_t *shape)
{
    return t->dimensions == dimensions && t->shape[0] == shape[0] &&
           (dimensions == 1 || t->shape[1] == shape[1]);
}

status manifest_add_piece(struct manifest *m, const char *family, const char *name, int dimensions,
                          const int64_t *global_shape, const char *file, const char *dataset,
                          const int64_t *offset, const int64_t *shape)
{
    int index = find_file(m, file);
    REQUIRE(index >= 0, STATUS_INTERNAL, "%s: the file %s is not in the manifest", name, file);
    struct manifest_tensor *t = (struct manifest_tensor *)manifest_find(m, family, name);
    if (t == NULL) {
        TRY(add_tensor(m, family, name, dimensions, global_shape, &t));
    }
    REQUIRE(same_shape(t, dimensions, global_shape), STATUS_INTERNAL,
            "%s: two pieces of %s disagree on its shape", file, name);
    REQUIRE(grow((void **)&t->pieces, t->count, sizeof *t->pieces), STATUS_INTERNAL,
            "out of memory for the pieces of %s", name);
    char *kept = strdup(dataset);
    REQUIRE(kept != NULL, STATUS_INTERNAL, "out of memory for the pieces of %s", name);
    bool matrix = dimensions == 2;
    t->pieces[t->count++] = (struct manifest_piece){.file = index,
                                                    .offset = {offset[0], matrix ? offset[1] : 0},
                                                    .shape = {shape[0], matrix ? shape[1] : 1},
                                                    .dataset = kept};
    return STATUS_OK;
}

/* ---- tiling ---- */

static bool overlap(const struct manifest_piece *a, const struct manifest_piece *b)
{
    for (int d = 0; d < 2; d++) {
        if (a->offset[d] >= b->offset[d] + b->shape[d] ||
            b->offset[d] >= a->offset[d] + a->shape[d]) {
            return false;
        }
    }
    return true;
}

static bool inside(const struct manifest_tensor *t, const struct manifest_piece *p)
{
    for (int d = 0; d < 2; d++) {
        if (p->offset[d] < 0 || p->shape[d] < 1 || p->offset[d] > t->shape[d] ||
            p->shape[d] > t->shape[d] - p->offset[d]) {
            return false;
        }
    }
    return true;
}

static bool complain(char *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool complain(char *reason, const char *format, ...)
{
    static const char file[] = MANIFEST_FILE ": ";
    va_list arguments;
    va_start(arguments, format);
    memcpy(reason, file, sizeof file);
    vsnprintf(reason + sizeof file - 1, MANIFEST_REASON_BYTES - sizeof file + 1, format, arguments);
    va_end(arguments);
    return false;
}

static bool tensor_tiles(const struct manifest_tensor *t, char *reason)
{
    int64_t covered = 0;
    for (int i = 0; i < t->count; i++) {
        const struct manifest_piece *p = &t->pieces[i];
        if (!inside(t, p)) {
            return complain(reason, "%s: a piece lies outside of the tensor", t->name);
        }
        covered += p->shape[0] * p->shape[1];
        for (int j = 0; j < i; j++) {
            if (overlap(p, &t->pieces[j])) {
                return complain(reason, "%s: two pieces overlap", t->name);
            }
        }
    }
    int64_t whole = t->shape[0] * t->shape[1];
    return covered == whole || complain(reason, "%s: %lld of %lld elements are there", t->name,
                                        (long long)covered, (long long)whole);
}

bool manifest_tile(const struct manifest *m, char *reason)
{
    for (int i = 0; i < m->tensor_count; i++) {
        if (!tensor_tiles(&m->tensors[i], reason)) {
            return false;
        }
    }
    return true;
}

/* ---- to text ---- */

static json_t *numbers(const int64_t *values, int count)
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

static json_t *piece_to_json(const struct manifest *m, const struct manifest_tensor *t,
                             const struct manifest_piece *p)
{
    json_t *piece =
        json_pack("{s:s, s:o, s:o}", "file", m->files[p->file].name, "offset",
                  numbers(p->offset, t->dimensions), "shape", numbers(p->shape, t->dimensions));
    if (strcmp(p->dataset, t->name) != 0) {
        json_object_set_new(piece, "dataset", json_string(p->dataset));
    }
    return piece;
}

static json_t *tensors_to_json(const struct manifest *m)
{
    json_t *array = json_array();
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        json_t *pieces = json_array();
        for (int p = 0; p < t->count; p++) {
            json_array_append_new(pieces, piece_to_json(m, t, &t->pieces[p]));
        }
        json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:o, s:o}", "family", t->family,
                                               "name", t->name, "dtype", "f32", "shape",
                                               numbers(t->shape, t->dimensions), "pieces", pieces));
    }
    return array;
}

static status dump(json_t *document, size_t flags, char **out)
{
    *out = document == NULL ? NULL : json_dumps(document, flags);
    json_decref(document);
    REQUIRE(*out != NULL, STATUS_INTERNAL,
            "cannot write a manifest: no memory, or a text in it "
            "(recipe, tensor name) is not UTF-8");
    return STATUS_OK;
}

status manifest_part_text(const struct manifest *m, char **out)
{
    return dump(json_pack("{s:o, s:o}", "files", files_to_json(m), "tensors", tensors_to_json(m)),
                JSON_COMPACT, out);
}

status manifest_text(const struct manifest *m, char **out, size_t *out_bytes)
{
    *out = NULL;
    json_t *document =
        json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:f, s:i, s:s, s:s, s:o, s:o}", "format", FORMAT,
                  "format_version", MANIFEST_FORMAT_VERSION, "version", m->version, "step",
                  (json_int_t)m->state.step, "samples", (json_int_t)m->state.samples, "tokens",
                  (json_int_t)m->state.tokens, "train_seconds", m->state.train_seconds, "ranks",
                  m->ranks, "data_fingerprint", m->data_fingerprint, "recipe", m->recipe, "files",
                  files_to_json(m), "tensors", tensors_to_json(m));
    char *plain = NULL;
    TRY(dump(document, JSON_INDENT(1) | JSON_REAL_PRECISION(17), &plain));
    size_t body = strlen(plain) - 2; /* without the closing "\n}" */
    char digest[HASH_TEXT_BYTES];
    status result = hash_memory(plain, body, digest);
    char *text = result == STATUS_OK ? realloc(plain, body + TAIL_BYTES + 1) : NULL;
    if (text == NULL) {
        free(plain);
        return result != STATUS_OK
                   ? result
                   : status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory");
    }
    snprintf(text + body, TAIL_BYTES + 1, "%s%s%s", TAIL_START, digest, TAIL_END);
    *out = text;
    *out_bytes = body + TAIL_BYTES;
    return STATUS_OK;
}

/* ---- from text ---- */

static bool digest_holds(const char *text, size_t bytes)
{
    if (bytes < TAIL_BYTES) {
        return false;
    }
    size_t body = bytes - TAIL_BYTES;
    char digest[HASH_TEXT_BYTES];
    if (hash_memory(text, body, digest) != STATUS_OK) {
        status_clear();
        return false;
    }
    char tail[TAIL_BYTES + 1];
    snprintf(tail, sizeof tail, "%s%s%s", TAIL_START, digest, TAIL_END);
    return memcmp(text + body, tail, TAIL_BYTES) == 0;
}

/* Names stay inside the folder: letters, digits, "._-", one '/', no part that begins with a dot. */
static bool file_name_is_safe(const char *name)
{
    int slashes = 0;
    for (const char *c = name; *c != '\0'; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        bool other = (*c >= '0' && *c <= '9') || strchr("._-/", *c) != NULL;
        bool starts = c == name || c[-1] == '/';
        slashes += *c == '/';
        if (!(letter || other) || (starts && (*c == '.' || *c == '/'))) {
            return false;
        }
    }
    size_t length = strlen(name);
    return length > 0 && length < MANIFEST_NAME_BYTES && name[length - 1] != '/' && slashes <= 1;
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
            return complain(reason, "file %zu lacks name, bytes or sha256", i);
        }
        if (!file_name_is_safe(name) || bytes < 0 || !is_digest(sha256)) {
            return complain(reason, "file %zu has an unusable name, size or digest", i);
        }
        if (find_file(m, name) >= 0) {
            return complain(reason, "the file %s is named twice", name);
        }
        if (manifest_add_file(m, name, bytes, sha256) != STATUS_OK) {
            status_clear();
            return complain(reason, "out of memory");
        }
    }
    return true;
}

/* An array of exactly `count` integers of 0 or more, each at most 2^40. */
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

static bool parse_piece(struct manifest *m, json_t *item, const struct manifest_tensor *of,
                        char *reason)
{
    const char *file, *dataset = of->name;
    json_t *offsets, *shapes;
    int64_t offset[2], shape[2];
    if (json_unpack(item, "{s:s, s:o, s:o, s?s}", "file", &file, "offset", &offsets, "shape",
                    &shapes, "dataset", &dataset) != 0 ||
        !parse_numbers(offsets, offset, of->dimensions) ||
        !parse_numbers(shapes, shape, of->dimensions)) {
        return complain(reason, "%s: a piece lacks file, offset or shape", of->name);
    }
    if (manifest_add_piece(m, of->family, of->name, of->dimensions, of->shape, file, dataset,
                           offset, shape) != STATUS_OK) {
        complain(reason, "%s", status_pending()->text);
        status_clear();
        return false;
    }
    return true;
}

static bool parse_tensor(struct manifest *m, json_t *item, char *reason)
{
    struct manifest_tensor t = {0};
    const char *dtype;
    json_t *shape, *pieces;
    if (json_unpack(item, "{s:s, s:s, s:s, s:o, s:o}", "family", &t.family, "name", &t.name,
                    "dtype", &dtype, "shape", &shape, "pieces", &pieces) != 0) {
        return complain(reason, "a tensor lacks family, name, dtype, shape or pieces");
    }
    t.dimensions = (int)json_array_size(shape);
    if (strcmp(dtype, "f32") != 0) {
        return complain(reason, "%s: dtype %s is not known", t.name, dtype);
    }
    if (t.dimensions < 1 || t.dimensions > 2 || !parse_numbers(shape, t.shape, t.dimensions) ||
        t.shape[0] < 1 || (t.dimensions == 2 && t.shape[1] < 1) ||
        (t.dimensions == 2 && t.shape[0] > ((int64_t)1 << 40) / t.shape[1])) {
        return complain(reason, "%s: unusable shape", t.name);
    }
    if (json_array_size(pieces) == 0) {
        return complain(reason, "%s: no pieces", t.name);
    }
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        if (!parse_piece(m, json_array_get(pieces, i), &t, reason)) {
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
        return complain(reason, "files or tensors is missing");
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

status manifest_add_part(struct manifest *m, const char *text)
{
    char reason[MANIFEST_REASON_BYTES] = "";
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool good = parse_lists(m, document, reason);
    json_decref(document);
    REQUIRE(good, STATUS_INTERNAL, "a rank's part of the manifest: %s", reason);
    return STATUS_OK;
}

static bool parse_header(struct manifest *m, json_t *document, char *reason)
{
    json_int_t step, samples, tokens;
    const char *version, *fingerprint, *recipe;
    if (json_unpack(document, "{s:I, s:I, s:I, s:F, s:i, s:s, s:s, s:s}", "step", &step, "samples",
                    &samples, "tokens", &tokens, "train_seconds", &m->state.train_seconds, "ranks",
                    &m->ranks, "version", &version, "data_fingerprint", &fingerprint, "recipe",
                    &recipe) != 0) {
        return complain(reason, "a field is missing or has the wrong type");
    }
    m->state.step = step;
    m->state.samples = samples;
    m->state.tokens = tokens;
    if (step < 0 || samples < 0 || tokens < 0 || m->ranks < 1 || !(m->state.train_seconds >= 0)) {
        return complain(reason, "a number is out of range");
    }
    m->version = strdup(version);
    m->data_fingerprint = strdup(fingerprint);
    m->recipe = strdup(recipe);
    return (m->version != NULL && m->data_fingerprint != NULL && m->recipe != NULL) ||
           complain(reason, "out of memory");
}

/* A later format may keep its digest elsewhere: its version is told before the digest is asked. */
static bool format_is_known(json_t *document, char *reason)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    json_t *version = json_object_get(document, "format_version");
    if (format == NULL || strcmp(format, FORMAT) != 0 || !json_is_integer(version)) {
        return complain(reason,
                        "not a manifest of "
                        "%s",
                        FORMAT);
    }
    json_int_t number = json_integer_value(version);
    return number == MANIFEST_FORMAT_VERSION ||
           complain(reason, "format_version %lld is not supported, this program reads %d",
                    (long long)number, MANIFEST_FORMAT_VERSION);
}

bool manifest_parse(const char *text, size_t bytes, struct manifest *out, char *reason)
{
    *out = (struct manifest){0};
    json_error_t error;
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (document == NULL) {
        return complain(reason, "torn or empty: line %d: %s", error.line, error.text);
    }
    bool good = format_is_known(document, reason) &&
                (digest_holds(text, bytes) || complain(reason, "its own sha256 does "
                                                               "not match: torn or edited")) &&
                parse_header(out, document, reason) && parse_lists(out, document, reason) &&
                manifest_tile(out, reason);
    json_decref(document);
    return good;
}
