/* Runs the unchanged tests of the operations on a real GPU. Heap and stack of a test are in memory
 * that host and GPU can access, and each operation has finished when it returns. */
#pragma once

#include <stdlib.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* on_gpu_device - return GPU 0. Without a GPU the program is skipped before the test starts. */
struct device *on_gpu_device(void);

/* on_gpu_context - create a context in which each operation has finished when it returns. */
struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                               const struct kernels_limits *limits);

/* on_gpu_allocate - allocate zeroed memory that host and GPU can access. */
void *on_gpu_allocate(size_t bytes);

/* on_gpu_free - free memory. Memory of on_gpu_allocate is not reused, because tests are short. */
void on_gpu_free(void *memory);

#ifdef __cplusplus
}
#else
/* The main function of each test becomes ON_GPU_MAIN, which runs on a stack in this memory. */
#define main ON_GPU_MAIN
#define malloc(bytes) on_gpu_allocate(bytes)
#define calloc(count, bytes) on_gpu_allocate((size_t)(count) * (bytes))
#define free(memory) on_gpu_free(memory)
#endif
