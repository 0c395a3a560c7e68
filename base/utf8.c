#include "base/utf8.h"

#include <stdbool.h>

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
        if ((c[i] & 0xc0) != 0x80) {
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
