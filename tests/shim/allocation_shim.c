/* A library for LD_PRELOAD that lets one memory allocation fail. It counts the allocations of the
 * program, jansson and libyaml, or those of HDF5. Those of libc, libcrypto, oneDNN and Open MPI are
 * not counted, because these libraries end the process, or crash, if memory runs out.
 *
 *   ALLOCATION_IN     hdf5: count those of HDF5; unset: those of the program
 *   ALLOCATION_AT     number of the allocation that returns NULL, from 1; unset: none
 *   ALLOCATION_COUNT  file that receives the number of counted allocations at the end */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

enum { RANGES = 64 };

static const char *const libraries[] = {"/libjansson", "/libyaml"};
static struct {
    uintptr_t first, end;
} ranges[RANGES];
static int range_count;
static _Atomic long allocations;
static long failing_allocation;
static bool ready;

static bool is_counted_object(const char *name)
{
    if (getenv("ALLOCATION_IN") != NULL) {
        return strstr(name, "/libhdf5") != NULL;
    }
    bool counted = name[0] == '\0'; /* the program itself */
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
        counted = counted || strstr(name, libraries[i]) != NULL;
    }
    return counted;
}

static int add_object(struct dl_phdr_info *object, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    for (int i = 0; i < object->dlpi_phnum && is_counted_object(object->dlpi_name); i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0 && range_count < RANGES) {
            ranges[range_count].first = object->dlpi_addr + part->p_vaddr;
            ranges[range_count].end = ranges[range_count].first + part->p_memsz;
            range_count++;
        }
    }
    return 0;
}

__attribute__((constructor)) static void find_callers(void)
{
    const char *at = getenv("ALLOCATION_AT");
    failing_allocation = at != NULL ? strtol(at, NULL, 10) : 0;
    dl_iterate_phdr(add_object, NULL);
    ready = true;
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("ALLOCATION_COUNT");
    long count = allocations;
    ready = false;
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file != NULL) {
        fprintf(file, "%ld\n", count);
        fclose(file);
    }
}

static bool allocation_fails(const void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    bool counted = false;
    for (int i = 0; i < range_count && ready; i++) {
        counted = counted || (address >= ranges[i].first && address < ranges[i].end);
    }
    if (!counted || ++allocations != failing_allocation) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    *out = allocation_fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
    return *out != NULL ? 0 : ENOMEM;
}

char *strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}
