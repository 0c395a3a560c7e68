/* The reader counts brackets and quotes to find the paragraphs, at a depth of 5: root object, list
 * "data", article, list "paragraphs", paragraph. jansson parses each paragraph. All other bytes,
 * with a 0 for each paragraph, are parsed at the end, so that the whole file is checked. */
#include "datasets/rows/squad.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum {
    READ_BYTES = 256 << 10,
    TEXT_BYTES_MAX = 64 << 20,
    KEY_BYTES = 16,
    DATA_DEPTH = 2,
    PARAGRAPHS_DEPTH = 4,
    PARAGRAPH_DEPTH
};

struct text_buffer {
    char *text;
    size_t bytes, capacity;
};

struct squad {
    const char *path;
    struct jsonl_bad_rows *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    struct text_buffer paragraph, outside; /* outside: the bytes around the paragraphs */
    int64_t line, paragraph_line;
    int depth;
    bool in_string, escaped;
    char key[KEY_BYTES]; /* the first bytes of the last string */
    size_t key_bytes;
    bool in_data, in_paragraphs;
};

/* ---- beginning of a file ---- */

static size_t skip_space(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && text_is_space(text[at])) {
        at++;
    }
    return at;
}

/* Returns the position after the string that begins at `at`; `bytes` if it does not end. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at < bytes ? at + 1 : bytes;
}

/* Returns whether the first list in an object is "data", and has an object as its first item. */
static bool begins_with_data(const char *text, size_t bytes)
{
    size_t at = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    at = skip_space(text, bytes, at);
    bool is_object = at < bytes && text[at] == '{';
    while (is_object && (at = skip_space(text, bytes, at + 1)) < bytes && text[at] == '"') {
        size_t key = at + 1, end = skip_string(text, bytes, at);
        at = skip_space(text, bytes, end);
        at = at < bytes && text[at] == ':' ? skip_space(text, bytes, at + 1) : bytes;
        if (at < bytes && text[at] == '[') {
            at = skip_space(text, bytes, at + 1);
            return end - key == 5 && memcmp(text + key, "data", 4) == 0 && at < bytes &&
                   text[at] == '{';
        }
        at = at < bytes && text[at] == '"' ? skip_string(text, bytes, at) : at;
        while (at < bytes && text[at] != ',') { /* a number, or white space */
            is_object = is_object && strchr("{}[]\"", text[at]) == NULL;
            at++;
        }
    }
    return false;
}

status squad_detect(struct input *in, bool *out)
{
    const char *text;
    size_t bytes;
    TRY(input_peek(in, &text, &bytes));
    *out = begins_with_data(text, bytes);
    return STATUS_OK;
}

/* ---- questions ---- */

/* Converts the list of answers to two lists. */
static status convert_answers(const json_t *answers, json_t **out)
{
    json_t *texts = json_array(), *starts = json_array();
    int failed = texts == NULL || starts == NULL;
    status result = STATUS_OK;
    for (size_t i = 0; i < json_array_size(answers) && result == STATUS_OK; i++) {
        json_t *text = json_object_get(json_array_get(answers, i), "text");
        json_t *start = json_object_get(json_array_get(answers, i), "answer_start");
        if (text == NULL || start == NULL) {
            result =
                RAISE_STATUS(STATUS_DATA, "answer %zu has no 'text' or no 'answer_start'", i + 1);
        }
        failed |= json_array_append(texts, text) | json_array_append(starts, start);
    }
    *out = json_pack("{s:o, s:o}", "text", texts, "answer_start", starts);
    TRY(result);
    REQUIRE(failed == 0 && *out != NULL, STATUS_INTERNAL, "out of memory for answers");
    return STATUS_OK;
}

/* Makes the row of a question. */
static status make_row(const json_t *question, json_t *context, json_t **out)
{
    static const char *const names[] = {"id", "question"};
    json_t *answers = json_object_get(question, "answers"), *converted = NULL;
    REQUIRE(json_is_object(question) && json_is_array(answers), STATUS_DATA,
            "no list 'answers'; without an answer in the context it must be empty");
    *out = json_object();
    int failed = *out == NULL || json_object_set(*out, "context", context) != 0;
    for (int i = 0; i < COUNT(names); i++) {
        json_t *value = json_object_get(question, names[i]);
        failed |= value != NULL && json_object_set(*out, names[i], value) != 0;
    }
    status result = convert_answers(answers, &converted);
    failed |= json_object_set_new(*out, "answers", converted) != 0;
    TRY(result);
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for a question");
    return STATUS_OK;
}

/* Adds the id of the question to the reason of a bad row. */
static status report_bad_question(const struct squad *s, const json_t *question, int64_t line)
{
    struct status_note reason;
    const char *id = json_string_value(json_object_get(question, "id"));
    if (id != NULL) {
        status_take(&reason);
        (void)RAISE_STATUS(STATUS_DATA, "question %.80s: %.1500s", id, reason.text);
    }
    return jsonl_report_bad_row(s->bad, s->path, line);
}

