#include "datasets/text/precompiled.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/memory.h"
#include "base/utf8.h"

#define SHORT_GRAPHEME_BYTES 6 /* a shorter grapheme is looked up as a whole */

/* Combining marks that Unicode 15 to 17 added. The package has Unicode 17; older versions of
 * utf8proc do not have these characters. */
static const struct {
    uint32_t first, last;
} marks_since_14[] = {
    {0x897, 0x897},     {0xCF3, 0xCF3},     {0xECE, 0xECE},     {0x1ACF, 0x1ADD},
    {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D}, {0x10EFA, 0x10EFF}, {0x11241, 0x11241},
    {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA},
    {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11B60, 0x11B67},
    {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42},
    {0x11F5A, 0x11F5A}, {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611E, 0x1612F},
    {0x1E08F, 0x1E08F}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
    {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};
enum { MARKS = COUNT(marks_since_14) };

/* Returns the value of a base64 digit; -1: another character. */
static int read_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c == '\0' ? NULL : strchr(digits, c);
    return found == NULL ? -1 : (int)(found - digits);
}

/* Decodes base64 with padding. Returns false if the text is not valid. */
static bool decode_base64(const char *text, size_t bytes, uint8_t *out, size_t *out_bytes)
{
    uint32_t bits = 0;
    size_t padding = 0;
    *out_bytes = 0;
    while (padding < 2 && padding < bytes && text[bytes - 1 - padding] == '=') {
        padding++;
    }
    for (size_t i = 0; i < bytes - padding; i++) {
        int digit = read_digit(text[i]);
        if (digit < 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 > 0) {
            out[(*out_bytes)++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
        }
    }
    return bytes % 4 == 0;
}

status precompiled_open(const char *base64, size_t bytes, const char *path, struct charsmap **out)
{
    *out = NULL;
    uint8_t *data = NULL;
    struct charsmap *map = NULL;
    size_t size = 0;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(data, bytes + 1, "a character map"));
    TRY_GOTO(result, done, ALLOCATE(map, 1, "a character map"));
    REQUIRE_GOTO(result, done, decode_base64(base64, bytes, data, &size), STATUS_DATA,
                 "%s: normalizer.precompiled_charsmap is not base64", path);
    TRY_GOTO(result, done, charsmap_open(map, data, size, path));
    *out = map;
    map = NULL;
done:
    free(data);
    free(map);
    return result;
}

void precompiled_close(struct charsmap *map)
{
    if (map != NULL) {
        charsmap_close(map);
        free(map);
    }
}

/* Returns the character that stands for a character in the search for graphemes. */
static utf8proc_int32_t get_grapheme_code(uint32_t code)
{
    for (int i = 0; i < MARKS && code >= marks_since_14[i].first; i++) {
        if (code <= marks_since_14[i].last) {
            return 0x300; /* a mark of all versions */
        }
    }
    return (utf8proc_int32_t)code;
}

/* Returns the length of the grapheme at the beginning of a text. */
static size_t find_grapheme_end(const char *text, size_t bytes)
{
    uint32_t code = 0, next = 0;
    utf8proc_int32_t state = 0;
    size_t end = utf8_read(text, bytes, &code);
    for (size_t length; end > 0 && (length = utf8_read(text + end, bytes - end, &next)) > 0;) {
        if (utf8proc_grapheme_break_stateful(get_grapheme_code(code), get_grapheme_code(next),
                                             &state)) {
            break;
        }
        code = next;
        end += length;
    }
    return end > 0 ? end : 1;
}

/* Appends the replacement of a part; *found is set to whether the map has one. */
static status replace_part(const struct charsmap *map, const char *text, size_t bytes, bool *found,
                           struct text_buffer *out)
{
    struct charsmap_match match = charsmap_find_first(map, text, bytes);
    *found = match.bytes > 0;
    return *found ? text_buffer_append(out, match.replacement, strlen(match.replacement))
                  : STATUS_OK;
}

static status append_characters(const struct charsmap *map, const char *text, size_t bytes,
                                struct text_buffer *out)
{
    for (size_t pos = 0; pos < bytes;) {
        size_t length = utf8_character_bytes(text + pos, bytes - pos);
        bool found;
        TRY(replace_part(map, text + pos, length, &found, out));
        TRY(found ? STATUS_OK : text_buffer_append(out, text + pos, length));
        pos += length;
    }
    return STATUS_OK;
}

status precompiled_run(const struct charsmap *map, const char *text, size_t bytes,
                       struct text_buffer *out)
{
    for (size_t pos = 0; pos < bytes;) {
        size_t length = find_grapheme_end(text + pos, bytes - pos);
        bool found = false;
        if (length < SHORT_GRAPHEME_BYTES) {
            TRY(replace_part(map, text + pos, length, &found, out));
        }
        TRY(found ? STATUS_OK : append_characters(map, text + pos, length, out));
        pos += length;
    }
    return STATUS_OK;
}
