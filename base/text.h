/* Text from and for people: strict parsing of numbers, exact and scaled formatting of numbers, and
 * suggestions for misspelled words.
 *
 * strtol and strtod accept too much: they read "1e3" as 1, "010" as 8 and "nan" as a number. These
 * functions accept a text only if all of it is one finite decimal number within range. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_REASON_BYTES 160 /* size of a buffer for a reason */
#define TEXT_NUMBER_BYTES 32  /* size of a buffer for any number as text */
#define TEXT_NAME_BYTES 64    /* size of a buffer for a name in a list */
#define TEXT_LINE_COLUMNS 79  /* maximum length of a line about progress */

/* text_to_integer - parse a text that is one decimal integer: -?(0|[1-9][0-9]*).
 *
 * Returns   false with the reason in reason[TEXT_REASON_BYTES], for example
 *           "'1e3' is not a plain integer, write 1000" */
bool text_to_integer(const char *text, int64_t *out, char *reason);

/* text_to_number - parse a text that is one decimal number. Fraction and exponent are optional.
 *
 * Returns   false with the reason in reason[TEXT_REASON_BYTES]; also for NaN, infinity,
 *           overflow and underflow */
bool text_to_number(const char *text, double *out, char *reason);

/* text_plural - return the plural suffix of a counted noun: "" for 1, otherwise "s". */
static inline const char *text_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* text_append_item - append an item to a list in words, such as "a, b or c".
 *
 * last_word stands before the last item, here "or". A list that is too long is cut.
 *
 * Shapes    text [bytes], "" before the first item
 * Units     index is 0 to count - 1 */
void text_append_item(char *text, size_t bytes, const char *item, int index, int count,
                      const char *last_word);

/* text_is_space - return whether a byte is white space of JSON: a space, a tab, a carriage return
 * or a newline. */
static inline bool text_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* text_has_suffix - return whether a text ends with another one. */
bool text_has_suffix(const char *text, const char *suffix);

/* text_replace_controls - replace each control character by '?', except those in `kept`. Text from
 * a file could otherwise control the terminal. C1 controls of UTF-8 (U+0080 to U+009F) become "??".
 *
 * Memory    text is changed in place and keeps its length */
void text_replace_controls(char *text, const char *kept);

/* text_quote_name - write a name for a list: without control characters, and in single quotes if it
 * is empty or contains a space or list punctuation. The end of a long name is replaced by "...".
 *
 * Memory    out[TEXT_NAME_BYTES]
 * Returns   out */
char *text_quote_name(const char *name, char *out);

/* text_from_number - write the shortest text that parses to the same number. It always contains a
 * '.': "0.1", "0.0006", "1.0", "1.0e-08".
 *
 * Memory    out[TEXT_NUMBER_BYTES]
 * Returns   out */
char *text_from_number(double value, char *out);

/* text_scale_count - write a number for people, with three digits and a decimal unit: "950",
 * "17.1 k", "2.05 M", "8.03 G".
 *
 * Memory    out[TEXT_NUMBER_BYTES]
 * Returns   out */
char *text_scale_count(double value, char *out);

/* text_scale_bytes - write a number of bytes as text_scale_count does, with a binary unit: "950 B",
 * "1.50 KiB", "12.3 GiB". */
char *text_scale_bytes(double bytes, char *out);

/* text_scale_seconds - write a time as text_scale_count does: "41.3 us", "8.16 ms", "2.50 s",
 * "14.2 min", "3.20 h", "9.44 days". Minutes begin at 2 minutes, hours at 2 hours and days at 2
 * days. */
char *text_scale_seconds(double seconds, char *out);

/* text_from_metric - write a metric for people, with about four digits and its zeros: "1.0000",
 * "23.14", "402.4", "4208", "1.2e-05", "nan".
 *
 * Memory    out[TEXT_NUMBER_BYTES]
 * Returns   out */
char *text_from_metric(double value, char *out);

/* text_from_duration - write a time for people: "33 s", "12 min", "1.5 h", "2.3 days".
 *
 * Memory    out[TEXT_NUMBER_BYTES]
 * Returns   out */
char *text_from_duration(double seconds, char *out);

/* text_append_fitting - append a part to a line, unless the line would exceed TEXT_LINE_COLUMNS.
 *
 * Memory    line[TEXT_LINE_COLUMNS + 1] at least
 * Returns   whether the part was appended */
bool text_append_fitting(char *line, const char *part);

/* text_distance - return the number of characters to insert, delete, replace or swap with a
 * neighbor to turn a into b. Case is ignored, and '-' equals '_'. Returns 64 if a word has more
 * than 63 characters.
 *
 * Source    Damerau 1964; the restricted edit distance */
int text_distance(const char *a, const char *b);

/* text_nearest - return the index of the most similar word; -1 if no word is similar enough. */
int text_nearest(const char *word, const char *const *words, int count);
