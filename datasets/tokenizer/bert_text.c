#include "datasets/tokenizer/bert_text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "datasets/tokenizer/pretokenise.h"

#define REPLACEMENT 0xFFFDu
#define DECOMPOSED_MOST 32 /* the longest canonical decomposition has 4 code points */

struct mark { /* a combining character that waits for its place */
    uint32_t code;
    int order; /* canonical combining class, 1 .. 254 */
};

struct words {
    struct bert_text_options options;
    bert_text_visit *visit;
    void *context;
    char *word;
    size_t bytes, room, characters;
    struct mark *marks;
    size_t mark_count, mark_room;
};

static status end_word(struct words *w)
{
    if (w->characters == 0) {
        return STATUS_OK;
    }
    size_t bytes = w->bytes, characters = w->characters;
    w->bytes = w->characters = 0;
    return w->visit(w->context, w->word, bytes, characters);
}

static status reserve(struct words *w)
{
    if (w->room - w->bytes >= 4) {
        return STATUS_OK;
    }
    size_t room = w->room * 2 + 256;
    char *bigger = realloc(w->word, room);
    REQUIRE(bigger != NULL, STATUS_INTERNAL, "out of memory: a word of %zu bytes", w->bytes);
    w->word = bigger;
    w->room = room;
    return STATUS_OK;
}

static status put(struct words *w, uint32_t code)
{
    TRY(reserve(w));
    w->bytes += (size_t)utf8proc_encode_char((utf8proc_int32_t)code,
                                             (utf8proc_uint8_t *)w->word + w->bytes);
    w->characters++;
    return STATUS_OK;
}

/* A character of the cleaned text. */
static status emit(struct words *w, uint32_t code)
{
    enum bert_class kind = bert_class_of(code);
    if (kind == BERT_BLANK || code == 0x0B || code == 0x0C || code == 0x85) {
        return end_word(w); /* those three are control characters first: so only where they stay */
    }
    if (kind != BERT_PUNCTUATION) {
        return put(w, code);
    }
    TRY(end_word(w));
    TRY(put(w, code));
    return end_word(w);
}

