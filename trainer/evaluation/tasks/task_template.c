#define _GNU_SOURCE /* memmem */
#include "trainer/evaluation/tasks/task_template_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text_buffer.h"
#include "base/utf8.h"
#include "trainer/evaluation/tasks/task_template_functions_impl.h"
#include "trainer/evaluation/tasks/task_template_tree_impl.h"

typedef struct task_template_node node;

/* Computes the value of a node. *out is NULL if the document does not have the field. */
static status evaluate_node(const node *n, const json_t *document, json_t **out);

static bool is_true(const json_t *value)
{
    switch (value != NULL ? json_typeof(value) : JSON_NULL) {
    case JSON_NULL:
    case JSON_FALSE:
        return false;
    case JSON_TRUE:
        return true;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    default:
        return json_number_value(value) != 0;
    }
}

/* Describes where an undefined value comes from, for messages. */
static const char *describe_value(const node *n)
{
    while (n->kind != TASK_TEMPLATE_FIELD && n->kind != TASK_TEMPLATE_INDEX && n->first != NULL) {
        n = n->first;
    }
    if (n->kind == TASK_TEMPLATE_INDEX) {
        const char *key = json_string_value(n->first->next->value);
        return key != NULL ? key : "[index]";
    }
    return n->name != NULL ? n->name : "(expression)";
}

static status evaluate_defined(const node *n, const json_t *document, json_t **out)
{
    TRY(evaluate_node(n, document, out));
    REQUIRE(*out != NULL, STATUS_DATA, "the document has no value '%.80s'", describe_value(n));
    return STATUS_OK;
}

/* ---- text of values ---- */

/* Writes the shortest decimal number that reads back as the same value, as Python does. */
static void format_real(double value, char out[64])
{
    int digits = 1;
    do {
        snprintf(out, 64, "%.*e", digits - 1, value);
    } while (strtod(out, NULL) != value && ++digits <= 17);
    const char *mark = strchr(out, 'e');
    int exponent = mark != NULL ? (int)strtol(mark + 1, NULL, 10) : 0;
    if (isfinite(value) && exponent >= -4 && exponent < 16) {
        int places = digits - 1 - exponent;
        snprintf(out, 64, "%.*f", places > 1 ? places : 1, value);
    }
}

