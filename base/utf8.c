#include "base/utf8.h"

#include <string.h>

size_t utf8_read(const char *text, size_t bytes, uint32_t *code)
{
    const unsigned char *c = (const unsigned char *)text;
    if (bytes == 0) {
        return 0;
    }
    if (c[0] < 0x80) {
        *code = c[0];
        return 1;
    }
    size_t length = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || bytes < length) {
        return 0;
    }
    uint32_t value = c[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (!utf8_is_continuation(text[i])) {
            return 0;
        }
        value = value << 6 | (c[i] & 0x3fu);
    }
    bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
    if (overlong || (value >= 0xd800 && value < 0xe000) || value > 0x10ffff) {
        return 0;
    }
    *code = value;
    return length;
}

size_t utf8_character_bytes(const char *text, size_t bytes)
{
    unsigned char first = (unsigned char)text[0];
    size_t length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    return length < bytes ? length : bytes;
}

size_t utf8_write(uint32_t code, char text[4])
{
    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    text[0] = (char)((0xf00u >> length) | code);
    return length;
}

size_t utf8_find_valid_end(const char *text, size_t bytes, size_t pos)
{
    size_t length = 1;
    for (; pos < bytes && length > 0; pos += length) {
        uint64_t word; /* skips ASCII eight bytes at a time */
        uint32_t code;
        for (; pos + 8 <= bytes; pos += 8) {
            memcpy(&word, text + pos, 8);
            if ((word & 0x8080808080808080u) != 0) {
                break;
            }
        }
        length = utf8_read(text + pos, bytes - pos, &code);
    }
    return pos;
}

bool utf8_is_valid(const char *text, size_t bytes)
{
    return utf8_find_valid_end(text, bytes, 0) == bytes;
}

int64_t utf8_count_characters(const char *text, size_t bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        count += !utf8_is_continuation(text[i]);
    }
    return count;
}
