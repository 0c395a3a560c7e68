/* The CUDA back-end in the emulator, as a context like any other: the tests of the operations run on it. */
#pragma once

#include "kernels/kernels.h"

/* simt_kernels_create - as kernels_create; dev is the CPU, whose memory the kernels work in. */
status simt_kernels_create(struct device *dev, enum dtype dtype,
                           const struct kernels_limits *limits, struct kernels **out);
