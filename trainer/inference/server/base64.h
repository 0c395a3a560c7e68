/* Base64 (RFC 4648, section 4), for embeddings. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* base64_encode - encode bytes as a string with padding.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL if memory is exhausted */
status base64_encode(const void *data, size_t bytes, char **out);
