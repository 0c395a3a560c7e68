/* An arena: one allocation that is divided into many arrays. Its size is computed in advance as the
 * worst case of one step.
 *
 * Taking memory from an arena never allocates. A step calls arena_mark, takes its arrays, and
 * releases them with arena_release. An arena created with 0 bytes only measures: arena_take returns
 * NULL and counts the bytes. Therefore the code that takes the arrays also computes their size. */
#pragma once

#include <stddef.h>

#include "base/device/device.h"
#include "base/status.h"
#include "base/tensor.h"

struct arena {
    struct device *device;
    const char *what; /* purpose of the memory, for error messages */
    char *memory;     /* NULL while measuring */
    size_t bytes;     /* size of memory */
    size_t used;
    size_t peak; /* largest value of used so far */
};

/* arena_create - allocate an arena of `bytes` bytes; 0 creates an arena that only measures.
 *
 * Memory    on dev; release it with arena_destroy
 * Errors    as device_allocate */
status arena_create(struct device *dev, size_t bytes, const char *what, struct arena *out);

/* arena_destroy - release the memory and set *arena to zeros. */
void arena_destroy(struct arena *arena);

/* arena_take - return the next `bytes` bytes in *out, aligned to 64. The contents are undefined.
 *
 * Errors    STATUS_INTERNAL if the arena is too small, because its size was computed wrongly */
status arena_take(struct arena *arena, size_t bytes, void **out);

/* arena_take_tensor - take the memory of a tensor with contiguous rows. Errors as in arena_take. */
status arena_take_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns,
                         struct tensor *out);

/* arena_mark - return the current position, for arena_release. */
size_t arena_mark(const struct arena *arena);

/* arena_release - release all memory taken since the mark. */
void arena_release(struct arena *arena, size_t mark);
