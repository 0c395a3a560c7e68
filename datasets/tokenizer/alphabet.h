/* GPT-2's byte alphabet: each byte as one printable character, so that a token of any bytes is a
 * readable JSON string. The 188 bytes that are printable in Latin-1 stand for themselves, the other
 * 68 are U+0100 and on, both in ascending order; the rank of a byte is its place in the order of
 * these characters. Source: Radford et al. 2019, bytes_to_unicode. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* alphabet_rank - 0..255: the place of a byte; alphabet_byte is its inverse. */
int32_t alphabet_rank(unsigned char byte);
unsigned char alphabet_byte(int rank);

/* alphabet_encode - text in the alphabet: out has room for 2 * bytes; returns its length. */
size_t alphabet_encode(const char *bytes, size_t length, char *out);

/* alphabet_decode - the bytes that UTF-8 text in the alphabet stands for; out has room for
 * `length`.
 *
 * Errors    false if a character is not of the alphabet */
bool alphabet_decode(const char *text, size_t length, char *out, size_t *out_length);
