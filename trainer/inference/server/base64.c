#include "trainer/inference/server/base64.h"

#include <stdint.h>

#include "base/memory.h"

status base64_encode(const void *data, size_t bytes, char **out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = data;
    char *to = NULL;
    TRY(ALLOCATE(to, (bytes + 2) / 3 * 4 + 1, "base64"));
    *out = to;
    for (size_t i = 0; i < bytes; i += 3, to += 4) {
        size_t left = bytes - i;
        uint32_t group = (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                         (left > 2 ? from[i + 2] : 0);
        to[0] = digits[group >> 18];
        to[1] = digits[group >> 12 & 63];
        to[2] = '=';
        to[3] = '=';
        if (left > 1) {
            to[2] = digits[group >> 6 & 63];
        }
        if (left > 2) {
            to[3] = digits[group & 63];
        }
    }
    *to = '\0';
    return STATUS_OK;
}
