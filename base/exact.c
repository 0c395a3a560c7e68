#include "base/exact.h"

#include <math.h>
#include <stdbool.h>

#define DIGIT (INT64_C(1) << EXACT_DIGIT_BITS)
#define MANTISSA_BITS 53
#define ADDED_MOST (INT64_C(1) << 20) /* a digit has room for eight times as many */

void exact_carry(struct exact_sum *sum)
{
    for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
        int64_t carry = sum->digits[i] / DIGIT - (sum->digits[i] % DIGIT < 0);
        sum->digits[i] -= carry * DIGIT;
        sum->digits[i + 1] += carry;
    }
    sum->added = 0;
}

void exact_add(struct exact_sum *sum, double x)
{
    if (!(fabs(x) < ldexp(1, EXACT_HIGHEST))) {
        sum->beyond += isnan(x) ? x : copysign(INFINITY, x);
        return;
    }
    int exponent = 0;
    int64_t sign = x < 0 ? -1 : 1;
    int64_t bits = (int64_t)ldexp(frexp(fabs(x), &exponent), MANTISSA_BITS);
    int place = exponent - MANTISSA_BITS - EXACT_LOWEST;
    if (place < 0) {
        bits = place > -MANTISSA_BITS ? bits >> -place : 0;
        place = 0;
    }
    int digit = place / EXACT_DIGIT_BITS, shift = place % EXACT_DIGIT_BITS;
    int64_t low = bits & ((DIGIT >> shift) - 1);
    bits >>= EXACT_DIGIT_BITS - shift;
    sum->digits[digit] += sign * (low << shift);
    sum->digits[digit + 1] += sign * (bits % DIGIT);
    if (bits >= DIGIT) {
        sum->digits[digit + 2] += sign * (bits / DIGIT);
    }
    if (++sum->added >= ADDED_MOST) {
        exact_carry(sum);
    }
}

double exact_value(const struct exact_sum *sum)
{
    struct exact_sum s = *sum;
    if (s.beyond != 0) {
        return s.beyond;
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
    for (int i = top - 2; i <= top; i++) { /* two hold every bit of a double */
        value += ldexp((double)s.digits[i], i * EXACT_DIGIT_BITS + EXACT_LOWEST);
    }
    return negative ? -value : value;
}
