/* GPT-2's byte alphabet: maps each byte to one printable character, so a token of arbitrary bytes
 * is a readable JSON string.
 *
 * The 188 printable bytes of Latin-1 map to themselves. The other 68 map to U+0100 and following.
 * Both groups are in ascending order. The rank of a byte is the position of its character in the
 * code point order of the alphabet.
 *
 * Source    Radford et al. 2019 (GPT-2), bytes_to_unicode */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* alphabet_rank - return the rank of a byte, 0 to 255. */
int32_t alphabet_rank(unsigned char byte);

/* alphabet_byte - return the byte with this rank; the inverse of alphabet_rank. */
unsigned char alphabet_byte(int rank);

/* alphabet_encode - write bytes as UTF-8 text in the alphabet; return the text's length.
 *
 * Memory    out has room for 2 * length bytes */
size_t alphabet_encode(const char *bytes, size_t length, char *out);

/* alphabet_decode - convert UTF-8 text in the alphabet to bytes.
 *
 * Memory    out has room for `length` bytes
 * Returns   false if a character is not in the alphabet */
bool alphabet_decode(const char *text, size_t length, char *out, size_t *out_length);