/* Lower case of characters that are newer than the utf8proc of Debian 12. */
static uint32_t new_lower(uint32_t code)
{
    static const struct {
        uint32_t first, last;
        int32_t add;
    } newer[] = {{0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
                 {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
                 {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
                 {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
                 {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B}};
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++) {
        if (code >= newer[i].first && code <= newer[i].last) {
            return (uint32_t)((int32_t)code + newer[i].add);
        }
    }
    return code;
}

static status lower(struct words *w, uint32_t code)
{
    if (!w->options.lowercase) {
        return emit(w, code);
    }
    if (code == 0x130) { /* capital i with a dot: the dot stays, as a mark of its own */
        TRY(emit(w, 'i'));
        return emit(w, 0x307);
    }
    uint32_t small = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    return emit(w, small != code || code < 0x1C89 ? small : new_lower(code));
}

static bool in_order(const struct mark *marks, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (marks[i - 1].order > marks[i].order) {
            return false;
        }
    }
    return true;
}

/* Canonical order: by class, within a class as they came. Not a sort by insertion, which a text of nothing
 * but marks would make quadratic. */
static status flush_marks(struct words *w)
{
    size_t count = w->mark_count;
    bool sorted = in_order(w->marks, count);
    w->mark_count = 0;
    for (size_t i = 0; sorted && i < count; i++) {
        TRY(lower(w, w->marks[i].code));
    }
    for (int order = 1; !sorted && order < 255; order++) {
        for (size_t i = 0; i < count; i++) {
            TRY(w->marks[i].order == order ? lower(w, w->marks[i].code) : STATUS_OK);
        }
    }
    return STATUS_OK;
}

static status keep_mark(struct words *w, uint32_t code, int order)
{
    if (w->mark_count == w->mark_room) {
        size_t room = w->mark_room * 2 + 64;
        struct mark *bigger = realloc(w->marks, room * sizeof *bigger);
        REQUIRE(bigger != NULL, STATUS_INTERNAL, "out of memory: %zu combining marks", room);
        w->marks = bigger;
        w->mark_room = room;
    }
    w->marks[w->mark_count++] = (struct mark){code, order};
    return STATUS_OK;
}

/* Marks that go do not take part in the order, but one of class 0 still separates those around it. */
static status strip(struct words *w, uint32_t code)
{
    int order = bert_order_of(code);
    bool goes = bert_class_of(code) == BERT_MARK;
    if (order == 0) {
        TRY(flush_marks(w));
        return goes ? STATUS_OK : lower(w, code);
    }
    return goes ? STATUS_OK : keep_mark(w, code, order);
}

/* Composed characters that came after the package's table of decompositions. */
static bool is_newly_composed(uint32_t code)
{
    return code == 0x11938 || (code >= 0x105C0 && code <= 0x105FF) ||
           (code >= 0x11380 && code <= 0x113FF) || (code >= 0x16100 && code <= 0x1613F) ||
           (code >= 0x16D40 && code <= 0x16D7F);
}

static status decompose(struct words *w, uint32_t code)
{
    if (!w->options.strip_accents) {
        return lower(w, code);
    }
    utf8proc_int32_t parts[DECOMPOSED_MOST];
    int boundary = 0;
    utf8proc_ssize_t count =
        is_newly_composed(code)
            ? 0
            : utf8proc_decompose_char((utf8proc_int32_t)code, parts, DECOMPOSED_MOST,
                                      UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1 || count > DECOMPOSED_MOST) {
        return strip(w, code);
    }
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        TRY(strip(w, (uint32_t)parts[i]));
    }
    return STATUS_OK;
}

/* The blocks that BERT calls Chinese. The sixth should begin with 2B820; the package, which decides here,
 * has 2B920. */
static bool is_chinese(uint32_t code)
{
    return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
           (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
           (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
           (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

static status add(struct words *w, uint32_t code)
{
    if (w->options.clean && (bert_class_of(code) == BERT_CONTROL || code == REPLACEMENT)) {
        return STATUS_OK;
    }
    if (!w->options.chinese || code < 0x3400 || !is_chinese(code)) {
        return decompose(w, code);
    }
    TRY(flush_marks(w));
    TRY(end_word(w));
    TRY(decompose(w, code));
    TRY(flush_marks(w));
    return end_word(w);
}

/* A byte of ASCII, with no mark waiting. */
static status add_ascii(struct words *w, unsigned char byte)
{
    enum bert_class kind = bert_class_of(byte);
    if (kind == BERT_LETTER) {
        TRY(reserve(w));
        bool capital = w->options.lowercase && byte >= 'A' && byte <= 'Z';
        w->word[w->bytes++] = (char)(capital ? byte + ('a' - 'A') : byte);
        w->characters++;
        return STATUS_OK;
    }
    return kind == BERT_CONTROL && w->options.clean ? STATUS_OK : emit(w, byte);
}

static status add_text(struct words *w, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        unsigned char byte = (unsigned char)text[at];
        if (byte < 0x80 && w->mark_count == 0) {
            TRY(add_ascii(w, byte));
            at++;
            continue;
        }
        uint32_t code = REPLACEMENT;
        size_t length = pretokenise_character(text + at, bytes - at, &code);
        TRY(add(w, length > 0 ? code : REPLACEMENT));
        at += length > 0 ? length : 1;
    }
    TRY(flush_marks(w));
    return end_word(w);
}

status bert_text_words(const struct bert_text_options *options, const char *text, size_t bytes,
                       bert_text_visit *visit, void *context)
{
    struct words w = {.options = *options, .visit = visit, .context = context};
    status result = add_text(&w, text, bytes);
    free(w.word);
    free(w.marks);
    return result;
}
