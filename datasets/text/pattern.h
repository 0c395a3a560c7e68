/* Regular expressions from input files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* pattern_matches - test whether a regular expression matches the whole text.
 *
 * The syntax follows PCRE2, which is close to Python's.
 *
 * Errors    STATUS_DATA: the pattern does not compile (with the character's offset), or matching
 *           exceeds a limit */
status pattern_matches(const char *pattern, const char *text, bool *out);

struct pattern;

/* pattern_open - compile a regular expression.
 *
 * Memory    the caller calls pattern_close
 * Errors    STATUS_DATA: it does not compile, with the character's offset */
status pattern_open(const char *text, struct pattern **out);

/* pattern_select - find a match as re.findall(pattern, text)[index] of Python does. The result is
 * the first group that is not empty, or the whole match if the pattern has no groups.
 *
 * Units     index: of the match; -1: the last one
 * Memory    *found points into text; it is NULL if there is no such match or all groups are empty
 * Errors    STATUS_DATA: matching exceeds a limit */
status pattern_select(const struct pattern *p, const char *text, size_t bytes, int64_t index,
                      const char **found, size_t *found_bytes);

/* pattern_remove - copy a text without all matches, as re.sub(pattern, "", text) of Python does.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_DATA: matching exceeds a limit; STATUS_INTERNAL (out of memory) */
status pattern_remove(const struct pattern *p, const char *text, size_t bytes, char **out,
                      size_t *out_bytes);

/* pattern_close - free a pattern and set *p to NULL; NULL is allowed. */
void pattern_close(struct pattern **p);
