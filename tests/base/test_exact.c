/* Tests of exact sums: integers with a known sum, and the same addends in other orders. */
#include "base/exact.h"
#include "base/memory.h"
#include "tests/check.h"

enum { TERMS = 5000 };

static double make_term(int i)
{
    uint64_t x = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    double mantissa =
        (double)((int64_t)(x >> 11) - (INT64_C(1) << 52)) / (double)(INT64_C(1) << 52);
    return ldexp(mantissa, (int)(x % 500) - 250);
}

/* Integers times a power of two: the sum is known. */
static void test_value(void)
{
    static const int powers[] = {-320, -300, -53, -40, -1, 0, 1, 39, 40, 41, 200, 250};
    for (int p = 0; p < COUNT(powers); p++) {
        struct exact_sum sum = {0};
        int64_t integer_sum = 0;
        for (int i = 0; i < TERMS; i++) {
            int64_t addend = (i * INT64_C(2654435761)) % 2000003 - 1000000;
            integer_sum += addend;
            exact_add(&sum, ldexp((double)addend, powers[p]));
        }
        CHECK(exact_value(&sum) == ldexp((double)integer_sum, powers[p]));
        exact_add(&sum, -exact_value(&sum));
        CHECK(exact_value(&sum) == 0);
    }
}

/* Additions forwards, backwards and in two parts give the same sum. After large terms cancel, the
 * small term remains. */
static void test_order(void)
{
    struct exact_sum forwards = {0}, backwards = {0}, parts[2] = {{{0}, 0, 0}};
    for (int i = 0; i < TERMS; i++) {
        exact_add(&forwards, make_term(i));
        exact_add(&backwards, make_term(TERMS - 1 - i));
        exact_add(&parts[i % 7 == 0], make_term(i));
    }
    for (int d = 0; d < EXACT_DIGITS; d++) {
        parts[0].digits[d] += parts[1].digits[d];
    }
    CHECK(exact_value(&forwards) != 0);
    CHECK(exact_value(&forwards) == exact_value(&backwards));
    CHECK(exact_value(&forwards) == exact_value(&parts[0]));
    struct exact_sum rest = {0};
    exact_add(&rest, 1e80);
    exact_add(&rest, 1e-80);
    exact_add(&rest, -1e80);
    CHECK(exact_value(&rest) == 1e-80);
}

static void test_error(void)
{
    struct exact_sum sum = {0};
    for (int i = 0; i < TERMS; i++) {
        exact_add(&sum, fabs(make_term(i)));
        double value = exact_value(&sum);
        struct exact_sum rest = sum;
        exact_add(&rest, -value);
        CHECK(!(fabs(exact_value(&rest)) > value * ldexp(1, -52)));
    }
}

/* Carries are propagated before a digit overflows. */
static void test_many(void)
{
    struct exact_sum sum = {0};
    double big = ldexp((double)((INT64_C(1) << 53) - 1), 7);
    for (int i = 0; i < 1 << 24; i++) {
        exact_add(&sum, big);
    }
    CHECK(exact_value(&sum) == ldexp(big, 24));
}

static void test_range(void)
{
    struct exact_sum sum = {0};
    exact_add(&sum, ldexp(1, -400)); /* below the lowest digit: truncated */
    CHECK(exact_value(&sum) == 0);
    exact_add(&sum, ldexp(1, 320));
    CHECK(isinf(exact_value(&sum)) && exact_value(&sum) > 0);
    exact_add(&sum, -(double)INFINITY);
    CHECK(isnan(exact_value(&sum)));
}

int main(void)
{
    test_value();
    test_order();
    test_error();
    test_many();
    test_range();
    return 0;
}
