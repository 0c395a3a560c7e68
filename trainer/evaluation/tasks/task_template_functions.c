/* The methods of Python's str and list, and the filters of Jinja, that templates can use. */
#define _GNU_SOURCE /* memmem */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text_buffer.h"
#include "base/utf8.h"
#include "datasets/text/char_class.h"
#include "trainer/evaluation/tasks/task_template_functions_impl.h"
#include "trainer/evaluation/tasks/task_template_tree_impl.h"

/* A text with its length. It can contain NUL. */
struct view {
    const char *text;
    size_t bytes;
};

static status read_view(const json_t *value, struct view *out)
{
    REQUIRE(json_is_string(value), STATUS_DATA, "a string is required, but this is a %s",
            json_is_array(value)    ? "list"
            : json_is_object(value) ? "object"
            : json_is_number(value) ? "number"
                                    : "constant");
    *out = (struct view){json_string_value(value), json_string_length(value)};
    return STATUS_OK;
}

status task_template_require_memory(const json_t *value)
{
    REQUIRE(value != NULL, STATUS_INTERNAL, "out of memory for a text of a task");
    return STATUS_OK;
}

status task_template_append(json_t *array, json_t *value)
{
    TRY(task_template_require_memory(value));
    return json_array_append_new(array, value) == 0 ? STATUS_OK
                                                    : task_template_require_memory(NULL);
}

status task_template_make_string(const char *text, size_t bytes, json_t **out)
{
    *out = json_stringn(text, bytes);
    return task_template_require_memory(*out);
}

status task_template_take_buffer(struct text_buffer *b, status result, json_t **out)
{
    if (result == STATUS_OK) {
        result = task_template_make_string(b->count > 0 ? b->bytes : "", b->count, out);
    }
    text_buffer_free(b);
    return result;
}

/* ---- strip ---- */

static bool is_stripped(uint32_t code, const struct view *set)
{
    if (set == NULL) {
        return char_class_is_space(code);
    }
    for (size_t at = 0; at < set->bytes;) {
        uint32_t other;
        at += char_class_read(set->text + at, set->bytes - at, &other);
        if (other == code) {
            return true;
        }
    }
    return false;
}

static size_t find_last_character(const struct view *v)
{
    size_t at = v->bytes - 1;
    while (at > 0 && utf8_is_continuation(v->text[at])) {
        at--;
    }
    return at;
}

static status strip_text(json_t *const *operands, int count, bool left, bool right, json_t **out)
{
    struct view v, set;
    uint32_t code;
    TRY(read_view(operands[0], &v));
    TRY(count > 1 ? read_view(operands[1], &set) : STATUS_OK);
    const struct view *characters = count > 1 ? &set : NULL;
    while (left && v.bytes > 0) {
        size_t length = char_class_read(v.text, v.bytes, &code);
        if (!is_stripped(code, characters)) {
            break;
        }
        v.text += length;
        v.bytes -= length;
    }
    while (right && v.bytes > 0) {
        size_t at = find_last_character(&v);
        char_class_read(v.text + at, v.bytes - at, &code);
        if (!is_stripped(code, characters)) {
            break;
        }
        v.bytes = at;
    }
    return task_template_make_string(v.text, v.bytes, out);
}

static status call_strip(json_t *const *operands, int count, json_t **out)
{
    return strip_text(operands, count, true, true, out);
}

static status call_lstrip(json_t *const *operands, int count, json_t **out)
{
    return strip_text(operands, count, true, false, out);
}

static status call_rstrip(json_t *const *operands, int count, json_t **out)
{
    return strip_text(operands, count, false, true, out);
}

/* ---- case ---- */

/* Changes the case of a text. upper: the characters in upper case; 0: none, 1: the first one, 2:
 * all. */
static status change_case(const json_t *value, int upper, json_t **out)
{
    struct view v;
    struct text_buffer b = {0};
    status result = read_view(value, &v);
    for (size_t at = 0; result == STATUS_OK && at < v.bytes;) {
        uint32_t code;
        bool is_upper = upper == 2 || (upper == 1 && at == 0);
        at += char_class_read(v.text + at, v.bytes - at, &code);
        code = is_upper ? char_class_to_upper(code) : char_class_to_lower(code);
        result = text_buffer_append_char(&b, (int32_t)code);
    }
    return task_template_take_buffer(&b, result, out);
}

