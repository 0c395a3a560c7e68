/* The CUDA back-end in the emulator, as a context of kernels.h, for the tests of the operations. */
#pragma once

#include "kernels/kernels.h"

/* simt_kernels_create - like kernels_create; dev is the CPU, and the kernels work in its memory. */
status simt_kernels_create(struct device *dev, enum dtype dtype,
                           const struct kernels_limits *limits, struct kernels **out);
