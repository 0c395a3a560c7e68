/* The field `spikes` of a manifest: the state of spike detection and the skipped samples. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "trainer/formats/checkpoint/state.h"

/* manifest_spikes_to_json - make the field.
 *
 * Memory    the caller owns the result; NULL if memory runs out */
json_t *manifest_spikes_to_json(const struct checkpoint_spikes *spikes);

/* manifest_parse_spikes - read the field of a checkpoint of step `step`.
 *
 * Returns   false if a value is missing, has the wrong type or is out of range */
bool manifest_parse_spikes(json_t *field, int64_t step, struct checkpoint_spikes *out);