static status call_lower(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return change_case(operands[0], 0, out);
}

static status call_upper(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return change_case(operands[0], 2, out);
}

static status call_capitalize(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return change_case(operands[0], 1, out);
}

/* ---- parts of texts ---- */

static const char *find_text(const struct view *v, size_t from, const struct view *wanted)
{
    return memmem(v->text + from, v->bytes - from, wanted->text, wanted->bytes);
}

static status append_part(json_t *list, const char *text, size_t bytes)
{
    json_t *part = NULL;
    TRY(task_template_make_string(text, bytes, &part));
    return task_template_append(list, part);
}

/* Splits at white space; there are no empty parts. */
static status split_words(const struct view *v, json_t *list)
{
    size_t first = 0, at = 0;
    while (at < v->bytes) {
        uint32_t code;
        size_t length = char_class_read(v->text + at, v->bytes - at, &code);
        if (char_class_is_space(code)) {
            TRY(at > first ? append_part(list, v->text + first, at - first) : STATUS_OK);
            first = at + length;
        }
        at += length;
    }
    return at > first ? append_part(list, v->text + first, at - first) : STATUS_OK;
}

static status call_split(json_t *const *operands, int count, json_t **out)
{
    struct view v, separator;
    size_t from = 0;
    TRY(read_view(operands[0], &v));
    *out = json_array();
    TRY(task_template_require_memory(*out));
    if (count == 1) {
        return split_words(&v, *out);
    }
    TRY(read_view(operands[1], &separator));
    REQUIRE(separator.bytes > 0, STATUS_DATA, "split: the separator is empty");
    for (const char *at; (at = find_text(&v, from, &separator)) != NULL;) {
        TRY(append_part(*out, v.text + from, (size_t)(at - v.text) - from));
        from = (size_t)(at - v.text) + separator.bytes;
    }
    return append_part(*out, v.text + from, v.bytes - from);
}

static status replace_text(struct text_buffer *b, json_t *const *operands)
{
    struct view v, old, new;
    size_t from = 0;
    TRY(read_view(operands[0], &v));
    TRY(read_view(operands[1], &old));
    TRY(read_view(operands[2], &new));
    REQUIRE(old.bytes > 0, STATUS_DATA, "replace: the string to replace is empty");
    for (const char *at; (at = find_text(&v, from, &old)) != NULL;) {
        TRY(text_buffer_append(b, v.text + from, (size_t)(at - v.text) - from));
        TRY(text_buffer_append(b, new.text, new.bytes));
        REQUIRE(b->count <= TASK_TEMPLATE_TEXT_BYTES, STATUS_DATA,
                "replace: the result has more than %d bytes", TASK_TEMPLATE_TEXT_BYTES);
        from = (size_t)(at - v.text) + old.bytes;
    }
    return text_buffer_append(b, v.text + from, v.bytes - from);
}

static status call_replace(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    struct text_buffer b = {0};
    return task_template_take_buffer(&b, replace_text(&b, operands), out);
}

static status call_startswith(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    struct view v, part;
    TRY(read_view(operands[0], &v));
    TRY(read_view(operands[1], &part));
    *out = json_boolean(v.bytes >= part.bytes && memcmp(v.text, part.text, part.bytes) == 0);
    return STATUS_OK;
}

static status call_endswith(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    struct view v, part;
    TRY(read_view(operands[0], &v));
    TRY(read_view(operands[1], &part));
    *out = json_boolean(v.bytes >= part.bytes &&
                        memcmp(v.text + v.bytes - part.bytes, part.text, part.bytes) == 0);
    return STATUS_OK;
}

/* ---- lists ---- */

/* Finds the position of a value in a list, or of a character or a part in a text. */
static status call_index(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    json_int_t index = -1;
    if (json_is_array(operands[0])) {
        for (size_t i = json_array_size(operands[0]); i-- > 0;) {
            index = task_template_equals(json_array_get(operands[0], i), operands[1])
                        ? (json_int_t)i
                        : index;
        }
    } else {
        struct view v, part;
        TRY(read_view(operands[0], &v));
        TRY(read_view(operands[1], &part));
        const char *at = find_text(&v, 0, &part);
        json_t *before = at != NULL ? json_stringn(v.text, (size_t)(at - v.text)) : NULL;
        index = before != NULL ? task_template_length(before) : -1;
        json_decref(before);
    }
    REQUIRE(index >= 0, STATUS_DATA, "index: the value is not in the %s",
            json_is_array(operands[0]) ? "list" : "string");
    *out = json_integer(index);
    return STATUS_OK;
}

