/* Tests of number parsing, of the shortest text of a number, and of suggestions for misspelled
 * words. */
#include <float.h>

#include "base/random.h"
#include "base/text.h"
#include "tests/check.h"

static void test_integers(void)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},   {"7", 7},
                {"-7", -7}, {"9223372036854775807", INT64_MAX},
                {"-0", 0},  {"-9223372036854775808", INT64_MIN},
                {"10", 10}};
    static const struct {
        const char *text, *reason;
    } bad[] = {
        {"", "not an integer"},        {"-", "not an integer"},   {"+5", "write 5"},
        {"010", "write 10"},           {"1e3", "write 1000"},     {"1_000", "write 1000"},
        {"1,000", "write 1000"},       {"2.0", "write 2"},        {"2.5", "not an integer"},
        {"0x10", "not an integer"},    {" 5", "not an integer"},  {"5 ", "not an integer"},
        {"5\n", "not an integer"},     {"nan", "not an integer"}, {"1e999", "not an integer"},
        {"9223372036854775808", "64"}, {"--5", "not an integer"}};
    char reason[TEXT_REASON_BYTES];
    int64_t value;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK(text_to_integer(good[i].text, &value, reason) && value == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!text_to_integer(bad[i].text, &value, reason));
        CHECK(strstr(reason, bad[i].reason) != NULL);
    }
}

static void test_numbers(void)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},         {"0.0", 0},       {"0e5", 0},     {"1e-4", 1e-4},
                {"1.0E+3", 1000}, {".5", 0.5},      {"5.", 5},      {"-2.5e-3", -2.5e-3},
                {"0e-999", 0},    {"1e308", 1e308}, {"0.001", 1e-3}};
    static const char *const bad[] = {"",    "nan",   "inf",    "-inf",    "0x1p3", "1e",
                                      "e1",  "1e5.5", ".",      "-",       "+1",    "1f",
                                      "1 ",  " 1",    "1e999",  "00",      "01.5",  "1e-999",
                                      "1,5", "1_0",   "4e-320", "infinity"};
    char reason[TEXT_REASON_BYTES];
    double value;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK(text_to_number(good[i].text, &value, reason) && value == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!text_to_number(bad[i], &value, reason) && reason[0] != '\0');
    }
}

static void check_written(double value, const char *expected)
{
    char text[TEXT_NUMBER_BYTES];
    CHECK_TEXT(text_from_number(value, text), expected);
}

static void test_writing(void)
{
    check_written(0, "0.0");
    check_written(1, "1.0");
    check_written(0.1, "0.1");
    check_written(6e-4, "0.0006");
    check_written(1e-8, "1.0e-08");
    check_written(1.5e-8, "1.5e-08");
    check_written(300, "300.0");
    check_written(1e6, "1000000.0");
    check_written(1e20, "1.0e+20");
    check_written(-2.5, "-2.5");
    check_written(1.0 / 3, "0.3333333333333333");
    char text[TEXT_NUMBER_BYTES];
    char reason[TEXT_REASON_BYTES];
    for (uint64_t i = 0; i < 20000; i++) { /* random bits that are a normal number */
        uint64_t bits = random_u64(random_key(3, RANDOM_TEST, 0, 0), i);
        double value, parsed;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value) && fabs(value) >= DBL_MIN) {
            CHECK(text_to_number(text_from_number(value, text), &parsed, reason) &&
                  parsed == value);
            CHECK(strchr(text, '.') != NULL && strlen(text) < TEXT_NUMBER_BYTES);
        }
    }
}

static void test_words(void)
{
    static const char *const words[] = {"learning_rate", "beta1", "beta2", "name"};
    CHECK_EQUAL(text_distance("abc", "abc"), 0);
    CHECK_EQUAL(text_distance("abc", "acb"), 1);
    CHECK_EQUAL(text_distance("abc", ""), 3);
    CHECK_EQUAL(text_distance("kitten", "sitting"), 3);
    CHECK_EQUAL(text_distance("Max-Steps", "max_steps"), 0);
    CHECK_EQUAL(
        text_distance("a123456789012345678901234567890123456789012345678901234567890123", "a"), 64);
    CHECK_EQUAL(text_nearest("learnign_rate", words, 4), 0);
    CHECK_EQUAL(text_nearest("nam", words, 4), 3);
    CHECK_EQUAL(text_nearest("zzzzzz", words, 4), -1);
    CHECK_EQUAL(text_nearest("", words, 4), -1);
    CHECK_EQUAL(text_nearest("x", words, 0), -1);
}

static void test_controls(void)
{
    char line[] = "a\033]0;t\a\tb\n\x7f", text[] = "\xc2\x9b\xc3\xa9\xc2\xa0";
    text_replace_controls(line, "\n");
    CHECK_TEXT(line, "a?]0;t??b\n?");
    text_replace_controls(text, "");
    CHECK_TEXT(text, "??\xc3\xa9\xc2\xa0");
}

static void test_suffixes(void)
{
    CHECK(text_has_suffix("data.bin", ".bin") && text_has_suffix(".bin", ".bin"));
    CHECK(text_has_suffix("data", "") && text_has_suffix("", ""));
    CHECK(!text_has_suffix("bin", ".bin") && !text_has_suffix("data.bin.gz", ".bin"));
    CHECK(!text_has_suffix("", ".bin") && !text_has_suffix("data.BIN", ".bin"));
}

int main(void)
{
    test_suffixes();
    test_controls();
    test_integers();
    test_numbers();
    test_writing();
    test_words();
    return 0;
}
