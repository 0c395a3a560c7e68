/* Regular expressions that a file gives. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* pattern_matches - whether a pattern (PCRE2's, near enough to Python's) has the whole text.
 *
 * Errors    STATUS_DATA where it cannot be read, naming the character, or takes too long */
status pattern_matches(const char *pattern, const char *text, bool *out);
