/* Reads the text of a manifest. Only the fields outside of the lists of files and tensors become a
 * tree, because a tree of 100,000 tensors takes most of the time. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/checkpoint/manifest_impl.h"
#include "trainer/formats/checkpoint/manifest_spikes_impl.h"
#include "trainer/formats/json/json_members.h"

/* ---- the fields of an item of a list ---- */

/* A list of one or two integers in [0, 2^40]. */
struct numbers {
    int64_t values[2];
    int count; /* at most 2, even if the list has more items */
    bool is_valid;
};

enum field_type { FIELD_TEXT, FIELD_INTEGER, FIELD_NUMBERS, FIELD_LIST };

struct field {
    const char *name;
    enum field_type type;
    void *out; /* char **, int64_t *, struct numbers * or size_t *, the position of a list */
    bool is_optional, is_known, is_found; /* is_known: the item has a field of this name */
};

static status skip_value(struct json_members *text)
{
    json_t *value;
    TRY(json_members_read(text, text->bytes, &value));
    json_decref(value);
    return STATUS_OK;
}

static status read_numbers(struct json_members *text, struct numbers *out)
{
    bool has_item, is_integer;
    *out = (struct numbers){.is_valid = true};
    TRY(json_members_begin_list(text));
    TRY(json_members_next_item(text, &has_item));
    while (has_item) {
        int64_t value;
        TRY(json_members_read_integer(text, &value, &is_integer));
        out->is_valid &= is_integer && out->count < 2 && value >= 0 && value <= (int64_t)1 << 40;
        if (out->is_valid) {
            out->values[out->count++] = value;
        }
        TRY(json_members_next_item(text, &has_item));
    }
    return STATUS_OK;
}

/* Reads the value of a field. A value of another type is skipped, and the field is not found. */
static status read_field(struct json_members *text, struct field *field)
{
    bool is_text = field->type == FIELD_TEXT;
    if (field->type == FIELD_INTEGER) {
        return json_members_read_integer(text, field->out, &field->is_found);
    }
    field->is_found = json_members_is_next(text, is_text ? '"' : '[');
    if (!field->is_found) {
        return skip_value(text);
    }
    return is_text                        ? json_members_read_text(text, field->out)
           : field->type == FIELD_NUMBERS ? read_numbers(text, field->out)
                                          : json_members_skip_list(text, field->out);
}

/* Reads an item and skips unknown fields. *is_complete is false if a required field is missing or
 * if a field has a wrong type. */
static status read_item(struct json_members *text, struct field *fields, int count,
                        bool *is_complete)
{
    char *name;
    TRY(json_members_begin(text));
    TRY(json_members_next(text, &name));
    while (name != NULL) {
        int i = 0;
        while (i < count && strcmp(fields[i].name, name) != 0) {
            i++;
        }
        REQUIRE(i == count || !fields[i].is_known, STATUS_DATA, "the field '%s' occurs twice",
                name);
        if (i < count) {
            fields[i].is_known = true;
        }
        TRY(i < count ? read_field(text, &fields[i]) : skip_value(text));
        TRY(json_members_next(text, &name));
    }
    *is_complete = true;
    for (int i = 0; i < count; i++) {
        *is_complete &= fields[i].is_found || (fields[i].is_optional && !fields[i].is_known);
    }
    return STATUS_OK;
}

/* ---- files and tensors ---- */

static bool is_digest(const char *text)
{
    return strlen(text) == HASH_TEXT_BYTES - 1 && strspn(text, "0123456789abcdef") == 64;
}

static status read_file(struct manifest *m, struct json_members *text)
{
    char *name = NULL, *sha256 = NULL;
    int64_t bytes = -1;
    struct field fields[] = {{.name = "name", .out = &name},
                             {.name = "bytes", .type = FIELD_INTEGER, .out = &bytes},
                             {.name = "sha256", .out = &sha256}};
    bool is_complete;
    TRY(read_item(text, fields, COUNT(fields), &is_complete));
    REQUIRE(is_complete, STATUS_DATA, "file %d has no name, bytes or sha256", m->file_count);
    REQUIRE(file_is_safe_name(name, MANIFEST_FILE_SLASHES) && bytes >= 0 && is_digest(sha256),
            STATUS_DATA, "file %d has an invalid name, size or digest", m->file_count);
    REQUIRE(manifest_find_file(m, name) < 0, STATUS_DATA, "the file %s is listed twice", name);
    return manifest_add_file(m, name, bytes, sha256);
}

