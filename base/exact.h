/* Sums of doubles that do not depend on the order in which they are made.
 *
 * A fixed-point number that holds every bit of what is added: digits of 40 bits from 2^-320 up, each in an
 * int64_t, so that carries wait. Sums of sums (over micro-batches, over ranks) are then the same bits however
 * they are divided. (The idea is Kulisch's long accumulator.) */
#pragma once

#include <stdint.h>

enum { EXACT_DIGIT_BITS = 40, EXACT_DIGITS = 17, EXACT_LOWEST = -320, EXACT_HIGHEST = 320 };

struct exact_sum {
    int64_t digits[EXACT_DIGITS];
    int64_t added; /* since the carries were last passed on */
    double beyond; /* NaN, infinities, and what is 2^320 or more: the sum is this then */
};

/* exact_add - sum += x; bits of x below 2^-320 are cut off. */
void exact_add(struct exact_sum *sum, double x);

/* exact_carry - the same sum with every digit in [0, 2^40), but for the sign of the highest. */
void exact_carry(struct exact_sum *sum);

/* exact_value - the sum as a double, to its last bit but one; the same for equal sums. */
double exact_value(const struct exact_sum *sum);
