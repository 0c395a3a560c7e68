/* Regular expressions from input files. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* pattern_matches - test whether a regular expression matches the whole text.
 *
 * The syntax is that of PCRE2, which is close to Python's.
 *
 * Errors    STATUS_DATA: the pattern does not compile (with the character's offset), or matching
 *           exceeds a limit */
status pattern_matches(const char *pattern, const char *text, bool *out);
