#include "datasets/text/word_split.h"

#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "base/utf8.h"

struct run {
    const struct word_split *split;
    bool continued;
    word_split_visit *visit;
    void *context;
};

/* Returns whether the character is a number of Unicode 17 (categories Nd, Nl, No), with any version
 * of utf8proc. */
static bool is_number(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } recent[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11DE0, 0x11DE9},
                  {0x11F50, 0x11F59}, {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x16FF4, 0x16FF6},
                  {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA}};
    if (code < 0x80) {
        return code >= '0' && code <= '9';
    }
    for (int i = 0; i < COUNT(recent) && code >= recent[0].first; i++) {
        if (code >= recent[i].first && code <= recent[i].last) {
            return true;
        }
    }
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

static status split_from(const struct run *r, int step, const char *text, size_t bytes,
                         size_t offset, bool at_start);

/* Passes text[begin, end) to the next step, unless it is empty. */
static status pass_word(const struct run *r, int step, const char *text, size_t begin, size_t end,
                        size_t offset, bool at_start)
{
    return begin == end ? STATUS_OK
                        : split_from(r, step + 1, text + begin, end - begin, offset + begin,
                                     at_start && begin == 0);
}

/* Returns the length of the character at text[pos], at least 1, and whether it is a number or, with
 * blanks, white space. */
static size_t classify_char(const char *text, size_t bytes, size_t pos, bool blanks, bool *matches)
{
    uint32_t code = 0;
    size_t length = utf8_read(text + pos, bytes - pos, &code);
    *matches = length > 0 && (blanks ? unicode_form_is_white_space(code) : is_number(code));
    return length > 0 ? length : 1;
}

static status split_digits(const struct run *r, int step, const char *text, size_t bytes,
                           size_t offset, bool at_start)
{
    bool each = r->split->steps[step].kind == WORD_SPLIT_EACH_DIGIT, in_digits = false;
    size_t begin = 0;
    for (size_t pos = 0; pos < bytes;) {
        bool digit;
        size_t length = classify_char(text, bytes, pos, false, &digit);
        if (digit != in_digits || (digit && each)) {
            TRY(pass_word(r, step, text, begin, pos, offset, at_start));
            begin = pos;
            in_digits = digit;
        }
        pos += length;
    }
    return pass_word(r, step, text, begin, bytes, offset, at_start);
}

static status split_white_space(const struct run *r, int step, const char *text, size_t bytes,
                                size_t offset, bool at_start)
{
    size_t begin = 0;
    for (size_t pos = 0; pos < bytes;) {
        bool blank;
        size_t length = classify_char(text, bytes, pos, true, &blank);
        if (blank) {
            TRY(pass_word(r, step, text, begin, pos, offset, at_start));
            begin = pos + length;
        }
        pos += length;
    }
    return pass_word(r, step, text, begin, bytes, offset, at_start);
}

static status split_after(const struct run *r, int step, const char *text, size_t bytes,
                          size_t offset, bool at_start)
{
    const char *wanted = r->split->steps[step].text;
    size_t begin = 0, length = strlen(wanted);
    for (size_t pos = 0; pos + length <= bytes;) {
        if (memcmp(text + pos, wanted, length) != 0) {
            pos++;
            continue;
        }
        pos += length;
        TRY(pass_word(r, step, text, begin, pos, offset, at_start));
        begin = pos;
    }
    return pass_word(r, step, text, begin, bytes, offset, at_start);
}

/* Appends the text with Metaspace's character for each space, and before the text if necessary. */
static status replace_spaces(const struct run *r, const struct word_split_step *s, const char *text,
                             size_t bytes, bool at_start, struct text_buffer *out)
{
    size_t length = strlen(s->text);
    bool begins =
        bytes > 0 && (text[0] == ' ' || (bytes >= length && memcmp(text, s->text, length) == 0));
    bool wanted = s->prepend == WORD_SPLIT_ALWAYS || (s->prepend == WORD_SPLIT_FIRST && at_start);
    TRY(text_buffer_reserve(out, bytes + bytes / 2 + length));
    if (wanted && !begins && bytes > 0 && !(r->continued && at_start)) {
        TRY(text_buffer_append(out, s->text, length));
    }
    for (size_t pos = 0; pos < bytes;) {
        size_t begin = pos;
        const char *space = memchr(text + pos, ' ', bytes - pos);
        pos = space == NULL ? bytes : (size_t)(space - text);
        TRY(text_buffer_append(out, text + begin, pos - begin));
        if (pos < bytes) {
            TRY(text_buffer_append(out, s->text, length));
            pos++;
        }
    }
    return STATUS_OK;
}

static status split_before(const struct run *r, int step, const struct text_buffer *b,
                           size_t offset, bool at_start)
{
    const char *wanted = r->split->steps[step].text;
    size_t begin = 0, length = strlen(wanted);
    for (size_t pos = 1; pos + length <= b->count; pos++) {
        if (memcmp(b->bytes + pos, wanted, length) == 0) {
            TRY(pass_word(r, step, b->bytes, begin, pos, offset, at_start));
            begin = pos;
        }
    }
    return pass_word(r, step, b->bytes, begin, b->count, offset, at_start);
}

static status split_metaspace(const struct run *r, int step, const char *text, size_t bytes,
                              size_t offset, bool at_start)
{
    const struct word_split_step *s = &r->split->steps[step];
    struct text_buffer b = {0};
    status result = replace_spaces(r, s, text, bytes, at_start, &b);
    if (result == STATUS_OK) {
        result = s->kind == WORD_SPLIT_METASPACES
                     ? split_before(r, step, &b, offset, at_start)
                     : pass_word(r, step, b.bytes, 0, b.count, offset, at_start);
    }
    text_buffer_free(&b);
    return result;
}

static status split_from(const struct run *r, int step, const char *text, size_t bytes,
                         size_t offset, bool at_start)
{
    if (step == r->split->count) {
        return r->visit(r->context, text, bytes, offset);
    }
    switch (r->split->steps[step].kind) {
    case WORD_SPLIT_DIGITS:
    case WORD_SPLIT_EACH_DIGIT:
        return split_digits(r, step, text, bytes, offset, at_start);
    case WORD_SPLIT_WHITE_SPACE:
        return split_white_space(r, step, text, bytes, offset, at_start);
    case WORD_SPLIT_AFTER_TEXT:
        return split_after(r, step, text, bytes, offset, at_start);
    case WORD_SPLIT_METASPACE:
    case WORD_SPLIT_METASPACES:
        break;
    }
    return split_metaspace(r, step, text, bytes, offset, at_start);
}

status word_split_run(const struct word_split *split, const char *text, size_t bytes, bool at_start,
                      bool continued, word_split_visit *visit, void *context)
{
    struct run r = {.split = split, .continued = continued, .visit = visit, .context = context};
    return bytes == 0 ? STATUS_OK : split_from(&r, 0, text, bytes, 0, at_start);
}
