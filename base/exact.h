/* Sums of doubles that do not depend on the order of the additions.
 *
 * The sum is a fixed-point number that keeps all bits of an addend from 2^-320 to 2^320. Its digits
 * have 40 bits. Each digit is stored in an int64_t, so that carries can be deferred. Partial sums
 * (over micro-batches, over ranks) therefore add up to the same bits for every partition.
 *
 * Source: the long accumulator of Kulisch. */
#pragma once

#include <stdint.h>

enum { EXACT_DIGIT_BITS = 40, EXACT_DIGITS = 17, EXACT_LOWEST = -320, EXACT_HIGHEST = 320 };

struct exact_sum {
    int64_t digits[EXACT_DIGITS];
    int64_t adds_since_carry; /* additions since the last exact_carry */
    double overflow; /* sum of NaN, infinities and addends >= 2^320; if not 0, the result */
};

/* exact_add - add x to the sum. Bits of x below 2^-320 are truncated. */
void exact_add(struct exact_sum *sum, double x);

/* exact_carry - propagate the carries. Every digit except the highest is then in [0, 2^40). */
void exact_carry(struct exact_sum *sum);

/* exact_value - return the sum as a double. Equal sums give equal results.
 *
 * Numerics  all bits except the last are exact */
double exact_value(const struct exact_sum *sum);
