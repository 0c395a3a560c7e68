/* Tests of number parsing, of the shortest text of a number, and of suggestions for misspelled
 * words. */
#include <float.h>
#include <math.h>

#include "base/memory.h"
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
    for (int i = 0; i < COUNT(good); i++) {
        CHECK(text_to_integer(good[i].text, &value, reason) && value == good[i].value);
    }
    for (int i = 0; i < COUNT(bad); i++) {
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
    for (int i = 0; i < COUNT(good); i++) {
        CHECK(text_to_number(good[i].text, &value, reason) && value == good[i].value);
    }
    for (int i = 0; i < COUNT(bad); i++) {
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

static void check_scaled(char *(*scale)(double, char *), double value, const char *expected)
{
    char text[TEXT_NUMBER_BYTES];
    CHECK_TEXT(scale(value, text), expected);
}

static void test_scaling(void)
{
    static const struct {
        double value;
        const char *text;
    } counts[] = {{0, "0"},           {1, "1"},           {0.25, "0.25"},     {999, "999"},
                  {999.6, "1.00 k"},  {1000, "1.00 k"},   {17149, "17.1 k"},  {123456, "123 k"},
                  {2.05e6, "2.05 M"}, {-9996, "-10.0 k"}, {8.03e9, "8.03 G"}, {3e22, "30000 E"}},
      bytes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1536, "1.50 KiB"},
                 {1048575, "1.00 MiB"},
                 {278293387652.0, "259 GiB"},
                 {8510743479040.0, "7.74 TiB"}},
      seconds[] = {{0, "0 s"},
                   {41.3e-6, "41.3 us"},
                   {8.155142, "8.16 s"},
                   {0.0081551, "8.16 ms"},
                   {119, "119 s"},
                   {120, "2.00 min"},
                   {855, "14.2 min"},
                   {11520, "3.20 h"},
                   {815514.2, "9.44 days"}};
    for (int i = 0; i < COUNT(counts); i++) {
        check_scaled(text_scale_count, counts[i].value, counts[i].text);
    }
    for (int i = 0; i < COUNT(bytes); i++) {
        check_scaled(text_scale_bytes, bytes[i].value, bytes[i].text);
    }
    for (int i = 0; i < COUNT(seconds); i++) {
        check_scaled(text_scale_seconds, seconds[i].value, seconds[i].text);
    }
}

/* Metrics, times and parts of a progress line. */
static void test_progress(void)
{
    static const struct {
        double value;
        const char *text;
    } metrics[] = {{0, "0.0000"},        {1, "1.0000"},        {-0.25, "-0.2500"},
                   {5e-4, "0.0005"},     {1.23e-5, "1.2e-05"}, {9.99994, "9.9999"},
                   {9.99996, "10.00"},   {23.1449, "23.14"},   {99.996, "100.0"},
                   {402.42, "402.4"},    {999.96, "1000"},     {4208.3, "4208"},
                   {-999999, "-999999"}, {1e6, "1e+06"},       {-1e300, "-1e+300"},
                   {INFINITY, "inf"}},
      durations[] = {{0, "0 s"},         {33.4, "33 s"},       {89.4, "89 s"},
                     {90, "2 min"},      {720, "12 min"},      {5400, "1.5 h"},
                     {172799, "48.0 h"}, {172800, "2.0 days"}, {1e12, "11574074.1 days"}};
    char text[TEXT_NUMBER_BYTES], line[TEXT_LINE_COLUMNS + 1] = "";
    for (int i = 0; i < COUNT(metrics); i++) {
        CHECK_TEXT(text_from_metric(metrics[i].value, text), metrics[i].text);
    }
    CHECK(strstr(text_from_metric(NAN, text), "nan") != NULL);
    for (int i = 0; i < COUNT(durations); i++) {
        CHECK_TEXT(text_from_duration(durations[i].value, text), durations[i].text);
    }
    CHECK_EQUAL(strlen(text_from_duration(1e300, text)), TEXT_NUMBER_BYTES - 1);
    memset(line, 'a', TEXT_LINE_COLUMNS - 2);
    CHECK(!text_append_fitting(line, "bcd") && line[TEXT_LINE_COLUMNS - 2] == '\0');
    CHECK(text_append_fitting(line, "bc") && strlen(line) == TEXT_LINE_COLUMNS);
    CHECK(!text_append_fitting(line, "d") && text_append_fitting(line, ""));
    CHECK(line[TEXT_LINE_COLUMNS - 1] == 'c' && line[TEXT_LINE_COLUMNS] == '\0');
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

static void test_names(void)
{
    char out[TEXT_NAME_BYTES];
    CHECK_TEXT(text_quote_name("B-PER", out), "B-PER");
    CHECK_TEXT(text_quote_name("very\tgood, bad", out), "'very?good, bad'");
    CHECK_TEXT(text_quote_name("", out), "''");
    /* 57 bytes and a character of two bytes: it is not split. */
    CHECK_TEXT(
        text_quote_name("a23456789012345678901234567890123456789012345678901234567\xc3\xa9", out),
        "a23456789012345678901234567890123456789012345678901234567...");
    CHECK_TEXT(
        text_quote_name("a2345678901234567890123456789012345678901234567890123456\xc3\xa9", out),
        "a2345678901234567890123456789012345678901234567890123456\xc3\xa9");
}

static void test_suffixes(void)
{
    CHECK(text_has_suffix("data.bin", ".bin") && text_has_suffix(".bin", ".bin"));
    CHECK(text_has_suffix("data", "") && text_has_suffix("", ""));
    CHECK(!text_has_suffix("bin", ".bin") && !text_has_suffix("data.bin.gz", ".bin"));
    CHECK(!text_has_suffix("", ".bin") && !text_has_suffix("data.BIN", ".bin"));
}

static void test_lists(void)
{
    static const char *const items[] = {"a", "bc", "d"};
    for (int count = 1; count <= 3; count++) {
        char text[16] = "", small[5] = "";
        for (int i = 0; i < count; i++) {
            text_append_item(text, sizeof text, items[i], i, count, "or");
            text_append_item(small, sizeof small, items[i], i, count, "or");
        }
        CHECK_TEXT(text, count == 1 ? "a" : count == 2 ? "a or bc" : "a, bc or d");
        CHECK_TEXT(small, count == 1 ? "a" : count == 2 ? "a or" : "a, b");
    }
}

static void test_spaces(void)
{
    for (int byte = 0; byte < 256; byte++) {
        bool is_space = byte == 0x20 || byte == 0x09 || byte == 0x0d || byte == 0x0a;
        CHECK_EQUAL(text_is_space((char)byte), is_space);
    }
}

int main(void)
{
    test_lists();
    test_spaces();
    test_suffixes();
    test_controls();
    test_names();
    test_integers();
    test_numbers();
    test_writing();
    test_scaling();
    test_progress();
    test_words();
    return 0;
}
