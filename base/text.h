/* Words and numbers as people write them: strict reading, exact writing, and the word that was meant.
 *
 * strtol and strtod alone take "1e3" for 1, "010" for 8 and "nan" for a number; here a text is a number
 * only if all of it is one, in decimal, finite and in range. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_REASON_BYTES 160 /* room for a reason */
#define TEXT_NUMBER_BYTES 32  /* room for any number as text */

/* text_to_integer - the whole text is one decimal integer: -?(0|[1-9][0-9]*).
 *
 * Errors    false, and why ("'1e3' is not an integer, write 1000") in reason[TEXT_REASON_BYTES] */
bool text_to_integer(const char *text, int64_t *out, char *reason);

/* text_to_number - the whole text is one decimal number, with a fraction and an exponent or without.
 *
 * Errors    false, and why in reason[TEXT_REASON_BYTES]; NaN, infinity, overflow and underflow too */
bool text_to_number(const char *text, double *out, char *reason);

/* text_plural - what follows a word that is counted: "" for one, "s" else. */
static inline const char *text_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* text_from_number - the shortest text that reads back as the same number, always with a '.':
 * "0.1", "0.0006", "1.0", "1.0e-08".
 *
 * Memory    out[TEXT_NUMBER_BYTES]; returns out */
char *text_from_number(double value, char *out);

/* text_distance - how many letters have to be inserted, removed, changed or swapped with their
 * neighbour to make b of a; case does not count, and '-' equals '_'. Words over 63 letters: 64.
 *
 * Source    Damerau 1964; the restricted edit distance */
int text_distance(const char *a, const char *b);

/* text_nearest - index of the word that was probably meant, -1 where none is close. */
int text_nearest(const char *word, const char *const *words, int count);
