/* Normalizes a text as SentencePiece does: replaces strings by the character map, removes leading,
 * trailing and repeated spaces, writes spaces as U+2581, and adds one space before (or after) the
 * text. User-defined pieces remain as they are. */
#include <string.h>

#include "base/text_buffer.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/sentencepiece_impl.h"

#define REPLACEMENT_CHARACTER "\xef\xbf\xbd"
#define BYTES_MAX ((size_t)INT32_MAX) /* positions in the text are 32-bit integers */

/* The output, and the options of this text. */
struct normal_text {
    const struct sentencepiece *s;
    struct text_buffer text;
    bool after_space; /* spaces are removed here */
};

/* A part of the input and its normal form. */
struct normal_part {
    size_t input_bytes;
    const char *text;
    size_t bytes;
};

static status append_text(struct normal_text *n, const char *text, size_t bytes)
{
    REQUIRE(n->text.count + bytes < BYTES_MAX, STATUS_DATA,
            "the normalized text has more than %zu bytes; split it", n->text.count);
    return text_buffer_append(&n->text, text, bytes);
}

static const char *get_space(const struct sentencepiece *s)
{
    return s->escape_whitespaces ? SENTENCEPIECE_SPACE : " ";
}

/* Normalizes the beginning of a text, which is not empty. */
static struct normal_part normalize_prefix(const struct sentencepiece *s, const char *text,
                                           size_t bytes)
{
    size_t user_defined = piece_trie_longest(&s->user_defined, text, bytes);
    if (user_defined > 0) {
        return (struct normal_part){user_defined, text, user_defined};
    }
    struct charsmap_match match = charsmap_find_longest(&s->charsmap, text, bytes);
    if (match.bytes > 0) {
        return (struct normal_part){match.bytes, match.replacement, strlen(match.replacement)};
    }
    uint32_t code;
    size_t length = utf8_read(text, bytes, &code);
    if (length > 0) {
        return (struct normal_part){length, text, length};
    }
    return (struct normal_part){1, REPLACEMENT_CHARACTER, strlen(REPLACEMENT_CHARACTER)};
}

static status append_part(struct normal_text *n, struct normal_part part)
{
    while (n->after_space && part.bytes > 0 && part.text[0] == ' ') {
        part.text++;
        part.bytes--;
    }
    for (size_t i = 0; i < part.bytes; i++) {
        const char *space = get_space(n->s);
        bool is_space = part.text[i] == ' ';
        TRY(append_text(n, is_space ? space : part.text + i, is_space ? strlen(space) : 1));
    }
    if (part.bytes > 0) {
        n->after_space = n->s->remove_extra_whitespaces && part.text[part.bytes - 1] == ' ';
    }
    return STATUS_OK;
}

/* Returns the position after the spaces at the beginning of a text. */
static size_t skip_spaces(const struct sentencepiece *s, const char *text, size_t bytes)
{
    size_t pos = 0;
    while (pos < bytes) {
        struct normal_part part = normalize_prefix(s, text + pos, bytes - pos);
        if (part.bytes != 1 || part.text[0] != ' ') {
            break;
        }
        pos += part.input_bytes;
    }
    return pos;
}

static void remove_trailing_spaces(struct normal_text *n)
{
    const char *space = get_space(n->s);
    size_t length = strlen(space);
    struct text_buffer *text = &n->text;
    while (text->count >= length &&
           memcmp(text->bytes + text->count - length, space, length) == 0) {
        text->count -= length;
    }
}

static status normalize_text(struct normal_text *n, const char *text, size_t bytes, bool continued)
{
    const struct sentencepiece *s = n->s;
    /* The text before ends with the space that a suffix model adds; it is the first one here. */
    bool has_space = continued && s->space_is_suffix && s->add_dummy_prefix;
    bool trims_start = s->remove_extra_whitespaces && (!continued || has_space);
    size_t pos = 0;
    if (trims_start) {
        pos = skip_spaces(s, text, bytes);
    } else if (has_space && bytes > 0 && text[0] == ' ') {
        pos = 1;
    }
    if (pos == bytes) {
        return STATUS_OK;
    }
    const char *space = get_space(s);
    if (s->add_dummy_prefix && !s->space_is_suffix && !continued) {
        TRY(append_text(n, space, strlen(space)));
    }
    n->after_space = trims_start;
    while (pos < bytes) {
        struct normal_part next = normalize_prefix(s, text + pos, bytes - pos);
        TRY(append_part(n, next));
        pos += next.input_bytes;
    }
    if (s->remove_extra_whitespaces) {
        remove_trailing_spaces(n);
    }
    if (s->add_dummy_prefix && s->space_is_suffix) {
        TRY(append_text(n, space, strlen(space)));
    }
    return STATUS_OK;
}

status sentencepiece_normalize(const struct sentencepiece *s, const char *text, size_t bytes,
                               bool continued, char **out, size_t *out_bytes)
{
    struct normal_text n = {.s = s};
    status result = normalize_text(&n, text, bytes, continued);
    KEEP_FIRST(result, append_text(&n, "", 1));
    if (result != STATUS_OK) {
        text_buffer_free(&n.text);
    }
    *out = n.text.bytes;
    *out_bytes = result == STATUS_OK ? n.text.count - 1 : 0;
    return result;
}
