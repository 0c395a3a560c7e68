/* Where a text may be cut so that its pieces have the ids of the whole.
 *
 * A byte-level tokenizer first cuts text into words by a regular expression and then merges bytes inside
 * of each word. A cut between two words is harmless if no word before it depends on what follows, and
 * none after it on what came before. In the patterns of GPT-2, cl100k, o200k, Llama 3 and Qwen 2:
 *
 *   1. before a blank that follows a character that is no white space: a word holds a blank only as its
 *      first character or in a run of white space, and the looks ahead concern such runs alone;
 *   2. before a line's end that follows a letter or digit: letters and digits end there, and no word
 *      begins before a line's end but white space or punctuation;
 *   3. before a Chinese or Japanese comma or full stop that follows a letter of these scripts.
 *
 * 2 and 3 are not used where the tokenizer puts a blank before each text that does not begin with one.
 * No pattern looks behind. The `char` tokenizer may be cut between any two characters. */
#include <string.h>

#include "base/log.h"
#include "datasets/prepare/input.h"

/* The character that ends at text[at], if it is whole and shortest UTF-8 of at most three bytes; else 0. */
static uint32_t character_before(const unsigned char *text, size_t at)
{
    unsigned char last = text[at - 1];
    if (last < 0x80) {
        return last;
    }
    if (at >= 2 && last < 0xC0 && text[at - 2] >= 0xC2 && text[at - 2] < 0xE0) {
        return (uint32_t)(text[at - 2] & 0x1F) << 6 | (last & 0x3F);
    }
    if (at >= 3 && last < 0xC0 && (text[at - 2] & 0xC0) == 0x80 && (text[at - 3] & 0xF0) == 0xE0) {
        uint32_t code = (uint32_t)(text[at - 3] & 0x0F) << 12 |
                        (uint32_t)(text[at - 2] & 0x3F) << 6 | (last & 0x3F);
        bool whole = code >= 0x800 && (code < 0xD800 || code > 0xDFFF);
        return whole ? code : 0;
    }
    return 0;
}

static bool is_ascii_word(uint32_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Letters only: Hiragana, Katakana, Han, Hangul. */
static bool is_eastern_letter(uint32_t c)
{
    return (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3);
}

/* Certainly no white space and nothing that engines class differently. */
static bool is_visible(uint32_t c)
{
    if (c < 0x80) {
        return c > ' ' && c < 0x7F;
    }
    return c > 0xA0 && c != 0x1680 && c != 0x180E && (c < 0x2000 || c > 0x206F) && c != 0x3000 &&
           c != 0xFEFF;
}

bool cutter_boundary(const char *text, size_t bytes, size_t at, bool blanks_only)
{
    const unsigned char *u = (const unsigned char *)text;
    unsigned char next = u[at];
    if (next == ' ') {
        return is_visible(character_before(u, at));
    }
    if (blanks_only) {
        return false;
    }
    if (next == '\n' || next == '\r') {
        uint32_t before = character_before(u, at);
        return is_ascii_word(before) || is_eastern_letter(before);
    }
    bool stop = at + 3 <= bytes && (memcmp(u + at, "\xE3\x80\x81", 3) == 0 || /* U+3001 */
                                    memcmp(u + at, "\xE3\x80\x82", 3) == 0 || /* U+3002 */
                                    memcmp(u + at, "\xEF\xBC\x8C", 3) == 0);  /* U+FF0C */
    return stop && is_eastern_letter(character_before(u, at));
}

static size_t closing(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && strchr("\"')]", text[at]) != NULL && text[at] != '\0') {
        at++;
    }
    return at;
}

