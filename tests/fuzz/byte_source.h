/* Takes values from the input of a fuzz target. After the end of the input all values are 0. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct byte_source {
    const uint8_t *data;
    size_t bytes;
};

/* byte_source_next - return the next byte. */
static inline uint8_t byte_source_next(struct byte_source *s)
{
    if (s->bytes == 0) {
        return 0;
    }
    s->bytes--;
    return *s->data++;
}

/* byte_source_value - return a small number, or a special one that is large or negative. */
static inline int64_t byte_source_value(struct byte_source *s)
{
    static const int64_t special[8] = {-1,        INT64_MIN,           INT64_MAX,  INT32_MAX,
                                       INT32_MIN, (int64_t)UINT32_MAX, UINT16_MAX, 1 << 30};
    uint8_t byte = byte_source_next(s);
    return byte < 0xf8 ? byte : special[byte - 0xf8];
}