static status join_list(struct text_buffer *b, const json_t *list, const json_t *separator)
{
    struct view between = {"", 0};
    REQUIRE(json_is_array(list), STATUS_DATA, "the filter 'join' needs a list");
    TRY(separator != NULL ? read_view(separator, &between) : STATUS_OK);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *text = NULL;
        TRY(text_buffer_append(b, between.text, i > 0 ? between.bytes : 0));
        TRY(task_template_make_text(json_array_get(list, i), &text));
        status result = text_buffer_append(b, json_string_value(text), json_string_length(text));
        json_decref(text);
        TRY(result);
        REQUIRE(b->count <= TASK_TEMPLATE_TEXT_BYTES, STATUS_DATA,
                "join: the result has more than %d bytes", TASK_TEMPLATE_TEXT_BYTES);
    }
    return STATUS_OK;
}

static status call_join(json_t *const *operands, int count, json_t **out)
{
    /* The filter has the list first, list|join(", "); the method has it last, ", ".join(list). */
    bool is_method = json_is_string(operands[0]) && count > 1;
    struct text_buffer b = {0};
    const json_t *separator = count > 1 ? operands[is_method ? 0 : 1] : NULL;
    return task_template_take_buffer(&b, join_list(&b, operands[is_method ? 1 : 0], separator),
                                     out);
}

static status call_length(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    REQUIRE(json_is_string(operands[0]) || json_is_array(operands[0]) ||
                json_is_object(operands[0]),
            STATUS_DATA, "the filter 'length' needs a string or a list");
    *out = json_integer(task_template_length(operands[0]));
    return STATUS_OK;
}

static status get_element(const json_t *value, json_int_t index, json_t **out)
{
    json_t *key = json_integer(index);
    *out = task_template_index(value, key);
    json_decref(key);
    return STATUS_OK;
}

static status call_first(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return get_element(operands[0], 0, out);
}

static status call_last(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return get_element(operands[0], -1, out);
}

static status call_string(json_t *const *operands, int count, json_t **out)
{
    (void)count;
    return task_template_make_text(operands[0], out);
}

/* ---- the table ---- */

static const struct function {
    const char *name;
    bool is_method, is_filter;
    int arguments_min, arguments_max; /* without the object */
    status (*call)(json_t *const *operands, int count, json_t **out);
} functions[] = {
    {"strip", true, false, 0, 1, call_strip},
    {"lstrip", true, false, 0, 1, call_lstrip},
    {"rstrip", true, false, 0, 1, call_rstrip},
    {"trim", false, true, 0, 1, call_strip},
    {"lower", true, true, 0, 0, call_lower},
    {"upper", true, true, 0, 0, call_upper},
    {"capitalize", true, true, 0, 0, call_capitalize},
    {"split", true, false, 0, 1, call_split},
    {"replace", true, true, 2, 2, call_replace},
    {"startswith", true, false, 1, 1, call_startswith},
    {"endswith", true, false, 1, 1, call_endswith},
    {"index", true, false, 1, 1, call_index},
    {"join", true, true, 0, 1, call_join},
    {"length", false, true, 0, 0, call_length},
    {"count", false, true, 0, 0, call_length},
    {"first", false, true, 0, 0, call_first},
    {"last", false, true, 0, 0, call_last},
    {"string", false, true, 0, 0, call_string},
};

static const struct function *find_function(const char *name)
{
    for (int i = 0; i < COUNT(functions); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    return NULL;
}

bool task_template_has_function(const char *name, bool is_filter, int arguments)
{
    const struct function *f = find_function(name);
    return f != NULL && (is_filter ? f->is_filter : f->is_method) &&
           (arguments < 0 || (arguments >= f->arguments_min && arguments <= f->arguments_max));
}

status task_template_call(const char *name, json_t *const *operands, int count, json_t **out)
{
    return find_function(name)->call(operands, count, out);
}
