#include "base/text_map.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static uint64_t hash_key;
static pthread_once_t hash_key_once = PTHREAD_ONCE_INIT;

static void draw_hash_key(void)
{
    if (getrandom(&hash_key, sizeof hash_key, GRND_NONBLOCK) != (ssize_t)sizeof hash_key) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        hash_key = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)now.tv_sec;
    }
}

/* Returns the exclusive or of the two halves of the 128-bit product. */
static uint64_t multiply_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 wide = (unsigned __int128)a * b;
    return (uint64_t)wide ^ (uint64_t)(wide >> 64);
}

uint64_t text_map_hash(const char *text, size_t bytes)
{
    pthread_once(&hash_key_once, draw_hash_key);
    uint64_t hash = hash_key ^ bytes;
    uint64_t word;
    size_t pos = 0;
    for (; pos + 8 <= bytes; pos += 8) {
        memcpy(&word, text + pos, 8);
        hash = multiply_fold(hash ^ word, 0xa0761d6478bd642fu) + hash_key;
    }
    if (pos < bytes) {
        word = 0;
        memcpy(&word, text + pos, bytes - pos);
        hash = multiply_fold(hash ^ word, 0xe7037ed1a0b428dbu) + hash_key;
    }
    return multiply_fold(hash ^ 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u);
}

uint64_t text_map_hash_int(uint64_t value)
{
    pthread_once(&hash_key_once, draw_hash_key);
    return multiply_fold(value ^ hash_key, 0xa0761d6478bd642fu) ^ hash_key;
}

/* Returns the slot of the string, or the free slot where it belongs. */
static struct text_slot *find_slot(const struct text_map *map, uint64_t hash, const char *text,
                                   size_t bytes)
{
    size_t mask = map->capacity - 1;
    for (size_t pos = hash & mask;; pos = (pos + 1) & mask) {
        struct text_slot *slot = &map->slots[pos];
        if (slot->text == NULL ||
            (slot->hash == hash && slot->bytes == bytes && memcmp(slot->text, text, bytes) == 0)) {
            return slot;
        }
    }
}

struct text_slot *text_map_find(const struct text_map *map, const char *text, size_t bytes)
{
    if (map->capacity == 0) {
        return NULL;
    }
    struct text_slot *slot = find_slot(map, text_map_hash(text, bytes), text, bytes);
    return slot->text == NULL ? NULL : slot;
}

static status grow_table(struct text_map *map)
{
    struct text_map bigger = {.capacity = map->capacity == 0 ? 256 : map->capacity * 2,
                              .count = map->count};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    REQUIRE(bigger.slots != NULL, STATUS_INTERNAL, "out of memory for a table of %zu strings",
            bigger.capacity);
    for (size_t i = 0; i < map->capacity; i++) {
        const struct text_slot *slot = &map->slots[i];
        if (slot->text != NULL) {
            *find_slot(&bigger, slot->hash, slot->text, slot->bytes) = *slot;
        }
    }
    free(map->slots);
    *map = bigger;
    return STATUS_OK;
}

status text_map_find_or_add(struct text_map *map, struct text_store *store, const char *text,
                            size_t bytes, struct text_slot **out, bool *is_new)
{
    if (map->count + 1 > map->capacity / 4 * 3) {
        TRY(grow_table(map));
    }
    uint64_t hash = text_map_hash(text, bytes);
    struct text_slot *slot = find_slot(map, hash, text, bytes);
    *is_new = slot->text == NULL;
    if (*is_new) {
        if (store != NULL) {
            TRY(text_store_copy(store, text, bytes, &text));
        }
        *slot = (struct text_slot){.text = text, .hash = hash, .bytes = bytes, .value = 0};
        map->count++;
    }
    *out = slot;
    return STATUS_OK;
}

void text_map_free(struct text_map *map)
{
    free(map->slots);
    *map = (struct text_map){0};
}