/* Appends the text of a value as Python's str() does. */
static status append_value(struct text_buffer *b, const json_t *value)
{
    char text[64];
    switch (json_typeof(value)) {
    case JSON_STRING:
        return text_buffer_append(b, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        format_real(json_real_value(value), text);
        break;
    case JSON_NULL:
        snprintf(text, sizeof text, "None");
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(text, sizeof text, json_is_true(value) ? "True" : "False");
        break;
    default:
        RAISE(STATUS_DATA, "a %s has no text; select one value, or use |join",
              json_is_array(value) ? "list" : "object");
    }
    return text_buffer_append(b, text, strlen(text));
}

status task_template_make_text(const json_t *value, json_t **out)
{
    struct text_buffer b = {0};
    return task_template_take_buffer(&b, append_value(&b, value), out);
}

/* ---- lists and indices ---- */

static status evaluate_list(const node *n, const json_t *document, json_t **out)
{
    *out = json_array();
    TRY(task_template_require_memory(*out));
    for (const node *item = n->first; item != NULL; item = item->next) {
        json_t *value = NULL;
        TRY(evaluate_defined(item, document, &value));
        TRY(task_template_append(*out, value));
    }
    return STATUS_OK;
}

int64_t task_template_length(const json_t *value)
{
    const char *text = json_string_value(value);
    int64_t count = 0;
    for (size_t at = 0; at < json_string_length(value); count++) {
        at += utf8_character_bytes(text + at, json_string_length(value) - at);
    }
    return json_is_string(value)  ? count
           : json_is_array(value) ? (int64_t)json_array_size(value)
                                  : (int64_t)json_object_size(value);
}

/* Returns the byte of the character with this index. */
static size_t find_character(const json_t *string, int64_t index)
{
    const char *text = json_string_value(string);
    size_t at = 0, bytes = json_string_length(string);
    for (; index > 0 && at < bytes; index--) {
        at += utf8_character_bytes(text + at, bytes - at);
    }
    return at;
}

/* Copies elements or characters [first, end). */
static json_t *copy_range(const json_t *value, int64_t first, int64_t end)
{
    if (json_is_string(value)) {
        size_t from = find_character(value, first), to = find_character(value, end);
        return json_stringn(json_string_value(value) + from, to - from);
    }
    json_t *list = json_array();
    for (int64_t i = first; list != NULL && i < end; i++) {
        json_array_append(list, json_array_get(value, (size_t)i));
    }
    return list;
}

json_t *task_template_index(const json_t *value, const json_t *key)
{
    int64_t index = json_integer_value(key), count = task_template_length(value);
    if (json_is_object(value) && json_is_string(key)) {
        return json_incref(
            json_object_getn(value, json_string_value(key), json_string_length(key)));
    }
    index += index < 0 ? count : 0;
    if (!json_is_integer(key) || index < 0 || index >= count || json_is_object(value)) {
        return NULL;
    }
    return json_is_string(value) ? copy_range(value, index, index + 1)
                                 : json_incref(json_array_get(value, (size_t)index));
}

static int64_t clamp_bound(const json_t *bound, int64_t count, int64_t missing)
{
    int64_t value = json_is_integer(bound) ? json_integer_value(bound) : missing;
    value += value < 0 ? count : 0;
    return number_clamp(value, 0, count);
}

static status slice_value(json_t *const *operands, json_t **out)
{
    const json_t *value = operands[0];
    REQUIRE(json_is_string(value) || json_is_array(value), STATUS_DATA,
            "only a string or a list can be sliced");
    int64_t count = task_template_length(value);
    int64_t first = clamp_bound(operands[1], count, 0);
    int64_t end = clamp_bound(operands[2], count, count);
    *out = copy_range(value, first, number_max(end, first));
    return task_template_require_memory(*out);
}

/* ---- operators ---- */

/* Returns less than, equal to or greater than 0, as strcmp. */
static status compare_values(const json_t *a, const json_t *b, int *out)
{
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);
        *out = (x > y) - (x < y);
        return STATUS_OK;
    }
    REQUIRE(json_is_string(a) && json_is_string(b), STATUS_DATA,
            "only two numbers or two strings can be compared");
    size_t x = json_string_length(a), y = json_string_length(b);
    *out = memcmp(json_string_value(a), json_string_value(b), x < y ? x : y);
    *out = *out != 0 ? *out : (x > y) - (x < y);
    return STATUS_OK;
}

bool task_template_equals(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b) != 0;
}

static status contains_item(const json_t *item, const json_t *container, bool *out)
{
    if (json_is_string(container) && json_is_string(item)) {
        *out = memmem(json_string_value(container), json_string_length(container),
                      json_string_value(item), json_string_length(item)) != NULL;
        return STATUS_OK;
    }
    REQUIRE(json_is_array(container) || json_is_object(container), STATUS_DATA,
            "'in' needs a string or a list");
    *out = json_is_object(container) && json_is_string(item) &&
           json_object_get(container, json_string_value(item)) != NULL;
    for (size_t i = 0; i < json_array_size(container); i++) {
        *out = *out || task_template_equals(json_array_get(container, i), item);
    }
    return STATUS_OK;
}

