/* The parser of templates: recursive descent over the text. */
#define _GNU_SOURCE /* memmem */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/evaluation/tasks/task_template_impl.h"
#include "trainer/evaluation/tasks/task_template_tree_impl.h"

enum { DEPTH_MAX = 48, NODES_MAX = 4096, NAME_BYTES = 64 };

struct parser {
    const char *text;
    size_t at, bytes;
    int depth, nodes;
    bool trims; /* the tag before this place ends with a dash */
    struct task_template *out;
};

typedef struct task_template_node node;

#define FAIL(p, ...) return raise_syntax((p), __VA_ARGS__)

static status raise_syntax(const struct parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static status raise_syntax(const struct parser *p, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    RAISE(STATUS_RECIPE, "character %zu of the template: %s", p->at + 1, reason);
}

static status parse_expression(struct parser *p, node **out);

/* ---- nodes ---- */

static status add_node(struct parser *p, enum task_template_kind kind, const char *name, node **out)
{
    if (p->nodes++ == NODES_MAX) {
        FAIL(p, "the template is too long");
    }
    TRY(ALLOCATE(*out, 1, "a template"));
    (*out)->kind = kind;
    (*out)->allocated = p->out->nodes;
    p->out->nodes = *out;
    return memory_copy_text(&(*out)->name, name, "a template");
}

static status add_value(struct parser *p, enum task_template_kind kind, json_t *value, node **out)
{
    status result = add_node(p, kind, NULL, out);
    if (result != STATUS_OK) {
        json_decref(value);
        return result;
    }
    (*out)->value = value;
    REQUIRE(value != NULL, STATUS_INTERNAL, "out of memory for a template, or invalid UTF-8");
    return STATUS_OK;
}

static void append_operand(node *parent, node *operand)
{
    node **link = &parent->first;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = operand;
}

/* ---- characters and words ---- */

static bool starts_with(const struct parser *p, const char *word)
{
    size_t bytes = strlen(word);
    return p->bytes - p->at >= bytes && memcmp(p->text + p->at, word, bytes) == 0;
}

static bool is_word_byte(const struct parser *p, size_t at)
{
    return at < p->bytes && (isalnum((unsigned char)p->text[at]) || p->text[at] == '_');
}

static void skip_space(struct parser *p)
{
    while (p->at < p->bytes && strchr(" \t\r\n", p->text[p->at]) != NULL) {
        p->at++;
    }
}

/* Reads a word or an operator if it comes next. A word ends where its letters end. */
static bool take_word(struct parser *p, const char *word)
{
    skip_space(p);
    size_t end = p->at + strlen(word);
    bool found = starts_with(p, word) && !(isalpha((unsigned char)word[0]) && is_word_byte(p, end));
    p->at = found ? end : p->at;
    return found;
}

static bool is_next(struct parser *p, const char *word)
{
    size_t at = p->at;
    bool found = take_word(p, word);
    p->at = found ? at : p->at;
    return found;
}

static status expect_word(struct parser *p, const char *word)
{
    if (!take_word(p, word)) {
        FAIL(p, "expected %s", word);
    }
    return STATUS_OK;
}

static status read_name(struct parser *p, char out[NAME_BYTES])
{
    size_t count = 0;
    skip_space(p);
    while (is_word_byte(p, p->at + count)) {
        count++;
    }
    if (count == 0 || count >= NAME_BYTES || isdigit((unsigned char)p->text[p->at])) {
        FAIL(p, "expected a name");
    }
    memcpy(out, p->text + p->at, count);
    out[count] = '\0';
    p->at += count;
    return STATUS_OK;
}

/* ---- primary expressions ---- */

static char unescape_character(char c)
{
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
}

static status parse_string(struct parser *p, node **out)
{
    char quote = p->text[p->at++];
    char *text = NULL;
    size_t count = 0;
    TRY(ALLOCATE(text, p->bytes - p->at + 1, "a template"));
    for (; p->at < p->bytes && p->text[p->at] != quote; p->at++) {
        bool is_escape = p->text[p->at] == '\\' && p->at + 1 < p->bytes;
        if (is_escape && strchr("ntr\\'\"", p->text[p->at + 1]) == NULL) {
            text[count++] = '\\';
        } else if (is_escape) {
            text[count++] = unescape_character(p->text[++p->at]);
            continue;
        } else {
            text[count++] = p->text[p->at];
        }
    }
    status result = p->at < p->bytes
                        ? add_value(p, TASK_TEMPLATE_VALUE, json_stringn(text, count), out)
                        : raise_syntax(p, "the string does not end");
    free(text);
    p->at++;
    return result;
}

static status parse_number(struct parser *p, node **out)
{
    char text[TEXT_NUMBER_BYTES], reason[TEXT_REASON_BYTES];
    size_t count = strspn(p->text + p->at, "0123456789.");
    int64_t integer;
    double number;
    snprintf(text, sizeof text, "%.*s", (int)(count < sizeof text ? count : sizeof text - 1),
             p->text + p->at);
    if (count < sizeof text && text_to_integer(text, &integer, reason)) {
        p->at += count;
        return add_value(p, TASK_TEMPLATE_VALUE, json_integer(integer), out);
    }
    if (count >= sizeof text || !text_to_number(text, &number, reason)) {
        FAIL(p, "the number is not valid");
    }
    p->at += count;
    return add_value(p, TASK_TEMPLATE_VALUE, json_real(number), out);
}

static status parse_name(struct parser *p, node **out)
{
    static const struct {
        const char *name;
        int value; /* -1: none */
    } constants[] = {{"true", 1},  {"True", 1},  {"false", 0},
                     {"False", 0}, {"none", -1}, {"None", -1}};
    char name[NAME_BYTES];
    TRY(read_name(p, name));
    for (int i = 0; i < COUNT(constants); i++) {
        if (strcmp(constants[i].name, name) == 0) {
            return add_value(
                p, TASK_TEMPLATE_VALUE,
                constants[i].value < 0 ? json_null() : json_boolean(constants[i].value), out);
        }
    }
    if (is_next(p, "(")) {
        FAIL(p, "the function %s() is not supported", name);
    }
    return add_node(p, TASK_TEMPLATE_FIELD, name, out);
}

/* Reads operands up to the closing bracket. */
static status parse_operands(struct parser *p, const char *close, node *parent, int *count)
{
    for (*count = 0; !take_word(p, close); (*count)++) {
        node *operand = NULL;
        if (*count > 0) {
            TRY(expect_word(p, ","));
        }
        TRY(parse_expression(p, &operand));
        append_operand(parent, operand);
    }
    return STATUS_OK;
}

static status parse_primary(struct parser *p, node **out)
{
    int count;
    skip_space(p);
    char c = p->at < p->bytes ? p->text[p->at] : '\0';
    if (c == '\'' || c == '"') {
        return parse_string(p, out);
    }
    if (isdigit((unsigned char)c)) {
        return parse_number(p, out);
    }
    if (take_word(p, "[")) {
        TRY(add_node(p, TASK_TEMPLATE_LIST, NULL, out));
        return parse_operands(p, "]", *out, &count);
    }
    if (take_word(p, "(")) {
        TRY(parse_expression(p, out));
        return expect_word(p, ")");
    }
    return parse_name(p, out);
}

/* ---- what follows a primary expression ---- */

static status parse_call(struct parser *p, const char *name, bool is_filter, node **at)
{
    node *call = NULL;
    int count = 0;
    if (!task_template_has_function(name, is_filter, -1)) {
        FAIL(p, "the %s %s is not supported", is_filter ? "filter" : "method", name);
    }
    TRY(add_node(p, TASK_TEMPLATE_CALL, name, &call));
    append_operand(call, *at);
    if (take_word(p, "(")) {
        TRY(parse_operands(p, ")", call, &count));
    }
    if (!task_template_has_function(name, is_filter, count)) {
        FAIL(p, "%s does not accept %d argument%s", name, count, text_plural(count));
    }
    *at = call;
    return STATUS_OK;
}

/* Reads .name or .name(arguments). */
static status parse_attribute(struct parser *p, node **at)
{
    char name[NAME_BYTES];
    node *index = NULL, *key = NULL;
    TRY(read_name(p, name));
    if (p->at < p->bytes && p->text[p->at] == '(') {
        return parse_call(p, name, false, at);
    }
    TRY(add_node(p, TASK_TEMPLATE_INDEX, NULL, &index));
    TRY(add_value(p, TASK_TEMPLATE_VALUE, json_string(name), &key));
    append_operand(index, *at);
    append_operand(index, key);
    *at = index;
    return STATUS_OK;
}

/* Reads a bound of a slice; without one, it is null. */
static status parse_bound(struct parser *p, const char *end, node **out)
{
    return is_next(p, end) ? add_value(p, TASK_TEMPLATE_VALUE, json_null(), out)
                           : parse_expression(p, out);
}

/* Reads [index] or [from:to]. */
static status parse_subscript(struct parser *p, node **at)
{
    node *subscript = NULL, *bound = NULL;
    TRY(add_node(p, TASK_TEMPLATE_INDEX, NULL, &subscript));
    append_operand(subscript, *at);
    TRY(parse_bound(p, ":", &bound));
    append_operand(subscript, bound);
    if (take_word(p, ":")) {
        subscript->kind = TASK_TEMPLATE_SLICE;
        TRY(parse_bound(p, "]", &bound));
        append_operand(subscript, bound);
    }
    *at = subscript;
    return expect_word(p, "]");
}

/* Reads "is [not] defined" and "is [not] none". */
static status parse_test(struct parser *p, node **at)
{
    char name[NAME_BYTES];
    node *test = NULL, *negation = NULL;
    bool is_negated = take_word(p, "not");
    TRY(read_name(p, name));
    if (strcmp(name, "defined") != 0 && strcmp(name, "none") != 0) {
        FAIL(p, "the test 'is %s' is not supported", name);
    }
    TRY(add_node(p, TASK_TEMPLATE_TEST, name, &test));
    append_operand(test, *at);
    *at = test;
    if (is_negated) {
        TRY(add_node(p, TASK_TEMPLATE_NOT, NULL, &negation));
        append_operand(negation, test);
        *at = negation;
    }
    return STATUS_OK;
}

static status parse_postfix(struct parser *p, node **out)
{
    char name[NAME_BYTES];
    TRY(parse_primary(p, out));
    for (;;) {
        if (take_word(p, ".")) {
            TRY(parse_attribute(p, out));
        } else if (take_word(p, "[")) {
            TRY(parse_subscript(p, out));
        } else if (take_word(p, "|")) {
            TRY(read_name(p, name));
            TRY(parse_call(p, name, true, out));
        } else if (take_word(p, "is")) {
            TRY(parse_test(p, out));
        } else {
            return STATUS_OK;
        }
    }
}

/* ---- operators ---- */

/* The operators by increasing precedence. An operator comes before its prefixes. */
enum { LEVEL_NOT = 2, LEVEL_NEGATE = 6, LEVELS_OPERATORS = 7 };
static const char *const operators[LEVELS_OPERATORS][9] = {
    {"or"},
    {"and"},
    {NULL}, /* not */
    {"==", "!=", "<=", ">=", "<", ">", "not in", "in"},
    {"+", "-"},
    {"~"},
    {NULL}, /* minus sign */
};

static const char *take_operator(struct parser *p, int level)
{
    if (is_next(p, "-}}") || is_next(p, "-%}")) {
        return NULL;
    }
    for (int i = 0; operators[level][i] != NULL; i++) {
        if (take_word(p, operators[level][i])) {
            return operators[level][i];
        }
    }
    return NULL;
}

static status parse_prefix(struct parser *p, int level, enum task_template_kind kind, node **out);

static status parse_level(struct parser *p, int level, node **out)
{
    if (level == LEVELS_OPERATORS) {
        return parse_postfix(p, out);
    }
    if (level == LEVEL_NOT && take_word(p, "not")) {
        return parse_prefix(p, level, TASK_TEMPLATE_NOT, out);
    }
    if (level == LEVEL_NEGATE && take_word(p, "-")) {
        return parse_prefix(p, level, TASK_TEMPLATE_NEGATE, out);
    }
    TRY(parse_level(p, level + 1, out));
    for (const char *name; (name = take_operator(p, level)) != NULL;) {
        node *binary = NULL, *right = NULL;
        TRY(add_node(p, TASK_TEMPLATE_BINARY, name, &binary));
        TRY(parse_level(p, level + 1, &right));
        append_operand(binary, *out);
        append_operand(binary, right);
        *out = binary;
    }
    return STATUS_OK;
}

/* Reads the operand of a prefix operator, which may have the same operator. */
static status parse_prefix(struct parser *p, int level, enum task_template_kind kind, node **out)
{
    node *operand = NULL;
    if (++p->depth > DEPTH_MAX) {
        FAIL(p, "expressions are nested more than %d levels deep", DEPTH_MAX);
    }
    TRY(add_node(p, kind, NULL, out));
    TRY(parse_level(p, level, &operand));
    append_operand(*out, operand);
    p->depth--;
    return STATUS_OK;
}

/* Reads "a", "a if b" or "a if b else c". */
static status parse_expression(struct parser *p, node **out)
{
    node *choose = NULL, *condition = NULL, *other = NULL;
    if (++p->depth > DEPTH_MAX) {
        FAIL(p, "expressions are nested more than %d levels deep", DEPTH_MAX);
    }
    TRY(parse_level(p, 0, out));
    if (take_word(p, "if")) {
        TRY(add_node(p, TASK_TEMPLATE_CHOOSE, NULL, &choose));
        TRY(parse_level(p, 0, &condition));
        append_operand(choose, condition);
        append_operand(choose, *out);
        if (take_word(p, "else")) {
            TRY(parse_expression(p, &other));
            append_operand(choose, other);
        }
        *out = choose;
    }
    p->depth--;
    return STATUS_OK;
}

/* ---- text and tags ---- */

static status parse_block(struct parser *p, node **out);

/* Reads text up to the next tag. A dash in the tag before or after it removes its white space. */
static status parse_text(struct parser *p, node *block)
{
    size_t first = p->at, end;
    node *text = NULL;
    while (p->at < p->bytes && !starts_with(p, "{{") && !starts_with(p, "{%") &&
           !starts_with(p, "{#")) {
        p->at++;
    }
    end = p->at;
    while (p->trims && first < end && isspace((unsigned char)p->text[first])) {
        first++;
    }
    bool trims_end = p->at + 2 < p->bytes && p->text[p->at + 2] == '-';
    while (trims_end && end > first && isspace((unsigned char)p->text[end - 1])) {
        end--;
    }
    p->trims = false;
    if (end > first) {
        TRY(add_value(p, TASK_TEMPLATE_TEXT, json_stringn(p->text + first, end - first), &text));
        append_operand(block, text);
    }
    return STATUS_OK;
}

static void begin_tag(struct parser *p)
{
    p->at += 2;
    p->at += p->at < p->bytes && (p->text[p->at] == '-' || p->text[p->at] == '+');
}

static status end_tag(struct parser *p, const char *close)
{
    char trimming[4];
    snprintf(trimming, sizeof trimming, "-%s", close);
    p->trims = take_word(p, trimming);
    return p->trims ? STATUS_OK : expect_word(p, close);
}

static status skip_comment(struct parser *p)
{
    const char *end =
        p->at + 4 <= p->bytes ? memmem(p->text + p->at + 2, p->bytes - p->at - 2, "#}", 2) : NULL;
    if (end == NULL) {
        FAIL(p, "the comment does not end");
    }
    p->at = (size_t)(end - p->text) + 2;
    p->trims = end[-1] == '-';
    return STATUS_OK;
}

/* Returns whether a tag with this word comes next. Reads the word if it does. */
static bool take_statement(struct parser *p, const char *word)
{
    size_t at = p->at;
    if (!starts_with(p, "{%")) {
        return false;
    }
    begin_tag(p);
    bool found = take_word(p, word);
    p->at = found ? p->at : at;
    return found;
}

/* Reads the rest of {% if condition %} block [{% elif %} ...] [{% else %} block] {% endif %}. */
static status parse_if(struct parser *p, node **out)
{
    node *operand = NULL;
    if (++p->depth > DEPTH_MAX) {
        FAIL(p, "expressions are nested more than %d levels deep", DEPTH_MAX);
    }
    TRY(add_node(p, TASK_TEMPLATE_CHOOSE, "block", out));
    TRY(parse_expression(p, &operand));
    append_operand(*out, operand);
    TRY(end_tag(p, "%}"));
    TRY(parse_block(p, &operand));
    append_operand(*out, operand);
    if (take_statement(p, "elif")) {
        TRY(parse_if(p, &operand)); /* reads {% endif %}, too */
        append_operand(*out, operand);
        p->depth--;
        return STATUS_OK;
    }
    if (take_statement(p, "else")) {
        TRY(end_tag(p, "%}"));
        TRY(parse_block(p, &operand));
        append_operand(*out, operand);
    }
    if (!take_statement(p, "endif")) {
        FAIL(p, "expected {%% endif %%}");
    }
    p->depth--;
    return end_tag(p, "%}");
}

/* Reads text and tags up to a statement that ends a block, or to the end of the template. */
static status parse_block(struct parser *p, node **out)
{
    TRY(add_node(p, TASK_TEMPLATE_BLOCK, NULL, out));
    for (;;) {
        node *operand = NULL;
        TRY(parse_text(p, *out));
        if (starts_with(p, "{#")) {
            TRY(skip_comment(p));
        } else if (starts_with(p, "{{")) {
            begin_tag(p);
            TRY(parse_expression(p, &operand));
            TRY(end_tag(p, "}}"));
        } else if (take_statement(p, "if")) {
            TRY(parse_if(p, &operand));
        } else {
            return STATUS_OK;
        }
        if (operand != NULL) {
            append_operand(*out, operand);
        }
    }
}

status task_template_parse(const char *text, struct task_template **out)
{
    TRY(ALLOCATE(*out, 1, "a template"));
    struct parser p = {.text = text, .bytes = strlen(text), .out = *out};
    status result = parse_block(&p, &(*out)->root);
    if (result == STATUS_OK && p.at < p.bytes) {
        result = raise_syntax(&p, "this tag is not supported; only {%% if %%} is");
    }
    if (result != STATUS_OK) {
        task_template_free(out);
    }
    return result;
}

void task_template_free(struct task_template **t)
{
    if (*t == NULL) {
        return;
    }
    for (node *at = (*t)->nodes; at != NULL;) {
        node *next = at->allocated;
        free(at->name);
        json_decref(at->value);
        free(at);
        at = next;
    }
    free(*t);
    *t = NULL;
}
