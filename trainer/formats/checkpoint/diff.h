/* Comparison of two checkpoints (`bireme checkpoint diff`). Memory use is constant. */
#pragma once

#include "base/status.h"

struct json_t;

/* checkpoint_diff - compare every tensor of two verified checkpoints; their layouts may differ.
 *
 * A tensor differs if it is missing in one checkpoint, if the shapes differ, or if its largest
 * |a - b| exceeds tolerance times its largest |a|. With tolerance 0 the bits must be equal.
 *
 * Memory    two blocks of 4 MiB. The caller releases *out with json_decref: {"a", "b", "equal",
 *           "tensors", "different": [{"family", "name", "reason" or "elements",
 *           "largest_difference", "relative"}]}
 * Errors    STATUS_CHECKPOINT if a checkpoint cannot be read; a difference is not an error */
status checkpoint_diff(const char *a, const char *b, double tolerance, struct json_t **out);