static status use_question(struct squad *s, const json_t *question, json_t *context)
{
    struct jsonl_row row = {
        .path = s->path, .line = s->paragraph_line, .bytes = s->paragraph.bytes};
    status result = make_row(question, context, &row.value);
    if (result == STATUS_OK) {
        result = s->use(s->user, &row);
        s->bad->has_good_row = s->bad->has_good_row || result == STATUS_OK;
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.fatal ? report_bad_question(s, question, row.line)
                                               : result;
}

static status use_paragraph(struct squad *s)
{
    json_t *paragraph = NULL;
    status result = jsonl_parse(s->paragraph.text, s->paragraph.bytes, &paragraph);
    json_t *context = json_object_get(paragraph, "context");
    const json_t *questions = json_object_get(paragraph, "qas");
    if (result == STATUS_OK && (context == NULL || !json_is_array(questions))) {
        result = RAISE_STATUS(STATUS_DATA, "a paragraph without 'context' or a list 'qas'");
    }
    if (result == STATUS_DATA) {
        result = jsonl_report_bad_row(s->bad, s->path, s->paragraph_line);
        questions = NULL;
    }
    for (size_t i = 0; i < json_array_size(questions) && result == STATUS_OK; i++) {
        result = use_question(s, json_array_get(questions, i), context);
    }
    json_decref(paragraph);
    return result;
}

/* ---- bytes ---- */

static status append_byte(struct squad *s, char byte)
{
    struct text_buffer *b =
        s->depth >= PARAGRAPH_DEPTH && s->in_paragraphs ? &s->paragraph : &s->outside;
    REQUIRE(b->bytes < TEXT_BYTES_MAX, STATUS_DATA, "%s:%" PRId64 ": %s is longer than 64 MiB",
            s->path, b == &s->paragraph ? s->paragraph_line : s->line,
            b == &s->paragraph ? "a paragraph" : "the text around the paragraphs");
    if (b->bytes == b->capacity) {
        TRY(GROW(b->text, 2 * b->capacity + 4096, "a paragraph"));
        b->capacity = 2 * b->capacity + 4096;
    }
    b->text[b->bytes++] = byte;
    return STATUS_OK;
}

static bool has_key(const struct squad *s, const char *key)
{
    return s->key_bytes == strlen(key) && memcmp(s->key, key, s->key_bytes) == 0;
}

static status open_bracket(struct squad *s, char byte)
{
    s->depth++;
    if (byte == '[') {
        s->in_data = s->in_data || (s->depth == DATA_DEPTH && has_key(s, "data"));
        s->in_paragraphs = s->in_paragraphs ||
                           (s->depth == PARAGRAPHS_DEPTH && s->in_data && has_key(s, "paragraphs"));
    }
    if (s->depth == PARAGRAPH_DEPTH && s->in_paragraphs) {
        s->paragraph.bytes = 0;
        s->paragraph_line = s->line;
    }
    return append_byte(s, byte);
}

static status close_bracket(struct squad *s, char byte)
{
    TRY(append_byte(s, byte));
    bool ends_paragraph = s->depth == PARAGRAPH_DEPTH && s->in_paragraphs;
    s->depth -= s->depth > 0;
    if (ends_paragraph) {
        TRY(append_byte(s, '0'));
        return use_paragraph(s);
    }
    s->in_paragraphs = s->in_paragraphs && s->depth >= PARAGRAPHS_DEPTH;
    s->in_data = s->in_data && s->depth >= DATA_DEPTH;
    return STATUS_OK;
}

static status add_string_byte(struct squad *s, char byte)
{
    if (!s->escaped && byte == '"') {
        s->in_string = false;
        return append_byte(s, byte);
    }
    s->escaped = !s->escaped && byte == '\\';
    if (s->key_bytes < KEY_BYTES) {
        s->key[s->key_bytes++] = byte;
    }
    return append_byte(s, byte);
}

static status add_byte(struct squad *s, char byte)
{
    s->line += byte == '\n';
    if (s->in_string) {
        return add_string_byte(s, byte);
    }
    switch (byte) {
    case '"':
        s->in_string = true;
        s->key_bytes = 0;
        return append_byte(s, byte);
    case '{':
    case '[':
        return open_bracket(s, byte);
    case '}':
    case ']':
        return close_bracket(s, byte);
    default:
        return append_byte(s, byte);
    }
}

/* Checks the text around the paragraphs. */
static status check_outside(const struct squad *s)
{
    json_error_t error;
    json_t *outside = json_loadb(s->outside.text != NULL ? s->outside.text : "", s->outside.bytes,
                                 JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    bool valid = outside != NULL;
    json_decref(outside);
    REQUIRE(valid, STATUS_DATA,
            "%s:%" PRId64 ": damaged or truncated: around its paragraphs it is not valid JSON: %s",
            s->path, s->line, error.text);
    return STATUS_OK;
}

static status read_blocks(struct squad *s, struct file_reader *r, char *buffer)
{
    size_t got = 1;
    for (bool first = true; got > 0; first = false) {
        TRY(file_reader_read(r, buffer, READ_BYTES, &got));
        bool has_bom = first && got >= 3 && memcmp(buffer, "\xEF\xBB\xBF", 3) == 0;
        for (size_t i = has_bom ? 3 : 0; i < got; i++) {
            TRY(add_byte(s, buffer[i]));
        }
    }
    return check_outside(s);
}

status squad_read_open(struct file_reader *r, struct jsonl_bad_rows *bad, int64_t *bytes,
                       status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct squad s = {.path = r->path, .bad = bad, .use = use, .user = user, .line = 1};
    char *buffer = NULL;
    TRY(ALLOCATE(buffer, READ_BYTES, "a block of a file"));
    status result = read_blocks(&s, r, buffer);
    *bytes += r->bytes;
    free(s.paragraph.text);
    free(s.outside.text);
    free(buffer);
    return result;
}
