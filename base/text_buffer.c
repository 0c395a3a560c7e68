#include "base/text_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

status text_buffer_grow(struct text_buffer *b, size_t more)
{
    size_t capacity = b->count + more + b->capacity / 2 + 64;
    TRY(GROW(b->bytes, capacity, "a text"));
    b->capacity = capacity;
    return STATUS_OK;
}

status text_buffer_append(struct text_buffer *b, const char *text, size_t bytes)
{
    TRY(text_buffer_reserve(b, bytes));
    if (bytes > 0) {
        memcpy(b->bytes + b->count, text, bytes);
        b->count += bytes;
    }
    return STATUS_OK;
}

status text_buffer_append_char(struct text_buffer *b, int32_t code)
{
    TRY(text_buffer_reserve(b, 4));
    b->count += utf8_write((uint32_t)code, b->bytes + b->count);
    return STATUS_OK;
}

status text_buffer_append_replaced(struct text_buffer *b, const char *text, size_t bytes,
                                   const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to), copied = 0, pos = 0;
    while (pos + from_bytes <= bytes) {
        const char *first = memchr(text + pos, from[0], bytes - pos - from_bytes + 1);
        if (first == NULL) {
            break;
        }
        pos = (size_t)(first - text);
        if (memcmp(first, from, from_bytes) != 0) {
            pos++;
            continue;
        }
        TRY(text_buffer_append(b, text + copied, pos - copied));
        TRY(text_buffer_append(b, to, to_bytes));
        pos += from_bytes;
        copied = pos;
    }
    return text_buffer_append(b, text + copied, bytes - copied);
}

void text_buffer_free(struct text_buffer *b)
{
    free(b->bytes);
    *b = (struct text_buffer){0};
}
