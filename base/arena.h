/* One allocation, many views: the working memory of a room, sized once from a computed worst case.
 *
 * Taking from an arena never allocates; a step marks the arena, takes, and releases to the mark. An
 * arena of zero bytes only measures: it hands out NULL and counts, so that the same code that takes
 * the views also computes how much is needed. */
#pragma once

#include <stddef.h>

#include "base/device.h"
#include "base/status.h"

struct arena {
    struct device *device;
    const char *what; /* named in error messages */
    char *memory;     /* NULL while measuring */
    size_t bytes;
    size_t used;
    size_t peak;
};

/* arena_create - allocate; bytes = 0 makes an arena that only measures. */
status arena_create(struct device *dev, size_t bytes, const char *what, struct arena *out);
void arena_destroy(struct arena *arena);

/* arena_take - the next `bytes`, aligned to 64. Contents are whatever was there.
 *
 * Errors    STATUS_INTERNAL if the arena is too small: its computed size was wrong */
status arena_take(struct arena *arena, size_t bytes, void **out);

/* arena_mark, arena_release - forget everything taken since the mark. */
size_t arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, size_t mark);
