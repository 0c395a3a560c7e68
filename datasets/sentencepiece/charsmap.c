#include "datasets/sentencepiece/charsmap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define REPLACEMENT_BYTES_MAX ((size_t)1024)
#define HEADER_BYTES ((size_t)4)

static uint32_t read_word(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static status check_replacements(const struct charsmap *map, const char *path)
{
    for (size_t begin = 0; begin < map->replacement_bytes;) {
        size_t length = strlen(map->replacements + begin);
        REQUIRE(length <= REPLACEMENT_BYTES_MAX, STATUS_DATA,
                "%s: the precompiled character map has a replacement of %zu bytes; at most %zu "
                "are supported",
                path, length, REPLACEMENT_BYTES_MAX);
        begin += length + 1;
    }
    return STATUS_OK;
}

status charsmap_open(struct charsmap *map, const uint8_t *data, size_t bytes, const char *path)
{
    *map = (struct charsmap){0};
    if (bytes == 0) {
        return STATUS_OK;
    }
    size_t trie_bytes = bytes < HEADER_BYTES ? bytes : read_word(data);
    REQUIRE(bytes > HEADER_BYTES && trie_bytes < bytes - HEADER_BYTES && trie_bytes % 4 == 0,
            STATUS_DATA,
            "%s: the precompiled character map of %zu bytes is damaged: its trie has %zu bytes",
            path, bytes, trie_bytes);
    map->count = trie_bytes / 4;
    map->replacement_bytes = bytes - HEADER_BYTES - trie_bytes;
    status result = ALLOCATE(map->units, map->count + 1, "a character map");
    KEEP_FIRST(result, ALLOCATE(map->replacements, map->replacement_bytes + 1, "a character map"));
    if (result != STATUS_OK) {
        charsmap_close(map);
        return result;
    }
    for (size_t i = 0; i < map->count; i++) {
        map->units[i] = read_word(data + HEADER_BYTES + 4 * i);
    }
    memcpy(map->replacements, data + HEADER_BYTES + trie_bytes, map->replacement_bytes);
    map->replacements[map->replacement_bytes] = '\0';
    result = check_replacements(map, path);
    if (result != STATUS_OK) {
        charsmap_close(map);
    }
    return result;
}

static void write_word(uint8_t *out, uint32_t word)
{
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(word >> 8 * i);
    }
}

status charsmap_data(const struct charsmap *map, uint8_t **out, size_t *out_bytes)
{
    size_t trie_bytes = 4 * map->count;
    *out_bytes = map->count > 0 ? HEADER_BYTES + trie_bytes + map->replacement_bytes : 0;
    TRY(ALLOCATE(*out, *out_bytes + 1, "a character map"));
    if (*out_bytes > 0) {
        write_word(*out, (uint32_t)trie_bytes);
        for (size_t i = 0; i < map->count; i++) {
            write_word(*out + HEADER_BYTES + 4 * i, map->units[i]);
        }
        memcpy(*out + HEADER_BYTES + trie_bytes, map->replacements, map->replacement_bytes);
    }
    return STATUS_OK;
}

void charsmap_close(struct charsmap *map)
{
    free(map->units);
    free(map->replacements);
    *map = (struct charsmap){0};
}

static uint32_t compute_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 0x200) >> 6);
}

/* Finds the shortest or the longest string. An index out of range ends the search: the file is
 * damaged there. */
static struct charsmap_match find_match(const struct charsmap *map, const char *text, size_t bytes,
                                        bool longest)
{
    struct charsmap_match match = {0};
    if (map->count == 0) {
        return match;
    }
    size_t pos = compute_offset(map->units[0]);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        pos ^= byte;
        if (pos >= map->count || (map->units[pos] & 0x800000ffu) != byte) {
            break;
        }
        uint32_t unit = map->units[pos];
        pos ^= compute_offset(unit);
        if ((unit & 0x100) == 0) {
            continue;
        }
        uint32_t value = pos < map->count ? map->units[pos] & 0x7fffffffu : UINT32_MAX;
        if (value >= map->replacement_bytes) {
            break;
        }
        match = (struct charsmap_match){i + 1, map->replacements + value};
        if (!longest) {
            break;
        }
    }
    return match;
}

struct charsmap_match charsmap_find_longest(const struct charsmap *map, const char *text,
                                            size_t bytes)
{
    return find_match(map, text, bytes, true);
}

struct charsmap_match charsmap_find_first(const struct charsmap *map, const char *text,
                                          size_t bytes)
{
    return find_match(map, text, bytes, false);
}
