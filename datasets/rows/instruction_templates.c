#include "datasets/rows/instruction_templates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/text_buffer.h"
#include "datasets/rows/columns.h"

enum { PARTS_MAX = 64, KEYS_MAX = 4 };

/* A piece of a text: literal text, or a value of the row. */
struct part {
    char *text;    /* literal text; NULL: a value */
    int key_count; /* 1: a field of the row; a further key selects a part of the value */
    char *keys[KEYS_MAX];
};

struct format {
    struct part parts[PARTS_MAX];
    int count, fields;
};

struct instruction_template {
    char *name, *location;
    struct format input, target;
    int64_t rows;
};

struct instruction_templates {
    uint64_t seed;
    bool as_messages;
    int count;
    struct instruction_template *items[INSTRUCTION_TEMPLATES_MAX];
    struct text_buffer input, target; /* texts of the current row */
};

status instruction_templates_create(uint64_t seed, bool as_messages,
                                    struct instruction_templates **out)
{
    TRY(ALLOCATE(*out, 1, "templates"));
    (*out)->seed = seed;
    (*out)->as_messages = as_messages;
    return STATUS_OK;
}

static void free_format(struct format *f)
{
    for (int i = 0; i < f->count; i++) {
        free(f->parts[i].text);
        for (int k = 0; k < f->parts[i].key_count; k++) {
            free(f->parts[i].keys[k]);
        }
    }
}

void instruction_templates_destroy(struct instruction_templates **t)
{
    for (int i = 0; *t != NULL && i < (*t)->count; i++) {
        struct instruction_template *item = (*t)->items[i];
        free_format(&item->input);
        free_format(&item->target);
        free(item->name);
        free(item->location);
        free(item);
    }
    if (*t != NULL) {
        text_buffer_free(&(*t)->input);
        text_buffer_free(&(*t)->target);
    }
    free(*t);
    *t = NULL;
}

int instruction_templates_count(const struct instruction_templates *t)
{
    return t->count;
}

const char *instruction_templates_name(const struct instruction_templates *t, int i, int64_t *rows)
{
    *rows = t->items[i]->rows;
    return t->items[i]->name;
}

/* ---- parsing ---- */

static status add_part(struct format *f, struct part **out)
{
    REQUIRE(f->count < PARTS_MAX, STATUS_RECIPE, "more than %d fields and texts between them",
            PARTS_MAX);
    *out = &f->parts[f->count++];
    **out = (struct part){0};
    return STATUS_OK;
}

/* Adds the value of "field", "field[key]" or "field[key][key]". */
static status add_value(struct format *f, const char *text, size_t bytes)
{
    struct part *part = NULL;
    const char *end = text + bytes;
    size_t length = strcspn(text, "[]{}");
    REQUIRE(length > 0, STATUS_RECIPE, "a field has no name; write {field}, and {{ for a brace");
    TRY(add_part(f, &part));
    f->fields++;
    TRY(memory_copy_bytes(&part->keys[part->key_count++], text, length, "a template"));
    for (text += length; text < end; text += length + 2) {
        length = strcspn(text + 1, "[]{}");
        REQUIRE(text[0] == '[' && text[1 + length] == ']' && length > 0, STATUS_RECIPE,
                "the field {%.*s} is neither {field} nor {field[key]}", (int)bytes, end - bytes);
        REQUIRE(part->key_count < KEYS_MAX, STATUS_RECIPE, "the field {%.*s} has too many keys",
                (int)bytes, end - bytes);
        TRY(memory_copy_bytes(&part->keys[part->key_count++], text + 1, length, "a template"));
    }
    return STATUS_OK;
}

static status parse_format(const char *text, struct format *f)
{
    struct text_buffer literal = {0};
    status result = STATUS_OK;
    for (size_t i = 0; result == STATUS_OK && (text[i] != '\0' || literal.count > 0);) {
        bool is_brace = text[i] == '{' || text[i] == '}';
        if (text[i] != '\0' && (!is_brace || text[i + 1] == text[i])) {
            result = text_buffer_append(&literal, text + i, 1);
            i += is_brace ? 2 : 1;
            continue;
        }
        struct part *part = NULL;
        if (literal.count > 0) {
            TRY_GOTO(result, done, add_part(f, &part));
            TRY_GOTO(result, done,
                     memory_copy_bytes(&part->text, literal.bytes, literal.count, "a template"));
            literal.count = 0;
        }
        if (text[i] != '\0') {
            size_t bytes = strcspn(text + i + 1, "{}");
            REQUIRE_GOTO(result, done, text[i] == '{' && text[i + 1 + bytes] == '}', STATUS_RECIPE,
                         "a single brace '%c'; write {field}, and {{ or }} for a brace", text[i]);
            result = add_value(f, text + i + 1, bytes);
            i += bytes + 2;
        }
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || f->fields > 0, STATUS_RECIPE,
                 "the text has no field of the row; write {field}");
done:
    text_buffer_free(&literal);
    return result;
}

