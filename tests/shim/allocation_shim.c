/* A library for LD_PRELOAD that lets one memory allocation fail. It counts the allocations of the
 * program, jansson and libyaml, or the allocations of HDF5. It does not count the allocations of
 * libc, libcrypto, oneDNN and Open MPI, because these libraries end the process, or crash, if
 * memory runs out.
 *
 *   ALLOCATION_IN     hdf5: count allocations of HDF5; unset: of the program
 *   ALLOCATION_AT     number of the allocation that returns NULL, from 1; unset: none
 *   ALLOCATION_RANK   only this rank (OMPI_COMM_WORLD_RANK); unset: all processes
 *   ALLOCATION_COUNT  file that receives the number of counted allocations at the end
 *   ALLOCATION_PLACES file that receives a line for each place of the program that allocates: the
 *                     number of its first allocation, and the calls that lead to it, from the
 *                     innermost, as decimal addresses that `nm -t d` names */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

enum { RANGES = 64, PLACES = 1 << 14, FRAMES = 24 };

static const char *const libraries[] = {"/libjansson", "/libyaml"};
static struct {
    uintptr_t first, end;
} ranges[RANGES];
static int range_count;
static uintptr_t program_base;
static _Atomic long allocations;
static long failing_allocation;
static FILE *places_file;
static _Atomic uint64_t places[PLACES]; /* hashes of the known places; 0: free */
static __thread bool is_logging;
static bool ready;

static bool is_counted_object(const char *name)
{
    if (getenv("ALLOCATION_IN") != NULL) {
        return strstr(name, "/libhdf5") != NULL;
    }
    bool counted = name[0] == '\0'; /* the program itself */
    for (int i = 0; i < COUNT(libraries); i++) {
        counted = counted || strstr(name, libraries[i]) != NULL;
    }
    return counted;
}

static int add_object(struct dl_phdr_info *object, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    program_base = object->dlpi_name[0] == '\0' ? object->dlpi_addr : program_base;
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
    const char *at = getenv("ALLOCATION_AT"), *rank = getenv("ALLOCATION_RANK");
    const char *own_rank = getenv("OMPI_COMM_WORLD_RANK"), *log = getenv("ALLOCATION_PLACES");
    if (rank != NULL && (own_rank == NULL || strcmp(rank, own_rank) != 0)) {
        return;
    }
    failing_allocation = at != NULL ? strtol(at, NULL, 10) : 0;
    dl_iterate_phdr(add_object, NULL);
    if (log != NULL) {
        void *unused[1];
        (void)backtrace(unused, 1); /* loads its library */
        places_file = fopen(log, "w");
    }
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

static bool is_counted(uintptr_t address)
{
    bool counted = false;
    for (int i = 0; i < range_count; i++) {
        counted = counted || (address >= ranges[i].first && address < ranges[i].end);
    }
    return counted;
}

/* Returns whether the table of places did not contain this hash. */
static bool add_place(uint64_t hash)
{
    for (uint64_t i = hash % PLACES;; i = (i + 1) % PLACES) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&places[i], &none, hash)) {
            return true;
        }
        if (none == hash) {
            return false;
        }
    }
}

/* Writes a line for the first allocation of a place. */
static void log_place(long number)
{
    void *frames[FRAMES];
    char line[FRAMES * 20];
    int used = snprintf(line, sizeof line, "%ld", number);
    uint64_t hash = 1;
    is_logging = true;
    int count = backtrace(frames, FRAMES);
    for (int i = 0; i < count; i++) {
        uintptr_t address = (uintptr_t)frames[i];
        if (address >= ranges[0].first && address < ranges[0].end) { /* of the program itself */
            hash = (hash ^ address) * 0x9e3779b97f4a7c15;
            used += snprintf(line + used, sizeof line - (size_t)used, " %zu",
                             (size_t)(address - program_base));
        }
    }
    if (add_place(hash | 1)) {
        fprintf(places_file, "%s\n", line);
        fflush(places_file);
    }
    is_logging = false;
}

static bool allocation_fails(const void *caller)
{
    if (!ready || is_logging || !is_counted((uintptr_t)caller)) {
        return false;
    }
    long number = ++allocations;
    if (places_file != NULL) {
        log_place(number);
    }
    if (number != failing_allocation) {
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

char *strndup(const char *text, size_t bytes)
{
    bytes = strnlen(text, bytes);
    char *copy = allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes + 1);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}
