/* The tests of graphs use this small context and memory on the emulated GPU. */
#pragma once

#include "kernels/kernels.h"
#include "tests/check.h"

enum { ROWS = 8, WIDTH = 8, COUNT = ROWS * WIDTH };

/* Returns memory for COUNT floats on the GPU. */
static inline float *allocate_floats(struct device *gpu)
{
    void *memory = NULL;
    CHECK_OK(device_allocate(gpu, COUNT * sizeof(float), "a test", &memory));
    return memory;
}

static inline struct kernels *create_small_kernels(struct device *gpu, bool graphs)
{
    const struct kernels_limits limits = {.rows = ROWS,
                                          .width = WIDTH,
                                          .inner = WIDTH,
                                          .heads = 1,
                                          .head_width = WIDTH,
                                          .sequence = ROWS,
                                          .vocabulary = WIDTH,
                                          .training = true};
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(gpu, DTYPE_F32, 1, &limits, &k));
    kernels_graphs_enable(k, graphs);
    return k;
}
