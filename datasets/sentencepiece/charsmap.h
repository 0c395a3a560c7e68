/* The precompiled character map of SentencePiece: replacements of strings, for example the
 * replacements of NFKC.
 *
 * The data is the number of bytes of a double array (uint32, little-endian), the double array, and
 * the replacements, each with a NUL at its end. The double array is a trie in the format of
 * darts-clone. A unit of 32 bits contains:
 *
 *     bits 0-7 and 31   the byte that leads to this unit; bit 31 marks a unit with a value
 *     bit 8             the unit has a value: it is the child for the byte 0
 *     bits 9-30         the offset: bits 10-30, shifted left by 8 if bit 9 is set
 *
 * The child of unit u for byte c is at u ^ offset(u) ^ c. A value is a position in
 * the replacements.
 *
 * Source    Yata 2008, darts-clone; Kudo, Richardson 2018, arXiv:1808.06226, section 3.3 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A map of all zeros replaces nothing. */
struct charsmap {
    uint32_t *units;
    size_t count;
    char *replacements;
    size_t replacement_bytes;
};

/* charsmap_open - copy and check a map. bytes 0 gives an empty map.
 *
 * Memory    free it with charsmap_close
 * Errors    STATUS_DATA: the sizes do not fit, or a replacement is longer than 1024 bytes;
 *           STATUS_INTERNAL (out of memory) */
status charsmap_open(struct charsmap *map, const uint8_t *data, size_t bytes, const char *path);

/* charsmap_data - serialize a map to the format that charsmap_open reads.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL (out of memory) */
status charsmap_data(const struct charsmap *map, uint8_t **out, size_t *out_bytes);

/* charsmap_close - free a map. */
void charsmap_close(struct charsmap *map);

/* A string of the map: its length in the text, and its replacement, which ends with a NUL. */
struct charsmap_match {
    size_t bytes; /* 0: none */
    const char *replacement;
};

/* charsmap_find_longest - find the longest string of the map at the beginning of a text. */
struct charsmap_match charsmap_find_longest(const struct charsmap *map, const char *text,
                                            size_t bytes);

/* charsmap_find_first - find the shortest string of the map at the beginning of a text. */
struct charsmap_match charsmap_find_first(const struct charsmap *map, const char *text,
                                          size_t bytes);
