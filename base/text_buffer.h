/* A growing text in one block of memory. Appending may move it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A zero-initialized buffer is empty. The text is not terminated with NUL. */
struct text_buffer {
    char *bytes;
    size_t count, capacity;
};

/* text_buffer_grow - reallocate the text with memory for more than `more` further bytes.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status text_buffer_grow(struct text_buffer *b, size_t more);

/* text_buffer_reserve - reallocate the text, unless it has memory for `more` further bytes.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
static inline status text_buffer_reserve(struct text_buffer *b, size_t more)
{
    return b->capacity - b->count >= more ? STATUS_OK : text_buffer_grow(b, more);
}

/* text_buffer_append - append bytes.
 *
 * Memory    text does not point into the buffer; it may be NULL if bytes is 0
 * Errors    STATUS_INTERNAL (out of memory) */
status text_buffer_append(struct text_buffer *b, const char *text, size_t bytes);

/* text_buffer_append_char - append a code point as UTF-8.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status text_buffer_append_char(struct text_buffer *b, int32_t code);

/* text_buffer_append_replaced - append a text with `to` in place of each `from`. `from` is
 * not empty.
 *
 * Memory    as for text_buffer_append
 * Errors    STATUS_INTERNAL (out of memory) */
status text_buffer_append_replaced(struct text_buffer *b, const char *text, size_t bytes,
                                   const char *from, const char *to);

/* text_buffer_free - free the text and make the buffer empty. */
void text_buffer_free(struct text_buffer *b);
