/* A binary heap in an array: the item that comes first is items[0]. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns whether item a comes before item b. */
typedef bool (*heap_order)(const void *a, const void *b);

/* heap_push - add an item.
 *
 * Both functions are inlined, so that the calls of `is_before` are too.
 *
 * Memory    items has room for count + 1 items of item_bytes bytes */
static inline __attribute__((always_inline)) void
heap_push(void *items, int64_t count, const void *item, size_t item_bytes, heap_order is_before)
{
    char *heap = items;
    int64_t pos = count;
    while (pos > 0 && is_before(item, heap + (size_t)((pos - 1) / 2) * item_bytes)) {
        memcpy(heap + (size_t)pos * item_bytes, heap + (size_t)((pos - 1) / 2) * item_bytes,
               item_bytes);
        pos = (pos - 1) / 2;
    }
    memcpy(heap + (size_t)pos * item_bytes, item, item_bytes);
}

/* heap_pop - remove the first item.
 *
 * Units     count > 0: the number of items before the call
 * Memory    first[item_bytes] receives the item; it must not be in items */
static inline __attribute__((always_inline)) void heap_pop(void *items, int64_t count, void *first,
                                                           size_t item_bytes, heap_order is_before)
{
    char *heap = items;
    const char *last = heap + (size_t)(count - 1) * item_bytes;
    int64_t pos = 0;
    memcpy(first, heap, item_bytes);
    for (int64_t child = 1; child < count - 1; child = 2 * pos + 1) {
        const char *next = heap + (size_t)child * item_bytes;
        if (child + 1 < count - 1 && is_before(next + item_bytes, next)) {
            next += item_bytes;
            child++;
        }
        if (!is_before(next, last)) {
            break;
        }
        memcpy(heap + (size_t)pos * item_bytes, next, item_bytes);
        pos = child;
    }
    memmove(heap + (size_t)pos * item_bytes, last, item_bytes);
}
