/* A text is cut into segments at which no normal form looks back: before an ASCII character, and
 * around bytes that are not UTF-8 and characters that are newer than the tables of the reference.
 * Most segments are ASCII or contain only characters that no form changes; they are copied. */
#include "datasets/text/unicode_form.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "base/utf8.h"

#define DECOMPOSED_MAX 32 /* the longest decomposition has 18 code points */

struct range {
    uint32_t first, last;
};

static bool is_in(const struct range *ranges, size_t count, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && code >= ranges[low].first;
}

/* Returns whether the character is newer than the normalization tables of Hugging Face
 * `tokenizers` and has a decomposition, a composition or a combining class since then. Also true
 * for U+11A7, which utf8proc removes after a Hangul syllable although it composes with nothing. */
static bool is_recent(uint32_t code)
{
    static const struct range recent[] = {
        {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
        {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},
        {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
        {0xA7F1, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105FF},
        {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27},
        {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50},
        {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113FF},
        {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
        {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
        {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
        {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F},
        {0x16FF0, 0x16FF1}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F},
        {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
        {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};
    return code >= 0x7FD && is_in(recent, COUNT(recent), code);
}

/* Returns whether no normal form changes the character and it combines with no character before
 * it. The ranges contain the letters of common scripts only. */
static bool is_inert(uint32_t code, bool compatibility)
{
    return (code < 0x300 && !compatibility) || (code >= 0x400 && code <= 0x482) ||
           (code >= 0x5D0 && code <= 0x5EA) || (code >= 0x620 && code <= 0x64A) ||
           (code >= 0x3041 && code <= 0x3096) || (code >= 0x30A1 && code <= 0x30FA) ||
           (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0xAC00 && code <= 0xD7A3);
}

/* ---- one segment ---- */

struct segment {
    utf8proc_int32_t *codes;
    int64_t count, capacity;
};

static status decompose_text(const char *text, size_t bytes, bool compatibility, struct segment *s)
{
    int boundary = 0;
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE;
    options |= compatibility ? UTF8PROC_COMPAT : 0;
    for (size_t pos = 0; pos < bytes;) {
        uint32_t code = 0;
        pos += utf8_read(text + pos, bytes - pos, &code);
        TRY(RESERVE(s->codes, s->capacity, s->count + DECOMPOSED_MAX, "characters"));
        utf8proc_ssize_t count = utf8proc_decompose_char(
            (utf8proc_int32_t)code, s->codes + s->count, DECOMPOSED_MAX, options, &boundary);
        if (count < 1 || count > DECOMPOSED_MAX) {
            s->codes[s->count] = (utf8proc_int32_t)code;
            count = 1;
        }
        s->count += count;
    }
    return STATUS_OK;
}

static int get_combining_class(utf8proc_int32_t code)
{
    return code < 0x300 ? 0 : utf8proc_get_property(code)->combining_class;
}

/* Sorts a run of marks by combining class. The sort is stable and takes linear time: the run may be
 * as long as the text. */
static status sort_run(utf8proc_int32_t *codes, int64_t count)
{
    int64_t starts[257] = {0};
    utf8proc_int32_t *sorted = NULL;
    TRY(ALLOCATE(sorted, count, "combining marks"));
    for (int64_t i = 0; i < count; i++) {
        starts[get_combining_class(codes[i]) + 1]++;
    }
    for (int i = 1; i < 257; i++) {
        starts[i] += starts[i - 1];
    }
    for (int64_t i = 0; i < count; i++) {
        sorted[starts[get_combining_class(codes[i])]++] = codes[i];
    }
    memcpy(codes, sorted, (size_t)count * sizeof *codes);
    free(sorted);
    return STATUS_OK;
}

/* Puts the marks after each character into canonical order. */
static status sort_marks(struct segment *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        int64_t begin = i;
        bool sorted = true;
        for (int last = 0; i < s->count; i++) {
            int order = get_combining_class(s->codes[i]);
            if (order == 0) {
                break;
            }
            sorted = sorted && order >= last;
            last = order;
        }
        TRY(sorted ? STATUS_OK : sort_run(s->codes + begin, i - begin));
    }
    return STATUS_OK;
}

static status append_segment(enum unicode_form form, const char *text, size_t bytes,
                             struct segment *s, struct text_buffer *out)
{
    s->count = 0;
    TRY(decompose_text(text, bytes, form == UNICODE_FORM_NFKC || form == UNICODE_FORM_NFKD, s));
    TRY(sort_marks(s));
    if (form == UNICODE_FORM_NFC || form == UNICODE_FORM_NFKC) {
        utf8proc_ssize_t count = utf8proc_normalize_utf32(s->codes, (utf8proc_ssize_t)s->count,
                                                          UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        REQUIRE(count >= 0, STATUS_INTERNAL, "utf8proc cannot compose a text: %s",
                utf8proc_errmsg(count));
        s->count = count;
    }
    for (int64_t i = 0; i < s->count; i++) {
        TRY(text_buffer_append_char(out, s->codes[i]));
    }
    return STATUS_OK;
}

/* ---- the text ---- */

static size_t skip_ascii(const char *text, size_t bytes, size_t pos)
{
    while (pos < bytes && (unsigned char)text[pos] < 0x80) {
        pos++;
    }
    return pos;
}

/* Returns the end of the segment that begins at text[pos], where an ASCII character may be the
 * first one. *inert is set if no form changes the segment. */
static size_t find_segment_end(const char *text, size_t bytes, size_t pos, bool compatibility,
                               bool *inert)
{
    *inert = true;
    pos += pos < bytes && (unsigned char)text[pos] < 0x80;
    while (pos < bytes && (unsigned char)text[pos] >= 0x80) {
        uint32_t code = 0;
        size_t length = utf8_read(text + pos, bytes - pos, &code);
        if (length == 0 || is_recent(code)) {
            break;
        }
        *inert = *inert && is_inert(code, compatibility);
        pos += length;
    }
    return pos;
}

static status apply_form(enum unicode_form form, const char *text, size_t bytes, struct segment *s,
                         struct text_buffer *out)
{
    bool compatibility = form == UNICODE_FORM_NFKC || form == UNICODE_FORM_NFKD;
    bool composed = form == UNICODE_FORM_NFC || form == UNICODE_FORM_NFKC;
    for (size_t pos = 0; pos < bytes;) {
        size_t ascii = skip_ascii(text, bytes, pos);
        size_t begin = ascii > pos && ascii < bytes ? ascii - 1 : ascii;
        bool inert = true;
        size_t end = find_segment_end(text, bytes, begin, compatibility, &inert);
        TRY(text_buffer_append(out, text + pos, begin - pos));
        TRY(inert && composed ? text_buffer_append(out, text + begin, end - begin)
                              : append_segment(form, text + begin, end - begin, s, out));
        uint32_t code;
        size_t length = end < bytes && (unsigned char)text[end] >= 0x80
                            ? utf8_read(text + end, bytes - end, &code)
                            : 0;
        bool kept = end < bytes && (unsigned char)text[end] >= 0x80; /* recent or not UTF-8 */
        length = kept && length == 0 ? 1 : length;
        TRY(text_buffer_append(out, text + end, length));
        pos = end + length;
    }
    return STATUS_OK;
}

status unicode_form_apply(enum unicode_form form, const char *text, size_t bytes,
                          struct text_buffer *out)
{
    struct segment s = {0};
    TRY(text_buffer_reserve(out, bytes));
    status result = apply_form(form, text, bytes, &s, out);
    free(s.codes);
    return result;
}

/* ---- characters ---- */

/* Returns the lower case of characters that the utf8proc of Debian 12 does not have. */
static uint32_t lower_recent(uint32_t code)
{
    static const struct {
        uint32_t first, last;
        int32_t offset;
    } recent[] = {{0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
                  {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
                  {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
                  {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
                  {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B}};
    for (int i = 0; i < COUNT(recent); i++) {
        if (code >= recent[i].first && code <= recent[i].last) {
            return (uint32_t)((int32_t)code + recent[i].offset);
        }
    }
    return code;
}

uint32_t unicode_form_lower_char(uint32_t code)
{
    uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    return lower != code || code < 0x1C89 ? lower : lower_recent(code);
}

bool unicode_form_is_white_space(uint32_t code)
{
    return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

status unicode_form_lower(const char *text, size_t bytes, struct text_buffer *out)
{
    TRY(text_buffer_reserve(out, bytes));
    for (size_t pos = 0; pos < bytes;) {
        uint32_t code = 0;
        size_t length = utf8_read(text + pos, bytes - pos, &code);
        if (length == 0) {
            TRY(text_buffer_append(out, text + pos, 1));
        } else if (code == 0x130) { /* capital i with a dot: the dot becomes a combining mark */
            TRY(text_buffer_append(out, "i\xcc\x87", 3));
        } else {
            TRY(text_buffer_append_char(out, (int32_t)unicode_form_lower_char(code)));
        }
        pos += length > 0 ? length : 1;
    }
    return STATUS_OK;
}

static bool is_mark(uint32_t code)
{
    static const struct range recent[] = {
        {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
        {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
        {0xCF3, 0xCF3},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},
        {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},
        {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
        {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
        {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
        {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9},
        {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x11380, 0x113FF},
        {0x1145E, 0x1145E}, {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938},
        {0x1193B, 0x1193E}, {0x11940, 0x11940}, {0x11942, 0x11943}, {0x119D1, 0x119D7},
        {0x119DA, 0x119E0}, {0x119E4, 0x119E4}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A39},
        {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99},
        {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45},
        {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97},
        {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A},
        {0x11F3E, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13440, 0x13440}, {0x13447, 0x13455},
        {0x16100, 0x1613F}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4},
        {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E08F, 0x1E08F},
        {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
        {0x1E5EE, 0x1E5EF}};
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    if (code == 0x1CF2 || code == 0x1CF3) { /* marks before Unicode 12 */
        return true;
    }
    return code >= 0x300 &&
           (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
            category == UTF8PROC_CATEGORY_ME) &&
           !is_in(recent, COUNT(recent), code);
}

status unicode_form_strip_accents(const char *text, size_t bytes, struct text_buffer *out)
{
    TRY(text_buffer_reserve(out, bytes));
    for (size_t pos = 0; pos < bytes;) {
        uint32_t code = 0;
        size_t length = utf8_read(text + pos, bytes - pos, &code);
        if (length == 0 || !is_mark(code)) {
            TRY(text_buffer_append(out, text + pos, length > 0 ? length : 1));
        }
        pos += length > 0 ? length : 1;
    }
    return STATUS_OK;
}