/* Adds the location and the key to an error of parse_format. */
static status parse_at(const struct instruction_template_text *text, const char *key,
                       const char *value, struct format *f)
{
    struct status_note note;
    status result = parse_format(value, f);
    if (result != STATUS_RECIPE) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_RECIPE, "%s: %s of template '%.100s': %.900s", text->location, key, text->name,
          note.text);
}

status instruction_templates_add(struct instruction_templates *t,
                                 const struct instruction_template_text *text)
{
    for (int i = 0; i < t->count; i++) {
        REQUIRE(strcmp(t->items[i]->name, text->name) != 0, STATUS_RECIPE,
                "%s: name: the template of %s has the name '%.100s' too", text->location,
                t->items[i]->location, text->name);
    }
    REQUIRE(t->count < INSTRUCTION_TEMPLATES_MAX, STATUS_RECIPE, "%s: more than %d templates",
            text->location, INSTRUCTION_TEMPLATES_MAX);
    struct instruction_template *item = NULL;
    TRY(ALLOCATE(item, 1, "templates"));
    t->items[t->count++] = item;
    TRY(memory_copy_text(&item->name, text->name, "a template"));
    TRY(memory_copy_text(&item->location, text->location, "a template"));
    TRY(parse_at(text, "input", text->input, &item->input));
    return parse_at(text, "target", text->target, &item->target);
}

/* ---- rendering ---- */

/* Finds an element of a list. */
static status find_element(const json_t *list, const char *key, const json_t **out)
{
    char *end = NULL;
    long index = strtol(key, &end, 10);
    REQUIRE(*end == '\0' && index >= 0 && (size_t)index < json_array_size(list), STATUS_DATA,
            "no element [%s] in a list of %zu", key, json_array_size(list));
    *out = json_array_get(list, (size_t)index);
    return STATUS_OK;
}

static status find_value(const json_t *row, const struct part *part, const json_t **out)
{
    *out = row;
    for (int i = 0; i < part->key_count; i++) {
        const json_t *parent = *out;
        if (json_is_array(parent)) {
            TRY(find_element(parent, part->keys[i], out));
            continue;
        }
        REQUIRE(json_is_object(parent), STATUS_DATA, "the field '%s' is not an object",
                part->keys[i > 0 ? i - 1 : 0]);
        *out = json_object_get(parent, part->keys[i]);
        TRY(*out != NULL ? STATUS_OK : columns_raise_unknown(parent, part->keys[i]));
    }
    return STATUS_OK;
}

static status append_value(const json_t *row, const struct part *part, struct text_buffer *out)
{
    const json_t *value = NULL;
    char number[32];
    TRY(find_value(row, part, &value));
    REQUIRE(json_is_string(value) || json_is_integer(value), STATUS_DATA,
            "the field '%s' is neither a string nor an integer", part->keys[0]);
    if (json_is_integer(value)) {
        int bytes =
            snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return text_buffer_append(out, number, (size_t)bytes);
    }
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);
    REQUIRE(strspn(text, " \t\r\n\v\f") < bytes, STATUS_DATA, "the field '%s' is empty",
            part->keys[0]);
    return text_buffer_append(out, text, bytes);
}

static status render_format(const struct format *f, const json_t *row, struct text_buffer *out)
{
    out->count = 0;
    for (int i = 0; i < f->count; i++) {
        const struct part *part = &f->parts[i];
        TRY(part->text == NULL ? append_value(row, part, out)
                               : text_buffer_append(out, part->text, strlen(part->text)));
    }
    return STATUS_OK;
}

static json_t *make_text(const struct text_buffer *b)
{
    return json_stringn_nocheck(b->bytes, b->count);
}

/* Creates the row that the objective reads. */
static json_t *make_row(const struct instruction_templates *t)
{
    json_t *input = make_text(&t->input), *target = make_text(&t->target);
    return t->as_messages
               ? json_pack("{s:[{s:s, s:o}], s:[{s:s, s:o}]}", "prompt", "role", "user", "content",
                           input, "completion", "role", "assistant", "content", target)
               : json_pack("{s:o, s:o}", "prompt", input, "completion", target);
}

static status render_row(struct instruction_templates *t, const struct instruction_template *item,
                         struct jsonl_row *row)
{
    TRY(render_format(&item->input, row->value, &t->input));
    TRY(render_format(&item->target, row->value, &t->target));
    json_t *rendered = make_row(t);
    REQUIRE(rendered != NULL, STATUS_INTERNAL, "out of memory for a row");
    json_decref(row->value);
    row->value = rendered;
    return STATUS_OK;
}

status instruction_templates_render(struct instruction_templates *t, int64_t file,
                                    struct jsonl_row *row)
{
    struct status_note note;
    uint64_t key = random_key(t->seed, RANDOM_TEMPLATES, (uint64_t)file, 0);
    struct instruction_template *item =
        t->items[random_below(key, (uint64_t)row->line, (uint64_t)t->count)];
    status result = render_row(t, item, row);
    item->rows += result == STATUS_OK;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "template '%.100s' (%s): %.900s", item->name, item->location, note.text);
}
