/* A hash table from byte strings to integers.
 *
 * The table uses open addressing with linear probing and is at most 3/4 full. The hash is keyed
 * with random bits that each process draws once, so a file cannot provoke collisions. No output
 * depends on the order of the slots. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text_store.h"

struct text_slot {
    const char *text; /* NULL: free slot */
    uint64_t hash;
    size_t bytes;
    int64_t value;
};

/* A map of all zeros is empty. The map borrows its strings. */
struct text_map {
    struct text_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

/* text_map_hash - return the keyed hash of a string. */
uint64_t text_map_hash(const char *text, size_t bytes);

/* text_map_hash_int - return the keyed hash of an integer. */
uint64_t text_map_hash_int(uint64_t value);

/* text_map_find - return the slot of a string; NULL: not in the map. */
struct text_slot *text_map_find(const struct text_map *map, const char *text, size_t bytes);

/* text_map_find_or_add - find the slot of a string, or add one with value 0 and set *is_new.
 *
 * Memory    *out is valid until the next call. If store is not NULL, a new slot's string is copied
 *           into it.
 * Errors    STATUS_INTERNAL (out of memory) */
status text_map_find_or_add(struct text_map *map, struct text_store *store, const char *text,
                            size_t bytes, struct text_slot **out, bool *is_new);

/* text_map_free - free the slots; the strings are not freed. */
void text_map_free(struct text_map *map);
