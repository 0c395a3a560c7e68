/* The check of a model's outputs. Damaged weights must not lead to a result. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* finite_outputs_check - check that all outputs are finite.
 *
 * Errors    STATUS_NOT_FINITE */
status finite_outputs_check(const float *outputs, int64_t count);
