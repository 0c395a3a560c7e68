#include "base/device/arena.h"
#include "base/number.h"

enum { ARENA_ALIGNMENT = 64 };

status arena_create(struct device *dev, size_t bytes, const char *what, struct arena *out)
{
    *out = (struct arena){.device = dev, .what = what, .bytes = bytes};
    if (bytes > 0) {
        TRY(device_allocate(dev, bytes, what, (void **)&out->memory));
    }
    return STATUS_OK;
}

void arena_destroy(struct arena *arena)
{
    if (arena->device != NULL) {
        device_release(arena->device, arena->memory, arena->bytes);
    }
    *arena = (struct arena){0};
}

status arena_take(struct arena *arena, size_t bytes, void **out)
{
    size_t size = (size_t)number_round_up((int64_t)bytes, ARENA_ALIGNMENT);
    *out = NULL;
    if (arena->memory != NULL) {
        REQUIRE(size <= arena->bytes - arena->used, STATUS_INTERNAL,
                "the arena for %s has %zu of %zu bytes left, but %zu are required", arena->what,
                arena->bytes - arena->used, arena->bytes, size);
        *out = arena->memory + arena->used;
    }
    arena->used += size;
    if (arena->used > arena->peak) {
        arena->peak = arena->used;
    }
    return STATUS_OK;
}

status arena_take_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns,
                         struct tensor *out)
{
    struct tensor t = tensor_view(NULL, dtype, rows, columns);
    TRY(arena_take(arena, tensor_bytes(t), &t.data));
    *out = t;
    return STATUS_OK;
}

size_t arena_mark(const struct arena *arena)
{
    return arena->used;
}

void arena_release(struct arena *arena, size_t mark)
{
    arena->used = mark;
}
