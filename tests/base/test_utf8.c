/* Tests of UTF-8: every code point, invalid bytes at every place of a word of eight bytes. */
#include "base/utf8.h"

#include <string.h>

#include "base/memory.h"
#include "tests/check.h"

static void test_code_points(void)
{
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        uint32_t read = 0;
        size_t bytes = utf8_write(code, text);
        bool is_surrogate = code >= 0xd800 && code < 0xe000;
        CHECK(utf8_read(text, bytes, &read) == (is_surrogate ? 0 : bytes));
        CHECK(is_surrogate || read == code);
        CHECK(utf8_read(text, bytes - 1, &read) == 0);
        CHECK(utf8_is_valid(text, bytes) == !is_surrogate);
    }
}

static void test_invalid(void)
{
    /* A lone continuation byte, overlong forms, a surrogate, too large, and a cut character. */
    static const char *const invalid[] = {
        "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "\xe2\x82"};
    static const char *const before[] = {"", "a", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    for (int i = 0; i < COUNT(invalid); i++) {
        for (int k = 0; k < COUNT(before); k++) {
            for (size_t ascii = 0; ascii < 17; ascii++) {
                char text[64] = "";
                memset(text, 'x', ascii);
                strcat(text, before[k]);
                size_t valid = strlen(text);
                CHECK(utf8_is_valid(text, valid));
                strcat(text, invalid[i]);
                size_t bytes = strlen(text);
                CHECK(utf8_find_valid_end(text, bytes, 0) == valid);
                CHECK(utf8_find_valid_end(text, bytes, ascii) == valid);
                CHECK(!utf8_is_valid(text, bytes));
            }
        }
    }
}

static void test_ends(void)
{
    CHECK(utf8_is_valid(NULL, 0) && utf8_is_valid("\0", 1));
    CHECK(utf8_find_valid_end("abc", 3, 3) == 3);
    CHECK(!utf8_is_continuation('\x7f') && !utf8_is_continuation('\xc0'));
    CHECK(utf8_is_continuation('\x80') && utf8_is_continuation('\xbf'));
    CHECK(utf8_count_characters("", 0) == 0);
    CHECK(utf8_count_characters("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10) == 4);
}

int main(void)
{
    test_code_points();
    test_invalid();
    test_ends();
    return 0;
}
