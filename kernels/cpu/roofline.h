/* The time of the GEMMs of a step alone (kernels_roofline). */
#pragma once

#include "kernels/cpu/cpu.h"

/* roofline_measure - implement kernels_roofline on the CPU. */
__typeof__(kernels_roofline) roofline_measure;

/* roofline_destroy - release the operands that roofline_measure keeps in the context. */
void roofline_destroy(struct kernels *k);
