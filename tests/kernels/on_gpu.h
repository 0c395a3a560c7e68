/* The tests of the operations on a real GPU: the operations' tests as they are, whose memory (heap and stack)
 * both the host and the GPU can reach, and whose calls wait. */
#pragma once

#include <stdlib.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* on_gpu_device - GPU 0. A program without one has ended with CHECK_SKIPPED before its main. */
struct device *on_gpu_device(void);

/* on_gpu_context - a context whose operations have finished when they return. */
struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                               const struct kernels_limits *limits);

/* Memory of both. What was freed is not used again: tests are short. */
void *on_gpu_allocate(size_t bytes);
void on_gpu_free(void *memory);

#ifdef __cplusplus
}
#else
/* Each test's own main becomes a function that runs on such a stack. */
#define main ON_GPU_MAIN
#define malloc(bytes) on_gpu_allocate(bytes)
#define calloc(count, bytes) on_gpu_allocate((size_t)(count) * (bytes))
#define free(memory) on_gpu_free(memory)
#endif
