#define _GNU_SOURCE
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 2 << 20, LINE_BYTES = 64 };

void *memory_allocate(size_t bytes)
{
    size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : LINE_BYTES;
    if (bytes > SIZE_MAX - alignment) {
        return NULL;
    }
    size_t whole = ((bytes == 0 ? 1 : bytes) + alignment - 1) / alignment * alignment;
    void *memory = aligned_alloc(alignment, whole);
    if (memory == NULL) {
        return NULL;
    }
    if (alignment == HUGE_PAGE_BYTES) {
        (void)madvise(memory, whole, MADV_HUGEPAGE); /* a hint: refused is fine */
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
        (void)madvise((void *)first, end - first, MADV_DONTNEED); /* a hint: refused is fine */
    }
}
