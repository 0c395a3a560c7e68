#include "trainer/formats/json/json_members.h"

#include <jansson.h>
#include <string.h>

#include "base/utf8.h"

enum { TEXT_BYTES_MAX = 4096 }; /* of a text that is decoded, with its escapes */
enum { SHORT_DIGITS = 16 };     /* an integer with at most as many digits needs no jansson */

/* Raises an error at the position `at`. */
static status raise_at(const struct json_members *m, size_t at, const char *reason)
{
    int line = 1;
    size_t line_start = 0;
    for (size_t i = 0; i < at; i++) {
        if (m->text[i] == '\n') {
            line++;
            line_start = i + 1;
        }
    }
    RAISE(STATUS_DATA, "%s, line %d column %zu: %s", m->source, line, at - line_start + 1, reason);
}

static void skip_blanks(struct json_members *m)
{
    while (m->at < m->bytes && (m->text[m->at] == ' ' || m->text[m->at] == '\n' ||
                                m->text[m->at] == '\t' || m->text[m->at] == '\r')) {
        m->at++;
    }
}

bool json_members_is_next(struct json_members *m, char first)
{
    skip_blanks(m);
    return m->at < m->bytes && m->text[m->at] == first;
}

/* Reads this character, which must be the next one. */
static status read_character(struct json_members *m, char expected)
{
    char reason[] = "'?' expected";
    reason[1] = expected;
    if (!json_members_is_next(m, expected)) {
        return raise_at(m, m->at, m->at == m->bytes ? "the text ends too early" : reason);
    }
    m->at++;
    return STATUS_OK;
}

/* Reads a text in quotes and returns its position and length without the quotes. */
static status read_quoted(struct json_members *m, size_t *begin, size_t *length)
{
    TRY(read_character(m, '"'));
    size_t end = m->at;
    while (end < m->bytes && m->text[end] != '"') {
        if ((unsigned char)m->text[end] < 0x20) {
            return raise_at(m, end, "a control character in a text");
        }
        end += m->text[end] == '\\' ? 2 : 1;
    }
    if (end >= m->bytes) {
        return raise_at(m, m->at - 1, "the text does not end");
    }
    *begin = m->at;
    *length = end - m->at;
    m->at = end + 1;
    return STATUS_OK;
}

status json_members_read_text(struct json_members *m, char **out)
{
    size_t begin, length;
    json_error_t error;
    TRY(read_quoted(m, &begin, &length));
    if (length > TEXT_BYTES_MAX) {
        return raise_at(m, begin, "a name has more than 4096 bytes");
    }
    if (memchr(m->text + begin, '\\', length) == NULL &&
        utf8_is_valid(m->text + begin, length)) { /* also faster: no escapes to decode */
        m->text[begin + length] = '\0';
        *out = m->text + begin;
        return STATUS_OK;
    }
    json_t *text = json_loadb(m->text + begin - 1, length + 2, JSON_DECODE_ANY, &error);
    if (text == NULL) {
        return raise_at(m, begin, error.text);
    }
    /* The decoded text is not longer. It is followed by a NUL, at most at the closing quote. */
    memcpy(m->text + begin, json_string_value(text), json_string_length(text) + 1);
    json_decref(text);
    *out = m->text + begin;
    return STATUS_OK;
}

static bool is_escape(const char *text, size_t bytes)
{
    if (bytes >= 6 && text[1] == 'u') {
        return strspn(text + 2, "0123456789abcdefABCDEF") >= 4;
    }
    return bytes >= 2 && text[1] != '\0' && strchr("\"\\/bfnrt", text[1]) != NULL;
}

status json_members_check_text(struct json_members *m)
{
    size_t begin, length;
    TRY(read_quoted(m, &begin, &length));
    size_t valid = utf8_find_valid_end(m->text, begin + length, begin);
    if (valid < begin + length) {
        return raise_at(m, valid, "invalid UTF-8");
    }
    for (size_t i = begin; i < begin + length; i++) {
        if (m->text[i] == '\\' && !is_escape(m->text + i, begin + length - i)) {
            return raise_at(m, i, "invalid escape");
        }
        i += m->text[i] == '\\';
    }
    return STATUS_OK;
}

