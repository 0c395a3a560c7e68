#include "datasets/text/bert_text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "base/text_buffer.h"
#include "base/utf8.h"
#include "datasets/text/pretokenizer.h"
#include "datasets/text/unicode_form.h"

#define REPLACEMENT 0xFFFDu
#define DECOMPOSED_MAX 32 /* the longest canonical decomposition has 4 code points */

/* A combining mark that waits to be sorted into canonical order. */
struct mark {
    uint32_t code;
    int order; /* canonical combining class, 1 .. 254 */
};

struct word_splitter {
    struct bert_text_options options;
    bert_text_visit *visit;
    void *context;
    struct text_buffer word;
    size_t characters; /* in the word */
    struct mark *marks;
    int64_t mark_count, mark_capacity;
};

static status end_word(struct word_splitter *w)
{
    if (w->characters == 0) {
        return STATUS_OK;
    }
    size_t bytes = w->word.count, characters = w->characters;
    w->word.count = w->characters = 0;
    return w->visit(w->context, w->word.bytes, bytes, characters);
}

static status append_char(struct word_splitter *w, uint32_t code)
{
    TRY(text_buffer_append_char(&w->word, (int32_t)code));
    w->characters++;
    return STATUS_OK;
}

/* Adds a normalized character to the current word, or ends the word. */
static status pretokenizer_char(struct word_splitter *w, uint32_t code)
{
    enum bert_class kind = bert_text_class(code);
    if (kind == BERT_BLANK || code == 0x0B || code == 0x0C || code == 0x85) {
        return end_word(
            w); /* the last three are control characters: they get here only without clean_text */
    }
    if (kind != BERT_PUNCTUATION) {
        return append_char(w, code);
    }
    TRY(end_word(w));
    TRY(append_char(w, code));
    return end_word(w);
}

static status lower_char(struct word_splitter *w, uint32_t code)
{
    if (!w->options.lowercase) {
        return pretokenizer_char(w, code);
    }
    if (code == 0x130) { /* capital i with a dot: the dot becomes a separate combining mark */
        TRY(pretokenizer_char(w, 'i'));
        return pretokenizer_char(w, 0x307);
    }
    return pretokenizer_char(w, unicode_form_lower_char(code));
}

static bool is_sorted(const struct mark *marks, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        if (marks[i - 1].order > marks[i].order) {
            return false;
        }
    }
    return true;
}

/* Emits the marks in canonical order: by combining class, stable within a class. An insertion sort
 * would take quadratic time for a text of marks alone. */
static status flush_marks(struct word_splitter *w)
{
    int64_t count = w->mark_count;
    bool sorted = is_sorted(w->marks, count);
    w->mark_count = 0;
    for (int64_t i = 0; sorted && i < count; i++) {
        TRY(lower_char(w, w->marks[i].code));
    }
    for (int order = 1; !sorted && order < 255; order++) {
        for (int64_t i = 0; i < count; i++) {
            TRY(w->marks[i].order == order ? lower_char(w, w->marks[i].code) : STATUS_OK);
        }
    }
    return STATUS_OK;
}

static status append_mark(struct word_splitter *w, uint32_t code, int order)
{
    TRY(RESERVE(w->marks, w->mark_capacity, w->mark_count + 1, "combining marks"));
    w->marks[w->mark_count++] = (struct mark){code, order};
    return STATUS_OK;
}

/* Removes nonspacing marks. A removed mark does not take part in the sort, but a mark of class 0
 * still separates the marks before and after it. */
static status strip_mark(struct word_splitter *w, uint32_t code)
{
    int order = bert_text_combining_class(code);
    bool removed = bert_text_class(code) == BERT_MARK;
    if (order == 0) {
        TRY(flush_marks(w));
        return removed ? STATUS_OK : lower_char(w, code);
    }
    return removed ? STATUS_OK : append_mark(w, code, order);
}

/* Returns whether the character is newer than the decomposition table of Hugging
 * Face `tokenizers`. */
static bool is_recently_composed(uint32_t code)
{
    return code == 0x11938 || (code >= 0x105C0 && code <= 0x105FF) ||
           (code >= 0x11380 && code <= 0x113FF) || (code >= 0x16100 && code <= 0x1613F) ||
           (code >= 0x16D40 && code <= 0x16D7F);
}

static status decompose_char(struct word_splitter *w, uint32_t code)
{
    if (!w->options.strip_accents) {
        return lower_char(w, code);
    }
    utf8proc_int32_t decomposed[DECOMPOSED_MAX];
    int boundary = 0;
    utf8proc_ssize_t count =
        is_recently_composed(code)
            ? 0
            : utf8proc_decompose_char((utf8proc_int32_t)code, decomposed, DECOMPOSED_MAX,
                                      UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1 || count > DECOMPOSED_MAX) {
        return strip_mark(w, code);
    }
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        TRY(strip_mark(w, (uint32_t)decomposed[i]));
    }
    return STATUS_OK;
}

/* Returns whether the character is in the blocks that BERT treats as Chinese. The sixth block
 * should begin at 2B820. Hugging Face `tokenizers` has 2B920, and this code follows it. */
static bool is_chinese(uint32_t code)
{
    return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
           (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
           (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
           (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

static status normalize_char(struct word_splitter *w, uint32_t code)
{
    if (w->options.clean_text && (bert_text_class(code) == BERT_CONTROL || code == REPLACEMENT)) {
        return STATUS_OK;
    }
    if (!w->options.handle_chinese_chars || code < 0x3400 || !is_chinese(code)) {
        return decompose_char(w, code);
    }
    TRY(flush_marks(w));
    TRY(end_word(w));
    TRY(decompose_char(w, code));
    TRY(flush_marks(w));
    return end_word(w);
}

/* Normalizes an ASCII byte while no mark is waiting. */
static status normalize_ascii(struct word_splitter *w, unsigned char byte)
{
    enum bert_class kind = bert_text_class(byte);
    if (kind == BERT_LETTER) {
        TRY(text_buffer_reserve(&w->word, 1));
        bool capital = w->options.lowercase && byte >= 'A' && byte <= 'Z';
        w->word.bytes[w->word.count++] = (char)(capital ? byte + ('a' - 'A') : byte);
        w->characters++;
        return STATUS_OK;
    }
    return kind == BERT_CONTROL && w->options.clean_text ? STATUS_OK : pretokenizer_char(w, byte);
}

static status normalize_text(struct word_splitter *w, const char *text, size_t bytes)
{
    for (size_t pos = 0; pos < bytes;) {
        unsigned char byte = (unsigned char)text[pos];
        if (byte < 0x80 && w->mark_count == 0) {
            TRY(normalize_ascii(w, byte));
            pos++;
            continue;
        }
        uint32_t code = REPLACEMENT;
        size_t length = utf8_read(text + pos, bytes - pos, &code);
        TRY(normalize_char(w, length > 0 ? code : REPLACEMENT));
        pos += length > 0 ? length : 1;
    }
    TRY(flush_marks(w));
    return end_word(w);
}

status bert_text_split_words(const struct bert_text_options *options, const char *text,
                             size_t bytes, bert_text_visit *visit, void *context)
{
    struct word_splitter w = {.options = *options, .visit = visit, .context = context};
    status result = normalize_text(&w, text, bytes);
    text_buffer_free(&w.word);
    free(w.marks);
    return result;
}
