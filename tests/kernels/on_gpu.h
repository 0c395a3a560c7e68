/* Runs the unchanged tests of the operations on a real GPU. The operands of a test are in host
 * memory. Each operation runs on copies in plain device memory (operand_copies.h), and its results
 * are in host memory when it returns. */
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* on_gpu_device - return GPU 0. Without a GPU the program is skipped before the test starts. */
struct device *on_gpu_device(void);

/* on_gpu_context - create a context for operands in host memory.
 *
 * Memory    a collective argument (struct vocabulary_shard) gets host memory too
 * Order     each operation has finished when it returns */
struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                               const struct kernels_limits *limits);

#ifdef __cplusplus
}
#else
#define main ON_GPU_MAIN /* the name of each test's main function */
#endif
