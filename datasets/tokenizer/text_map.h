/* A hash table from byte strings to integers, and the memory that the strings lie in.
 *
 * Open addressing, linear probing, at most 3/4 full. The hash is keyed with random bits drawn once
 * per process, so that a file cannot be made to collide; nothing that is written depends on the
 * order of the slots. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Strings of any length in blocks that never move. Zero-initialised is empty. */
struct text_block;
struct text_store {
    struct text_block *blocks;
};

/* text_store_copy - a copy of text that lives as long as the store; a NUL follows it. */
status text_store_copy(struct text_store *store, const char *text, size_t bytes, const char **out);
void text_store_free(struct text_store *store);

struct text_slot {
    const char *text; /* NULL: free */
    uint64_t hash;
    size_t bytes;
    int64_t value;
};

/* Zero-initialised is empty. The strings are borrowed. */
struct text_map {
    struct text_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

uint64_t text_map_hash(const char *text, size_t bytes);
uint64_t text_map_mix(uint64_t value);

/* text_map_find - the slot of this string; NULL: not there. */
struct text_slot *text_map_find(const struct text_map *map, const char *text, size_t bytes);

/* text_map_slot - the slot of this string, a new one (value 0, *is_new) where there was none.
 *
 * Memory    valid until the next call; with a store the new slot's string is copied there */
status text_map_slot(struct text_map *map, struct text_store *store, const char *text, size_t bytes,
                     struct text_slot **out, bool *is_new);
void text_map_free(struct text_map *map);