size_t sentence_end(const char *text, size_t bytes, size_t from, bool stops)
{
    for (size_t at = from; at < bytes; at++) {
        char c = text[at];
        if (c == '\n') {
            return at + 1;
        }
        if (stops && (c == '.' || c == '?' || c == '!')) {
            size_t end = closing(text, bytes, at + 1);
            if (end < bytes && strchr(" \t\r\n", text[end]) != NULL && text[end] != '\0') {
                return end;
            }
        }
        bool eastern = stops && bytes - at >= 3 &&
                       (memcmp(text + at, "\xE3\x80\x82", 3) == 0 || /* U+3002 */
                        memcmp(text + at, "\xEF\xBC\x81", 3) == 0 || /* U+FF01 */
                        memcmp(text + at, "\xEF\xBC\x9F", 3) == 0);  /* U+FF1F */
        if (eastern) {
            return at + 3;
        }
    }
    return bytes;
}

/* The last sentence's end in a full buffer that has one before its own end; 0: none. */
static size_t last_sentence(const struct cutter *c)
{
    size_t last = 0;
    for (size_t end = 0; (end = sentence_end(c->text, c->held, end, c->origin.stops)) < c->held;) {
        last = end;
    }
    return last;
}

/* How the document's sentences end, once its beginning is held. */
static void choose_stops(struct cutter *c)
{
    const char *line = memchr(c->text, '\n', c->held);
    bool lines =
        line != NULL && line + 1 < c->text + c->held; /* one at the very end separates nothing */
    c->origin.stops = c->sentences == PREPARE_STOPS || (c->sentences == PREPARE_AUTO && !lines);
    c->begun = true;
}

/* The last good place in a full buffer; where there is none, the last place between two characters. */
static size_t find_cut(const struct cutter *c, bool *forced)
{
    size_t sentence = c->pairs ? last_sentence(c) : 0;
    if (sentence > 0) {
        *forced = false;
        return sentence;
    }
    for (size_t at = c->held - 1; at > 0; at--) {
        if (cutter_boundary(c->text, c->held, at, c->blanks_only)) {
            *forced = false;
            return at;
        }
    }
    *forced = true;
    size_t at = c->held;
    while (at > c->held - 4 && (c->text[at - 1] & 0xC0) == 0x80) {
        at--;
    }
    bool inside = (c->text[at - 1] & 0xC0) == 0xC0; /* a character begins just before */
    return inside ? at - 1 : c->held;
}

static status cut(struct cutter *c)
{
    if (c->pairs && !c->begun) {
        choose_stops(c);
    }
    bool forced;
    size_t at = find_cut(c, &forced);
    if (forced && c->report->forced_cuts++ == 0) {
        log_warning("CUT", "%s: %d KiB without a blank from %s %lld on; cut inside of a word",
                    c->origin.path, PREPARE_PIECE_BYTES >> 10, c->origin.is_line ? "line" : "byte",
                    (long long)c->origin.place);
    }
    TRY(encoder_piece(c->encoder, c->text, at, false, c->origin));
    c->origin.place += c->origin.is_line ? 0 : (int64_t)at;
    c->held -= at;
    memmove(c->text, c->text + at, c->held);
    return STATUS_OK;
}

void cutter_begin(struct cutter *c, struct origin origin)
{
    c->origin = origin;
    c->held = 0;
    c->open = false;
    c->begun = false;
}

status cutter_write(struct cutter *c, const char *text, size_t bytes)
{
    c->open = c->open || bytes > 0;
    while (bytes > 0) {
        if (c->held == PREPARE_PIECE_BYTES) {
            TRY(cut(c));
        }
        size_t room = PREPARE_PIECE_BYTES - c->held;
        size_t part = bytes < room ? bytes : room;
        memcpy(c->text + c->held, text, part);
        c->held += part;
        text += part;
        bytes -= part;
    }
    return STATUS_OK;
}

status cutter_end(struct cutter *c)
{
    if (!c->open) {
        c->report->empty_documents++;
        return STATUS_OK;
    }
    c->open = false;
    if (c->pairs && !c->begun) {
        choose_stops(c);
    }
    return encoder_piece(c->encoder, c->text, c->held, true, c->origin);
}
