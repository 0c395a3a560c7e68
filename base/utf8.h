/* UTF-8: reading, writing and checking of characters. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The remedy for a file in another encoding, for messages. */
#define UTF8_REMEDY "convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`"

/* utf8_read - decode the UTF-8 character at text[0]; return its length in bytes.
 *
 * Returns   0 if there is no valid character
 * Source    Unicode 15, table 3-7 (no overlong forms, no surrogates, at most U+10FFFF) */
size_t utf8_read(const char *text, size_t bytes, uint32_t *code);

/* utf8_character_bytes - return the length of the character at text[0] from its first byte alone.
 * The other bytes are not checked.
 *
 * Units     bytes > 0; the result is 1 to 4, and at most bytes */
size_t utf8_character_bytes(const char *text, size_t bytes);

/* utf8_is_continuation - return whether the byte continues a UTF-8 character (0x80 to 0xbf). */
static inline bool utf8_is_continuation(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* utf8_write - encode a code point as UTF-8; return its length in bytes. */
size_t utf8_write(uint32_t code, char text[4]);

/* utf8_find_valid_end - return the end of the valid UTF-8 that begins at text[pos].
 *
 * Returns   `bytes` if all of it is valid */
size_t utf8_find_valid_end(const char *text, size_t bytes, size_t pos);

/* utf8_is_valid - return whether the whole text is valid UTF-8. */
bool utf8_is_valid(const char *text, size_t bytes);

/* utf8_count_characters - return the number of characters of valid UTF-8. */
int64_t utf8_count_characters(const char *text, size_t bytes);