static status read_shard(struct manifest *m, struct json_members *text,
                         const struct manifest_tensor *t)
{
    char *file = NULL, *dataset = t->name;
    struct numbers offset, shape;
    struct field fields[] = {{.name = "file", .out = &file},
                             {.name = "offset", .type = FIELD_NUMBERS, .out = &offset},
                             {.name = "shape", .type = FIELD_NUMBERS, .out = &shape},
                             {.name = "dataset", .out = &dataset, .is_optional = true}};
    bool is_complete;
    TRY(read_item(text, fields, COUNT(fields), &is_complete));
    REQUIRE(is_complete && offset.is_valid && shape.is_valid && offset.count == t->dimensions &&
                shape.count == t->dimensions,
            STATUS_DATA, "%s: a shard has no file, offset or shape", t->name);
    return manifest_add_shard(m, t->set, t->name, t->dtype, t->dimensions, t->shape, file, dataset,
                              offset.values, shape.values);
}

/* Reads the list of shards at `begin`. The position of `text` does not change. */
static status read_shards(struct manifest *m, struct json_members *text, size_t begin,
                          const struct manifest_tensor *t)
{
    struct json_members shards = *text;
    bool has_item;
    shards.at = begin;
    TRY(json_members_begin_list(&shards));
    TRY(json_members_next_item(&shards, &has_item));
    REQUIRE(has_item, STATUS_DATA, "%s: its list 'pieces' is empty", t->name);
    while (has_item) {
        TRY(read_shard(m, &shards, t));
        TRY(json_members_next_item(&shards, &has_item));
    }
    return STATUS_OK;
}

