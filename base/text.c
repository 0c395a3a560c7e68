#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

enum { WORD_MAX = 63 };

/* Format and arguments that quote at most 40 characters of a text. */
#define QUOTED "'%.40s%s'"
#define QUOTE(text) (text), strlen(text) > 40 ? "..." : ""

static size_t skip_digits(const char *text, size_t from)
{
    while (text[from] >= '0' && text[from] <= '9') {
        from++;
    }
    return from;
}

/* Returns whether the whole text has the form [-]digits[.digits][e[+-]digits], and sets *digits to
 * the length of its integer part. */
static bool is_number(const char *text, size_t *digits)
{
    size_t first = text[0] == '-' ? 1 : 0;
    size_t end = skip_digits(text, first);
    *digits = end - first;
    size_t fraction = 0;
    if (text[end] == '.') {
        size_t after = skip_digits(text, end + 1);
        fraction = after - end - 1;
        end = after;
    }
    if (*digits + fraction == 0) {
        return false;
    }
    if (text[end] == 'e' || text[end] == 'E') {
        size_t sign = end + 1 + (text[end + 1] == '+' || text[end + 1] == '-' ? 1 : 0);
        size_t after = skip_digits(text, sign);
        if (after == sign) {
            return false;
        }
        end = after;
    }
    return text[end] == '\0';
}

static bool has_leading_zero(const char *text, size_t digits)
{
    return digits > 1 && text[text[0] == '-' ? 1 : 0] == '0';
}

/* Writes the reason. It includes the correct spelling for 1e3, 1000.0, 010, 1_000, 1,000 and +5. */
static void explain_bad_integer(const char *text, char *reason)
{
    char plain[WORD_MAX + 1];
    size_t used = 0;
    bool separated = false;
    for (const char *c = text[0] == '+' ? text + 1 : text; *c != '\0' && used < WORD_MAX; c++) {
        if ((*c == '_' || *c == ',') && used > 0) {
            separated = true;
        } else {
            plain[used++] = *c;
        }
    }
    plain[used] = '\0';
    size_t digits;
    double value = is_number(plain, &digits) ? strtod(plain, NULL) : NAN;
    bool whole = fabs(value) < 9e15 && value == floor(value);
    if (whole && (!separated || strpbrk(plain, ".eE") == NULL)) {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " is not a plain integer, write %.0f",
                 QUOTE(text), value);
    } else {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " is not an integer", QUOTE(text));
    }
}

bool text_to_integer(const char *text, int64_t *out, char *reason)
{
    size_t first = text[0] == '-' ? 1 : 0;
    size_t end = skip_digits(text, first);
    if (end == first || text[end] != '\0' || has_leading_zero(text, end - first)) {
        explain_bad_integer(text, reason);
        return false;
    }
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0) {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " does not fit in 64 bits", QUOTE(text));
        return false;
    }
    *out = value;
    return true;
}

bool text_to_number(const char *text, double *out, char *reason)
{
    size_t digits;
    if (!is_number(text, &digits)) {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " is not a number", QUOTE(text));
        return false;
    }
    double value = strtod(text, NULL);
    if (has_leading_zero(text, digits)) {
        char plain[TEXT_NUMBER_BYTES];
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " begins with a zero, write %s", QUOTE(text),
                 text_from_number(value, plain));
        return false;
    }
    if (!isfinite(value)) {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " is too large for a number", QUOTE(text));
        return false;
    }
    size_t mantissa = strcspn(text, "eE");
    bool zero = strcspn(text, "123456789") >= mantissa;
    if (!zero && !(fabs(value) >= DBL_MIN)) {
        snprintf(reason, TEXT_REASON_BYTES, QUOTED " is too small for a number", QUOTE(text));
        return false;
    }
    *out = value;
    return true;
}

void text_append_item(char *text, size_t bytes, const char *item, int index, int count,
                      const char *last_word)
{
    size_t used = strlen(text);
    if (index > 0 && index + 1 == count) {
        snprintf(text + used, bytes - used, " %s %s", last_word, item);
    } else {
        snprintf(text + used, bytes - used, "%s%s", index > 0 ? ", " : "", item);
    }
}

bool text_has_suffix(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

void text_replace_controls(char *text, const char *kept)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        if ((*c < ' ' || *c == 0x7f) && strchr(kept, *c) == NULL) {
            *c = '?';
        } else if (*c == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) {
            c[0] = c[1] = '?';
        }
    }
}

char *text_quote_name(const char *name, char *out)
{
    enum { KEPT_BYTES = TEXT_NAME_BYTES - 6 }; /* two quotes, "..." and the final NUL */
    size_t bytes = strlen(name);
    bool is_long = bytes > KEPT_BYTES;
    const char *quote = bytes == 0 || strpbrk(name, " ,:;'") != NULL ? "'" : "";
    bytes = is_long ? KEPT_BYTES : bytes;
    while (is_long && utf8_is_continuation(name[bytes])) {
        bytes--; /* to the first byte of a character */
    }
    snprintf(out, TEXT_NAME_BYTES, "%s%.*s%s%s", quote, (int)bytes, name, is_long ? "..." : "",
             quote);
    text_replace_controls(out, "");
    return out;
}