static status add_values(const json_t *a, const json_t *b, json_t **out)
{
    long long sum;
    if (json_is_string(a) && json_is_string(b)) {
        struct text_buffer text = {0};
        status result = append_value(&text, a);
        return task_template_take_buffer(
            &text, result == STATUS_OK ? append_value(&text, b) : result, out);
    }
    if (json_is_array(a) && json_is_array(b)) {
        *out = json_copy((json_t *)a);
        TRY(task_template_require_memory(*out));
        return json_array_extend(*out, (json_t *)b) == 0 ? STATUS_OK
                                                         : task_template_require_memory(NULL);
    }
    REQUIRE(json_is_number(a) && json_is_number(b), STATUS_DATA,
            "the operator '+' needs two numbers, two strings or two lists; '~' joins other values");
    *out = json_is_integer(a) && json_is_integer(b) &&
                   !__builtin_add_overflow(json_integer_value(a), json_integer_value(b), &sum)
               ? json_integer(sum)
               : json_real(json_number_value(a) + json_number_value(b));
    return task_template_require_memory(*out);
}

static status negate_number(const json_t *value, json_t **out)
{
    REQUIRE(json_is_number(value), STATUS_DATA, "the operator '-' needs a number");
    *out = json_is_integer(value) && json_integer_value(value) > INT64_MIN
               ? json_integer(-json_integer_value(value))
               : json_real(-json_number_value(value));
    return task_template_require_memory(*out);
}

static status subtract_numbers(const json_t *a, const json_t *b, json_t **out)
{
    json_t *negative = NULL;
    REQUIRE(json_is_number(a), STATUS_DATA, "the operator '-' needs two numbers");
    TRY(negate_number(b, &negative));
    status result = add_values(a, negative, out);
    json_decref(negative);
    return result;
}

static status join_texts(const json_t *a, const json_t *b, json_t **out)
{
    struct text_buffer text = {0};
    status result = append_value(&text, a);
    return task_template_take_buffer(&text, result == STATUS_OK ? append_value(&text, b) : result,
                                     out);
}

static status apply_comparison(const char *name, const json_t *a, const json_t *b, json_t **out)
{
    int order = 0;
    bool found = false;
    if (strstr(name, "in") != NULL) {
        TRY(contains_item(a, b, &found));
        *out = json_boolean(found == (name[0] == 'i'));
        return STATUS_OK;
    }
    if (strcmp(name, "==") == 0 || strcmp(name, "!=") == 0) {
        *out = json_boolean(task_template_equals(a, b) == (name[0] == '='));
        return STATUS_OK;
    }
    TRY(compare_values(a, b, &order));
    bool result = name[0] == '<' ? order < 0 : order > 0;
    *out = json_boolean(result || (name[1] == '=' && order == 0));
    return STATUS_OK;
}

static status apply_binary(const char *name, json_t *const *operands, json_t **out)
{
    const json_t *a = operands[0], *b = operands[1];
    switch (name[0]) {
    case '+':
        return add_values(a, b, out);
    case '-':
        return subtract_numbers(a, b, out);
    case '~':
        return join_texts(a, b, out);
    default:
        return apply_comparison(name, a, b, out);
    }
}

/* "a or b" and "a and b": b is computed only if a does not decide. */
static status evaluate_logical(const node *n, const json_t *document, json_t **out)
{
    TRY(evaluate_defined(n->first, document, out));
    if (is_true(*out) == (n->name[0] == 'o')) {
        return STATUS_OK;
    }
    json_decref(*out);
    *out = NULL;
    return evaluate_defined(n->first->next, document, out);
}

/* ---- all kinds ---- */

static status evaluate_choice(const node *n, const json_t *document, json_t **out)
{
    const node *condition = n->first, *chosen = condition->next;
    json_t *value = NULL;
    TRY(evaluate_defined(condition, document, &value));
    chosen = is_true(value) ? chosen : chosen->next;
    json_decref(value);
    if (chosen == NULL && n->name != NULL) { /* {% if %} without {% else %} */
        *out = json_string("");
        return task_template_require_memory(*out);
    }
    return chosen != NULL ? evaluate_node(chosen, document, out) : STATUS_OK;
}

