/* Tests minimum, maximum and rounded division with negative numbers and numbers beyond 32 bits. */
#include "base/memory.h"
#include "base/number.h"
#include "tests/check.h"

int main(void)
{
    static const int64_t numbers[] = {INT64_MIN, -5, 0, 1, 7, (int64_t)1 << 40, INT64_MAX};
    for (int i = 0; i < COUNT(numbers); i++) {
        for (int k = 0; k < COUNT(numbers); k++) {
            int64_t a = numbers[i], b = numbers[k];
            CHECK_EQUAL(number_min(a, b), numbers[i < k ? i : k]);
            CHECK_EQUAL(number_max(a, b), numbers[i < k ? k : i]);
            CHECK_EQUAL(number_clamp(a, -5, 7), a < -5 ? -5 : a > 7 ? 7 : a);
            CHECK_EQUAL(number_clamp(a, b, b), b);
        }
    }
    CHECK_EQUAL(number_divide_up(0, 3), 0);
    CHECK_EQUAL(number_divide_up(1, 3), 1);
    CHECK_EQUAL(number_divide_up(3, 3), 1);
    CHECK_EQUAL(number_divide_up(4, 3), 2);
    CHECK_EQUAL(number_divide_up((int64_t)1 << 40, 1), (int64_t)1 << 40);
    CHECK_EQUAL(number_round_up(0, 8), 0);
    CHECK_EQUAL(number_round_up(1, 8), 8);
    CHECK_EQUAL(number_round_up(8, 8), 8);
    CHECK_EQUAL(number_round_up(9, 3), 9);
    CHECK_EQUAL(number_round_up(10, 3), 12);
    CHECK_EQUAL(number_round_up(((int64_t)1 << 40) + 1, 2), ((int64_t)1 << 40) + 2);
    return 0;
}
