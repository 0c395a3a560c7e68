#define _GNU_SOURCE
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 2 << 20, CACHE_LINE_BYTES = 64 };

status memory_allocate_array(void *pointer, size_t count, size_t element_bytes, const char *what)
{
    void *memory = NULL;
    if (count <= SIZE_MAX / element_bytes) {
        memory = calloc(count > 0 ? count : 1, element_bytes);
    }
    memcpy(pointer, &memory, sizeof memory);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for %s: %zu elements of %zu bytes",
            what, count, element_bytes);
    return STATUS_OK;
}

status memory_grow(void *pointer, size_t capacity, size_t element_bytes, const char *what)
{
    void *memory, *grown = NULL;
    memcpy(&memory, pointer, sizeof memory);
    if (capacity <= SIZE_MAX / element_bytes) {
        grown = realloc(memory, (capacity > 0 ? capacity : 1) * element_bytes);
    }
    REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory for %s: %zu elements of %zu bytes", what,
            capacity, element_bytes);
    memcpy(pointer, &grown, sizeof grown);
    return STATUS_OK;
}

status memory_grow_capacity(void *pointer, int64_t *capacity, int64_t needed, size_t element_bytes,
                            const char *what)
{
    int64_t larger = needed + *capacity / 2 + 16;
    TRY(memory_grow(pointer, (size_t)larger, element_bytes, what));
    *capacity = larger;
    return STATUS_OK;
}

status memory_copy_text(char **out, const char *text, const char *what)
{
    *out = NULL;
    return text != NULL ? memory_copy_bytes(out, text, strlen(text), what) : STATUS_OK;
}

status memory_copy_bytes(char **out, const char *text, size_t bytes, const char *what)
{
    *out = strndup(text, bytes);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for %s: %zu bytes", what, bytes);
    return STATUS_OK;
}

void *memory_allocate_aligned(size_t bytes)
{
    size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : CACHE_LINE_BYTES;
    if (bytes > SIZE_MAX - alignment) {
        return NULL;
    }
    size_t whole = ((bytes == 0 ? 1 : bytes) + alignment - 1) / alignment * alignment;
    void *memory = aligned_alloc(alignment, whole);
    if (memory == NULL) {
        return NULL;
    }
    if (alignment == HUGE_PAGE_BYTES) {
        (void)madvise(memory, whole, MADV_HUGEPAGE); /* a hint; failure is harmless */
    }
    memset(memory, 0, whole);
    return memory;
}

void memory_forget(void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (end > first) {
        (void)madvise((void *)first, end - first, MADV_DONTNEED); /* a hint; failure is harmless */
    }
}
