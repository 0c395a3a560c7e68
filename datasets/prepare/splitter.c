/* Finds positions at which a text can be split without a change of its ids.
 *
 * A byte-level tokenizer first splits text into words with a regular expression. Then it merges
 * bytes inside of each word. A split between two words is harmless if no word depends on the text
 * on the other side of the split. This holds in the patterns of GPT-2, cl100k, o200k, Llama 3 and
 * Qwen 2 at these positions:
 *
 *   1. before a space that follows a character other than white space. A word contains a space only
 *      as its first character or in a run of white space, and lookaheads concern only such runs.
 *   2. before a newline or carriage return that follows a letter or digit. Letters and digits end
 *      there, and only white space or punctuation starts a word before a newline.
 *   3. before a Chinese or Japanese comma or full stop that follows a letter of these scripts.
 *
 * Two kinds of tokenizers use only position 1: BPE over characters, and tokenizers that put a space
 * before each text that does not begin with one. The words of BPE over characters begin at a space
 * if no token contains a space after another character. No pattern has a lookbehind. For the `char`
 * tokenizer every position between two characters is harmless. A position inside of an added token
 * is never used. */
#include "datasets/prepare/splitter.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"

/* Decodes the character that ends before text[position]. Returns 0 unless it is a complete UTF-8
 * sequence of at most three bytes in the shortest form. */
static uint32_t decode_character_before(const unsigned char *text, size_t position)
{
    unsigned char last = text[position - 1];
    if (last < 0x80) {
        return last;
    }
    if (position >= 2 && last < 0xC0 && text[position - 2] >= 0xC2 && text[position - 2] < 0xE0) {
        return (uint32_t)(text[position - 2] & 0x1F) << 6 | (last & 0x3F);
    }
    if (position >= 3 && last < 0xC0 && (text[position - 2] & 0xC0) == 0x80 &&
        (text[position - 3] & 0xF0) == 0xE0) {
        uint32_t code = (uint32_t)(text[position - 3] & 0x0F) << 12 |
                        (uint32_t)(text[position - 2] & 0x3F) << 6 | (last & 0x3F);
        bool whole = code >= 0x800 && (code < 0xD800 || code > 0xDFFF);
        return whole ? code : 0;
    }
    return 0;
}

