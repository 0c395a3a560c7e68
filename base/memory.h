/* Host memory: arrays that are counted, allocated and grown, and large blocks in huge pages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* COUNT - return the number of elements of an array, as int. The argument must not be a pointer. */
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ALLOCATE - allocate `count` zeroed elements for a pointer variable: TRY(ALLOCATE(ids, n, "ids")).
 *
 * Memory    the caller frees the pointer with free(); it is NULL after an error
 * Errors    as memory_allocate_array */
#define ALLOCATE(pointer, count, what)                                                             \
    memory_allocate_array(&(pointer), (size_t)(count), sizeof *(pointer), (what))

/* GROW - reallocate the array of a pointer variable to `capacity` elements. New elements are not
 * initialized: TRY(GROW(ids, 2 * n, "ids")).
 *
 * Memory    the pointer may be NULL before; after an error it is unchanged and still valid
 * Errors    as memory_grow */
#define GROW(pointer, capacity, what)                                                              \
    memory_grow(&(pointer), (size_t)(capacity), sizeof *(pointer), (what))

/* RESERVE - reallocate the array of a pointer variable, unless it has space for `needed` elements.
 * `capacity` is the int64_t variable with its size: TRY(RESERVE(ids, capacity, count + 1, "ids")).
 *
 * Memory    as in GROW; the capacity grows by half or more, so that n single additions cost O(n)
 * Errors    as memory_grow */
#define RESERVE(pointer, capacity, needed, what)                                                   \
    memory_reserve(&(pointer), &(capacity), (needed), sizeof *(pointer), (what))

/* memory_allocate_array - allocate an array filled with zeros; see ALLOCATE.
 *
 * Memory    pointer: address of the pointer variable; the caller frees the array with free()
 * Errors    STATUS_INTERNAL "out of memory for WHAT" */
status memory_allocate_array(void *pointer, size_t count, size_t element_bytes, const char *what);

/* memory_grow - reallocate an array to `capacity` elements; see GROW.
 *
 * Memory    pointer: address of the pointer variable; the caller frees the array with free()
 * Errors    STATUS_INTERNAL "out of memory for WHAT"; the array is then unchanged */
status memory_grow(void *pointer, size_t capacity, size_t element_bytes, const char *what);

/* memory_grow_capacity - reallocate an array to more than `needed` elements; see RESERVE. */
status memory_grow_capacity(void *pointer, int64_t *capacity, int64_t needed, size_t element_bytes,
                            const char *what);

/* memory_reserve - reallocate an array, unless it has space for `needed` elements; see RESERVE. */
static inline status memory_reserve(void *pointer, int64_t *capacity, int64_t needed,
                                    size_t element_bytes, const char *what)
{
    return needed <= *capacity
               ? STATUS_OK
               : memory_grow_capacity(pointer, capacity, needed, element_bytes, what);
}

/* memory_copy_text - copy a text; a missing text (NULL) gives NULL.
 *
 * Memory    the caller frees *out with free(); it is NULL after an error
 * Errors    STATUS_INTERNAL "out of memory for WHAT" */
status memory_copy_text(char **out, const char *text, const char *what);

/* memory_copy_bytes - copy the first bytes of a text, and append a NUL.
 *
 * Memory    the caller frees *out with free(); it is NULL after an error
 * Errors    STATUS_INTERNAL "out of memory for WHAT" */
status memory_copy_bytes(char **out, const char *text, size_t bytes, const char *what);

/* memory_allocate_aligned - allocate zeroed memory that is aligned to a cache line.
 *
 * Blocks of 2 MiB or more are aligned to a huge page, and the kernel is requested to use huge
 * pages. A GEMM or an optimizer step over hundreds of MiB then has fewer TLB misses.
 *
 * Memory    the caller frees it with free()
 * Returns   NULL if memory runs out */
void *memory_allocate_aligned(size_t bytes);

/* memory_forget - remove the whole pages of a block of shared memory from the resident set of this
 * process. Another process still uses the block. A later access maps the pages again. */
void memory_forget(void *memory, size_t bytes);