status json_members_begin(struct json_members *m)
{
    skip_blanks(m);
    if (m->at < m->bytes && m->text[m->at] != '{') {
        return raise_at(m, m->at, "not a JSON object");
    }
    m->is_after_a_value = false;
    return read_character(m, '{');
}

status json_members_next(struct json_members *m, char **name)
{
    *name = NULL;
    if (json_members_is_next(m, '}')) {
        m->at++;
        m->is_after_a_value = true; /* in the outer object */
        return STATUS_OK;
    }
    TRY(m->is_after_a_value ? read_character(m, ',') : STATUS_OK);
    m->is_after_a_value = true;
    TRY(json_members_read_text(m, name));
    return read_character(m, ':');
}

status json_members_read(struct json_members *m, size_t limit_bytes, json_t **out)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY;
    json_error_t error;
    skip_blanks(m);
    size_t left = m->bytes - m->at, bytes = left < limit_bytes ? left : limit_bytes;
    *out = json_loadb(m->text + m->at, bytes, flags, &error);
    size_t end = error.position > 0 ? (size_t)error.position : 0;
    if (*out == NULL) {
        bool is_cut = bytes < left && end >= bytes;
        return raise_at(m, m->at + (end <= bytes ? end : bytes),
                        is_cut ? "the value is too long" : error.text);
    }
    m->at += end;
    return STATUS_OK;
}

static bool is_digit(const struct json_members *m, size_t at)
{
    return at < m->bytes && m->text[at] >= '0' && m->text[at] <= '9';
}

/* Reads an integer without a sign and with few digits. Returns false for any other value. */
static bool read_short_integer(struct json_members *m, int64_t *out)
{
    size_t at = m->at;
    int64_t value = 0;
    while (is_digit(m, at) && at - m->at < SHORT_DIGITS) {
        value = 10 * value + (m->text[at++] - '0');
    }
    bool has_zeros = at - m->at > 1 && m->text[m->at] == '0';
    if (at == m->at || has_zeros || at == m->bytes || is_digit(m, at) || m->text[at] == '.' ||
        m->text[at] == 'e' || m->text[at] == 'E') {
        return false;
    }
    m->at = at;
    *out = value;
    return true;
}

status json_members_read_integer(struct json_members *m, int64_t *out, bool *is_integer)
{
    json_t *value;
    skip_blanks(m);
    *is_integer = true;
    if (read_short_integer(m, out)) {
        return STATUS_OK;
    }
    TRY(json_members_read(m, m->bytes, &value));
    *is_integer = json_is_integer(value);
    *out = json_integer_value(value);
    json_decref(value);
    return STATUS_OK;
}

status json_members_begin_list(struct json_members *m)
{
    m->is_after_a_value = false;
    return read_character(m, '[');
}

status json_members_next_item(struct json_members *m, bool *has_item)
{
    *has_item = !json_members_is_next(m, ']');
    if (!*has_item) {
        m->at++;
        m->is_after_a_value = true; /* in the outer object or list */
        return STATUS_OK;
    }
    TRY(m->is_after_a_value ? read_character(m, ',') : STATUS_OK);
    m->is_after_a_value = true;
    return STATUS_OK;
}

status json_members_skip_list(struct json_members *m, size_t *begin)
{
    size_t unused;
    skip_blanks(m);
    *begin = m->at;
    TRY(read_character(m, '['));
    for (int64_t depth = 1; depth > 0;) {
        if (m->at == m->bytes) {
            return raise_at(m, m->at, "the text ends too early");
        }
        char c = m->text[m->at];
        if (c == '"') {
            TRY(read_quoted(m, &unused, &unused));
            continue;
        }
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        m->at++;
    }
    return STATUS_OK;
}

status json_members_finish(struct json_members *m)
{
    skip_blanks(m);
    return m->at == m->bytes ? STATUS_OK : raise_at(m, m->at, "the end is expected");
}