static bool is_ascii_alphanumeric(uint32_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Letters of Hiragana, Katakana, Han and Hangul. */
static bool is_cjk_letter(uint32_t c)
{
    return (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3);
}

/* Returns false for white space and for characters that regular expression engines
 * classify differently. */
static bool is_visible(uint32_t c)
{
    if (c < 0x80) {
        return c > ' ' && c < 0x7F;
    }
    return c > 0xA0 && c != 0x1680 && c != 0x180E && (c < 0x2000 || c > 0x206F) && c != 0x3000 &&
           c != 0xFEFF;
}

bool splitter_is_boundary(const char *text, size_t bytes, size_t position, bool spaces_only)
{
    const unsigned char *u = (const unsigned char *)text;
    unsigned char next = u[position];
    if (next == ' ') {
        return is_visible(decode_character_before(u, position));
    }
    if (spaces_only) {
        return false;
    }
    if (next == '\n' || next == '\r') {
        uint32_t before = decode_character_before(u, position);
        return is_ascii_alphanumeric(before) || is_cjk_letter(before);
    }
    bool comma_or_stop =
        position + 3 <= bytes && (memcmp(u + position, "\xE3\x80\x81", 3) == 0 || /* U+3001 */
                                  memcmp(u + position, "\xE3\x80\x82", 3) == 0 || /* U+3002 */
                                  memcmp(u + position, "\xEF\xBC\x8C", 3) == 0);  /* U+FF0C */
    return comma_or_stop && is_cjk_letter(decode_character_before(u, position));
}

static size_t skip_closing_marks(const char *text, size_t bytes, size_t position)
{
    while (position < bytes && strchr("\"')]", text[position]) != NULL && text[position] != '\0') {
        position++;
    }
    return position;
}

size_t splitter_find_sentence_end(const char *text, size_t bytes, size_t from, bool at_punctuation)
{
    for (size_t position = from; position < bytes; position++) {
        char c = text[position];
        if (c == '\n') {
            return position + 1;
        }
        if (at_punctuation && (c == '.' || c == '?' || c == '!')) {
            size_t end = skip_closing_marks(text, bytes, position + 1);
            if (end < bytes && strchr(" \t\r\n", text[end]) != NULL && text[end] != '\0') {
                return end;
            }
        }
        bool cjk_end = at_punctuation && bytes - position >= 3 &&
                       (memcmp(text + position, "\xE3\x80\x82", 3) == 0 || /* U+3002 */
                        memcmp(text + position, "\xEF\xBC\x81", 3) == 0 || /* U+FF01 */
                        memcmp(text + position, "\xEF\xBC\x9F", 3) == 0);  /* U+FF1F */
        if (cjk_end) {
            return position + 3;
        }
    }
    return bytes;
}

/* Finds the last sentence end before the end of the buffer; 0 if there is none. */
static size_t find_last_sentence_end(const struct splitter *s)
{
    size_t last = 0;
    for (size_t end = 0;
         (end = splitter_find_sentence_end(s->buffer, s->buffered_bytes, end,
                                           s->origin.split_at_punctuation)) < s->buffered_bytes;) {
        last = end;
    }
    return last;
}

/* Chooses how sentences end, once the beginning of the document is in the buffer. */
static void choose_sentence_rule(struct splitter *s)
{
    const char *newline = memchr(s->buffer, '\n', s->buffered_bytes);
    /* A newline at the very end does not separate lines. */
    bool has_lines = newline != NULL && newline + 1 < s->buffer + s->buffered_bytes;
    s->origin.split_at_punctuation = s->sentence_rule == PREPARE_SENTENCE_PUNCTUATION ||
                                     (s->sentence_rule == PREPARE_SENTENCE_AUTO && !has_lines);
    s->sentence_rule_chosen = true;
}

/* Finds the last harmless position in a full buffer. If there is none, sets *forced and returns
 * the last position between two characters. */
static size_t find_split(const struct splitter *s, bool *forced)
{
    size_t sentence = s->keep_sentences ? find_last_sentence_end(s) : 0;
    if (sentence > 0) {
        *forced = false;
        return sentence;
    }
    for (size_t position = s->buffered_bytes - 1; position > 0; position--) {
        if (splitter_is_boundary(s->buffer, s->buffered_bytes, position, s->spaces_only) &&
            tokenizer_is_added_boundary(s->tokenizer, s->buffer, s->buffered_bytes, position)) {
            *forced = false;
            return position;
        }
    }
    *forced = true;
    size_t position = s->buffered_bytes;
    while (position > s->buffered_bytes - 4 && (s->buffer[position - 1] & 0xC0) == 0x80) {
        position--;
    }
    /* The byte before is the first byte of a character: split before that character. */
    bool inside = (s->buffer[position - 1] & 0xC0) == 0xC0;
    return inside ? position - 1 : s->buffered_bytes;
}

static status emit_chunk(struct splitter *s)
{
    if (s->keep_sentences && !s->sentence_rule_chosen) {
        choose_sentence_rule(s);
    }
    bool forced;
    size_t position = find_split(s, &forced);
    if (forced && s->report->forced_splits++ == 0) {
        log_warning("LONG-WORD", "%s%s%" PRId64 ": %d KiB without a space; split inside of a word",
                    s->origin.path, s->origin.is_line ? ":" : ": at byte ", s->origin.position,
                    ENCODER_CHUNK_BYTES >> 10);
    }
    TRY(encoder_add_chunk(s->encoder, s->buffer, position, false, s->origin));
    s->origin.position += s->origin.is_line ? 0 : (int64_t)position;
    s->buffered_bytes -= position;
    memmove(s->buffer, s->buffer + position, s->buffered_bytes);
    return STATUS_OK;
}

void splitter_begin_document(struct splitter *s, struct encoder_origin origin)
{
    s->origin = origin;
    s->buffered_bytes = 0;
    s->has_text = false;
    s->sentence_rule_chosen = false;
}

status splitter_write(struct splitter *s, const char *text, size_t bytes)
{
    s->has_text = s->has_text || bytes > 0;
    while (bytes > 0) {
        if (s->buffered_bytes == ENCODER_CHUNK_BYTES) {
            TRY(emit_chunk(s));
        }
        size_t capacity = ENCODER_CHUNK_BYTES - s->buffered_bytes;
        size_t count = bytes < capacity ? bytes : capacity;
        memcpy(s->buffer + s->buffered_bytes, text, count);
        s->buffered_bytes += count;
        text += count;
        bytes -= count;
    }
    return STATUS_OK;
}

status splitter_end_document(struct splitter *s)
{
    if (!s->has_text) {
        s->report->empty_documents++;
        return STATUS_OK;
    }
    s->has_text = false;
    if (s->keep_sentences && !s->sentence_rule_chosen) {
        choose_sentence_rule(s);
    }
    return encoder_add_chunk(s->encoder, s->buffer, s->buffered_bytes, true, s->origin);
}
