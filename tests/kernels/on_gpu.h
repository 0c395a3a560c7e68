/* Runs the unchanged tests of the operations on a real GPU. Host and GPU can both access the tests'
 * memory, heap and stack, and every operation waits until it has finished. */
#pragma once

#include <stdlib.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* on_gpu_device - return GPU 0. Without a GPU the program exits with CHECK_SKIPPED before main. */
struct device *on_gpu_device(void);

/* on_gpu_context - create a context whose operations have finished when they return. */
struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                               const struct kernels_limits *limits);

/* on_gpu_allocate, on_gpu_free - allocate memory that host and GPU can access. Freed memory is not
 * reused, because tests are short. */
void *on_gpu_allocate(size_t bytes);
void on_gpu_free(void *memory);

#ifdef __cplusplus
}
#else
/* The main function of each test becomes a function that runs on a stack in this memory. */
#define main ON_GPU_MAIN
#define malloc(bytes) on_gpu_allocate(bytes)
#define calloc(count, bytes) on_gpu_allocate((size_t)(count) * (bytes))
#define free(memory) on_gpu_free(memory)
#endif