static status evaluate_test(const node *n, const json_t *document, json_t **out)
{
    json_t *value = NULL;
    bool is_defined_test = strcmp(n->name, "defined") == 0;
    TRY(is_defined_test ? evaluate_node(n->first, document, &value)
                        : evaluate_defined(n->first, document, &value));
    *out = json_boolean(is_defined_test ? value != NULL : json_is_null(value));
    json_decref(value);
    return STATUS_OK;
}

static status evaluate_block(const node *n, const json_t *document, json_t **out)
{
    struct text_buffer text = {0};
    status result = STATUS_OK;
    for (const node *part = n->first; part != NULL && result == STATUS_OK; part = part->next) {
        json_t *value = NULL;
        result = evaluate_defined(part, document, &value);
        if (result == STATUS_OK) {
            result = append_value(&text, value);
        }
        json_decref(value);
    }
    return task_template_take_buffer(&text, result, out);
}

/* Applies a node to the values of its operands. */
static status apply_node(const node *n, json_t *const *operands, int count, json_t **out)
{
    switch (n->kind) {
    case TASK_TEMPLATE_INDEX:
        *out = task_template_index(operands[0], operands[1]);
        return STATUS_OK;
    case TASK_TEMPLATE_SLICE:
        return slice_value(operands, out);
    case TASK_TEMPLATE_CALL:
        return task_template_call(n->name, operands, count, out);
    case TASK_TEMPLATE_NOT:
        *out = json_boolean(!is_true(operands[0]));
        return STATUS_OK;
    case TASK_TEMPLATE_NEGATE:
        return negate_number(operands[0], out);
    default:
        return apply_binary(n->name, operands, out);
    }
}

static status evaluate_operands(const node *n, const json_t *document, json_t **out)
{
    enum { OPERANDS_MAX = 4 };
    json_t *operands[OPERANDS_MAX] = {0};
    int count = 0;
    status result = STATUS_OK;
    for (const node *o = n->first; o != NULL && result == STATUS_OK; o = o->next) {
        REQUIRE_GOTO(result, done, count < OPERANDS_MAX, STATUS_DATA, "too many arguments");
        result = evaluate_defined(o, document, &operands[count++]);
    }
    if (result == STATUS_OK) {
        result = apply_node(n, operands, count, out);
    }
done:
    for (int i = 0; i < count; i++) {
        json_decref(operands[i]);
    }
    return result;
}

static status evaluate_node(const node *n, const json_t *document, json_t **out)
{
    *out = NULL;
    switch (n->kind) {
    case TASK_TEMPLATE_TEXT:
    case TASK_TEMPLATE_VALUE:
        *out = json_incref(n->value);
        return STATUS_OK;
    case TASK_TEMPLATE_FIELD:
        *out = json_incref(json_object_get(document, n->name));
        return STATUS_OK;
    case TASK_TEMPLATE_LIST:
        return evaluate_list(n, document, out);
    case TASK_TEMPLATE_TEST:
        return evaluate_test(n, document, out);
    case TASK_TEMPLATE_CHOOSE:
        return evaluate_choice(n, document, out);
    case TASK_TEMPLATE_BLOCK:
        return evaluate_block(n, document, out);
    case TASK_TEMPLATE_BINARY:
        if (strcmp(n->name, "or") == 0 || strcmp(n->name, "and") == 0) {
            return evaluate_logical(n, document, out);
        }
        return evaluate_operands(n, document, out);
    default:
        return evaluate_operands(n, document, out);
    }
}

status task_template_render(const struct task_template *t, const json_t *document, json_t **out)
{
    const node *only = t->root->first;
    bool is_expression = only != NULL && only->next == NULL && only->kind != TASK_TEMPLATE_TEXT &&
                         !(only->kind == TASK_TEMPLATE_CHOOSE && only->name != NULL);
    status result = evaluate_defined(is_expression ? only : t->root, document, out);
    if (result != STATUS_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return result;
}