char *text_from_number(double value, char *out)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, TEXT_NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) {
            break;
        }
    }
    size_t mantissa = strcspn(out, "e");
    bool plain = out[mantissa] == '\0';
    bool whole = memchr(out, '.', mantissa) == NULL && memchr(out, 'n', mantissa) == NULL;
    if (!plain && fabs(value) >= 1 && fabs(value) < 1e15) {
        snprintf(out, TEXT_NUMBER_BYTES, "%.1f", value);
    } else if (whole) { /* YAML 1.1 reads 1e-08 as a string; it requires the point */
        memmove(out + mantissa + 2, out + mantissa, strlen(out + mantissa) + 1);
        memcpy(out + mantissa, ".0", 2);
    }
    return out;
}

/* Writes a number with three digits and a unit; a number without a fraction stays whole. */
static char *write_scaled(double value, const char *unit, char *out)
{
    double size = fabs(value);
    bool whole = size == 0 || (size < 1000 && value == floor(value) && unit[0] == '\0');
    int digits = whole || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    snprintf(out, TEXT_NUMBER_BYTES, "%.*f%s", digits, value, unit);
    return out;
}

/* Divides a number until its size is below `limit`, and writes it with the reached unit. */
static char *scale_by(double value, double base, double limit, const char *const units[7],
                      char *out)
{
    int unit = 0;
    while (fabs(value) >= limit && unit < 6) {
        value /= base;
        unit++;
    }
    return write_scaled(value, units[unit], out);
}

char *text_scale_count(double value, char *out)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    return scale_by(value, 1000, 999.5, units, out);
}

char *text_scale_bytes(double bytes, char *out)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    if (fabs(bytes) < 1023.5) {
        snprintf(out, TEXT_NUMBER_BYTES, "%.0f B", bytes);
        return out;
    }
    return scale_by(bytes, 1024, 1023.5, units, out);
}

char *text_scale_seconds(double seconds, char *out)
{
    static const struct {
        double limit, size; /* both in seconds */
        const char *name;
    } units[] = {{0.9995e-3, 1e-6, " us"}, {0.9995, 1e-3, " ms"}, {120, 1, " s"},
                 {7200, 60, " min"},       {172800, 3600, " h"},  {INFINITY, 86400, " days"}};
    int unit = seconds == 0 ? 2 : 0;
    while (fabs(seconds) >= units[unit].limit && unit < 5) {
        unit++;
    }
    return write_scaled(seconds / units[unit].size, units[unit].name, out);
}

static char fold_char(char c)
{
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

char *text_from_metric(double value, char *out)
{
    double size = fabs(value);
    int decimals = size < 9.99995 ? 4 : size < 99.995 ? 2 : size < 999.95 ? 1 : 0;
    if (!isfinite(value) || size >= 1e6) {
        snprintf(out, TEXT_NUMBER_BYTES, "%.4g", value);
    } else if (size < 5e-4 && size > 0) {
        snprintf(out, TEXT_NUMBER_BYTES, "%.1e", value);
    } else {
        snprintf(out, TEXT_NUMBER_BYTES, "%.*f", decimals, value);
    }
    return out;
}

char *text_from_duration(double seconds, char *out)
{
    const char *unit = seconds < 90       ? "s"
                       : seconds < 5400   ? "min"
                       : seconds < 172800 ? "h"
                                          : "days";
    double divisor = seconds < 90 ? 1 : seconds < 5400 ? 60 : seconds < 172800 ? 3600 : 86400;
    snprintf(out, TEXT_NUMBER_BYTES, "%.*f %s", seconds < 5400 ? 0 : 1, seconds / divisor, unit);
    return out;
}

bool text_append_fitting(char *line, const char *part)
{
    size_t length = strlen(line), added = strlen(part);
    if (length + added > TEXT_LINE_COLUMNS) {
        return false;
    }
    memcpy(line + length, part, added + 1);
    return true;
}

int text_distance(const char *a, const char *b)
{
    size_t rows = strlen(a);
    size_t columns = strlen(b);
    if (rows > WORD_MAX || columns > WORD_MAX) {
        return WORD_MAX + 1;
    }
    int cost[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= rows; i++) {
        for (size_t j = 0; j <= columns; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = (int)(i + j);
                continue;
            }
            int change = fold_char(a[i - 1]) != fold_char(b[j - 1]);
            cost[i][j] = (int)number_min(cost[i - 1][j - 1] + change,
                                         number_min(cost[i - 1][j], cost[i][j - 1]) + 1);
            if (i > 1 && j > 1 && fold_char(a[i - 1]) == fold_char(b[j - 2]) &&
                fold_char(a[i - 2]) == fold_char(b[j - 1])) {
                cost[i][j] = (int)number_min(cost[i][j], cost[i - 2][j - 2] + 1);
            }
        }
    }
    return cost[rows][columns];
}

int text_nearest(const char *word, const char *const *words, int count)
{
    int best = -1;
    int best_distance = WORD_MAX + 1;
    for (int i = 0; i < count; i++) {
        int distance = text_distance(word, words[i]);
        if (distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    int length = (int)strlen(word);
    int limit = length <= 2 ? 1 : length <= 5 ? 2 : length / 3 + 1;
    bool close = best >= 0 && best_distance <= limit && best_distance < length;
    return close ? best : -1;
}
