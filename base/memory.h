/* Large memory of a process, in huge pages where the system gives them. */
#pragma once

#include <stddef.h>

/* memory_allocate - zeroed, on a cache line's boundary; from 2 MiB on a huge page's, with the kernel asked
 * for huge pages: a product's or the optimizer's pass over hundreds of MiB misses the address cache less.
 *
 * Memory    to be released by free
 * Errors    NULL if there is none */
void *memory_allocate(size_t bytes);
