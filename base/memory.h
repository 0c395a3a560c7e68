/* Large memory of a process, in huge pages where the system gives them. */
#pragma once

#include <stddef.h>

/* memory_allocate - zeroed, on a cache line's boundary; from 2 MiB on a huge page's, with the kernel asked
 * for huge pages: a product's or the optimizer's pass over hundreds of MiB misses the address cache less.
 *
 * Memory    to be released by free
 * Errors    NULL if there is none */
void *memory_allocate(size_t bytes);

/* memory_forget - whole pages of memory shared with another process, which has them in use, leave this one's count;
 * touched again, they are back. */
void memory_forget(void *memory, size_t bytes);