static status read_tensor(struct manifest *m, struct json_members *text)
{
    struct manifest_tensor t = {0};
    char *dtype = NULL;
    struct numbers shape;
    size_t shards = 0;
    struct field fields[] = {{.name = "family", .out = &t.set},
                             {.name = "name", .out = &t.name},
                             {.name = "dtype", .out = &dtype},
                             {.name = "shape", .type = FIELD_NUMBERS, .out = &shape},
                             {.name = "pieces", .type = FIELD_LIST, .out = &shards}};
    bool is_complete;
    TRY(read_item(text, fields, COUNT(fields), &is_complete));
    REQUIRE(is_complete, STATUS_DATA, "a tensor has no family, name, dtype, shape or pieces");
    t.dtype = strcmp(dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    REQUIRE(t.dtype == DTYPE_BF16 || strcmp(dtype, "f32") == 0, STATUS_DATA, "%s: unknown dtype %s",
            t.name, dtype);
    t.dimensions = shape.count;
    t.shape[0] = shape.values[0];
    t.shape[1] = shape.values[1];
    REQUIRE(shape.is_valid && t.dimensions >= 1 && t.shape[0] >= 1 &&
                (t.dimensions == 1 ||
                 (t.shape[1] >= 1 && t.shape[0] <= ((int64_t)1 << 40) / t.shape[1])),
            STATUS_DATA, "%s: invalid shape", t.name);
    return read_shards(m, text, shards, &t);
}

/* ---- the whole text ---- */

/* A text. Its lists are read last. */
struct document {
    struct json_members text; /* a copy, because texts are decoded in place */
    json_t *header;           /* all fields outside of the lists */
    size_t files, tensors;    /* positions of the lists; 0: missing */
};

static void free_document(struct document *d)
{
    free(d->text.text);
    json_decref(d->header);
}

static status read_header_field(struct document *d, const char *name)
{
    size_t *list = strcmp(name, "files") == 0     ? &d->files
                   : strcmp(name, "tensors") == 0 ? &d->tensors
                                                  : NULL;
    REQUIRE(json_object_get(d->header, name) == NULL && (list == NULL || *list == 0), STATUS_DATA,
            "the field '%s' occurs twice", name);
    if (list != NULL && json_members_is_next(&d->text, '[')) {
        return json_members_skip_list(&d->text, list);
    }
    json_t *value;
    TRY(json_members_read(&d->text, d->text.bytes, &value));
    REQUIRE(json_object_set_new(d->header, name, value) == 0, STATUS_INTERNAL,
            "out of memory for the manifest");
    return STATUS_OK;
}

/* Copies the text, reads the header and finds the lists. */
static status open_document(struct document *d, const char *text, size_t bytes)
{
    char *name;
    *d = (struct document){.text = {.source = "its text", .bytes = bytes}, .header = json_object()};
    REQUIRE(d->header != NULL, STATUS_INTERNAL, "out of memory for the manifest");
    TRY(ALLOCATE(d->text.text, bytes + 1, "a manifest"));
    memcpy(d->text.text, text, bytes); /* damaged text can contain NUL */
    TRY(json_members_begin(&d->text));
    TRY(json_members_next(&d->text, &name));
    while (name != NULL) {
        TRY(read_header_field(d, name));
        TRY(json_members_next(&d->text, &name));
    }
    return json_members_finish(&d->text);
}

static status read_list(struct manifest *m, struct document *d, size_t begin,
                        status (*read)(struct manifest *m, struct json_members *text))
{
    bool has_item;
    d->text.at = begin;
    TRY(json_members_begin_list(&d->text));
    TRY(json_members_next_item(&d->text, &has_item));
    while (has_item) {
        TRY(read(m, &d->text));
        TRY(json_members_next_item(&d->text, &has_item));
    }
    return STATUS_OK;
}

static status read_lists(struct manifest *m, struct document *d)
{
    REQUIRE(d->files > 0 && d->tensors > 0, STATUS_DATA, "files or tensors is missing");
    TRY(read_list(m, d, d->files, read_file));
    return read_list(m, d, d->tensors, read_tensor);
}

status manifest_merge_rank(struct manifest *m, const char *text)
{
    char reason[MANIFEST_REASON_BYTES] = "";
    struct document d;
    bool good =
        (open_document(&d, text, strlen(text)) == STATUS_OK && read_lists(m, &d) == STATUS_OK) ||
        manifest_report_pending("", reason);
    free_document(&d);
    REQUIRE(good, STATUS_INTERNAL, "the manifest of a rank is invalid: %s", reason);
    return STATUS_OK;
}

static bool check_digest(const char *text, size_t bytes, char *reason)
{
    size_t body = bytes < MANIFEST_TAIL_BYTES ? 0 : bytes - MANIFEST_TAIL_BYTES;
    char digest[HASH_TEXT_BYTES];
    if (hash_memory(text, body, digest) != STATUS_OK) {
        return manifest_report_pending("", reason);
    }
    char tail[MANIFEST_TAIL_BYTES + 1];
    snprintf(tail, sizeof tail, MANIFEST_TAIL, digest);
    return (bytes >= MANIFEST_TAIL_BYTES && memcmp(text + body, tail, MANIFEST_TAIL_BYTES) == 0) ||
           manifest_report_fault(reason, "its sha256 does not match: truncated or edited");
}

static status copy_texts(struct manifest *m, const char *version, const char *fingerprint,
                         const char *recipe)
{
    TRY(memory_copy_text(&m->version, version, "the manifest"));
    TRY(memory_copy_text(&m->data_fingerprint, fingerprint, "the manifest"));
    return memory_copy_text(&m->recipe, recipe, "the manifest");
}

static bool parse_header(struct manifest *m, json_t *header, char *reason)
{
    json_int_t step, samples, tokens;
    const char *version, *fingerprint, *recipe;
    m->dropout_scheme = 1;
    if (json_unpack(header, "{s:I, s:I, s:I, s:F, s:i, s?i, s:s, s:s, s:s}", "step", &step,
                    "samples", &samples, "tokens", &tokens, "train_seconds",
                    &m->state.train_seconds, "ranks", &m->ranks, "dropout_law", &m->dropout_scheme,
                    "version", &version, "data_fingerprint", &fingerprint, "recipe",
                    &recipe) != 0) {
        return manifest_report_fault(reason, "a field is missing or has the wrong type");
    }
    m->state.step = step;
    m->state.samples = samples;
    m->state.tokens = tokens;
    m->state.spikes.updated_step = step; /* older checkpoints have no field `spikes` */
    json_t *spikes = json_object_get(header, "spikes");
    if (step < 0 || samples < 0 || tokens < 0 || m->ranks < 1 || m->dropout_scheme < 1 ||
        !(m->state.train_seconds >= 0) ||
        (spikes != NULL && !manifest_parse_spikes(spikes, step, &m->state.spikes))) {
        return manifest_report_fault(reason, "a number is out of range");
    }
    return copy_texts(m, version, fingerprint, recipe) == STATUS_OK ||
           manifest_report_pending("", reason);
}

/* Checks the format version. It runs before the check of the digest, because a later format may
 * store its digest elsewhere. */
static bool check_format(json_t *header, char *reason)
{
    const char *format = json_string_value(json_object_get(header, "format"));
    json_t *version = json_object_get(header, "format_version");
    if (format == NULL || strcmp(format, MANIFEST_FORMAT) != 0 || !json_is_integer(version)) {
        return manifest_report_fault(reason, "not a manifest of %s", MANIFEST_FORMAT);
    }
    json_int_t number = json_integer_value(version);
    return number == MANIFEST_FORMAT_VERSION ||
           manifest_report_fault(reason,
                                 "format_version %" PRId64 " is not supported, this program reads "
                                 "%d",
                                 (int64_t)number, MANIFEST_FORMAT_VERSION);
}

bool manifest_parse(const char *text, size_t bytes, struct manifest *out, char *reason)
{
    struct document d;
    *out = (struct manifest){0};
    bool good = (open_document(&d, text, bytes) == STATUS_OK ||
                 manifest_report_pending("truncated or empty: ", reason)) &&
                check_format(d.header, reason) && check_digest(text, bytes, reason) &&
                parse_header(out, d.header, reason) &&
                (read_lists(out, &d) == STATUS_OK || manifest_report_pending("", reason)) &&
                manifest_check_tiling(out, reason);
    free_document(&d);
    return good;
}
