#include "base/exact.h"

#include <math.h>
#include <stdbool.h>

#define DIGIT (INT64_C(1) << EXACT_DIGIT_BITS)
#define MANTISSA_BITS 53
#define ADDS_MAX (INT64_C(1) << 20) /* a digit overflows only after eight times as many */

void exact_carry(struct exact_sum *sum)
{
    for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
        int64_t carry = sum->digits[i] / DIGIT - (sum->digits[i] % DIGIT < 0);
        sum->digits[i] -= carry * DIGIT;
        sum->digits[i + 1] += carry;
    }
    sum->adds_since_carry = 0;
}

void exact_add(struct exact_sum *sum, double x)
{
    if (!(fabs(x) < ldexp(1, EXACT_HIGHEST))) {
        sum->overflow += isnan(x) ? x : copysign(INFINITY, x);
        return;
    }
    int exponent = 0;
    int64_t sign = x < 0 ? -1 : 1;
    int64_t bits = (int64_t)ldexp(frexp(fabs(x), &exponent), MANTISSA_BITS);
    int position = exponent - MANTISSA_BITS - EXACT_LOWEST;
    if (position < 0) {
        bits = position > -MANTISSA_BITS ? bits >> -position : 0;
        position = 0;
    }
    int digit = position / EXACT_DIGIT_BITS, shift = position % EXACT_DIGIT_BITS;
    int64_t low = bits & ((DIGIT >> shift) - 1);
    bits >>= EXACT_DIGIT_BITS - shift;
    sum->digits[digit] += sign * (low << shift);
    sum->digits[digit + 1] += sign * (bits % DIGIT);
    if (bits >= DIGIT) {
        sum->digits[digit + 2] += sign * (bits / DIGIT);
    }
    if (++sum->adds_since_carry >= ADDS_MAX) {
        exact_carry(sum);
    }
}

double exact_value(const struct exact_sum *sum)
{
    struct exact_sum s = *sum;
    if (s.overflow != 0) {
        return s.overflow;
    }
    exact_carry(&s);
    bool negative = s.digits[EXACT_DIGITS - 1] < 0;
    for (int i = 0; i < EXACT_DIGITS && negative; i++) {
        s.digits[i] = -s.digits[i];
    }
    exact_carry(&s);
    int top = EXACT_DIGITS - 1;
    while (top > 2 && s.digits[top] == 0) {
        top--;
    }
    double value = 0;
    for (int i = top - 2; i <= top; i++) { /* two digits contain every bit of a double */
        value += ldexp((double)s.digits[i], i * EXACT_DIGIT_BITS + EXACT_LOWEST);
    }
    return negative ? -value : value;
}
