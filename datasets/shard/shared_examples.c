#include "datasets/shard/shared_examples.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text_map.h"
#include "datasets/shard/shard.h"

enum { EXAMPLES_MAX = 1 << 20, READ_TOKENS = 4096, READ_DOCUMENTS = 512 };

/* A validation example. */
struct entry {
    uint64_t hash; /* of its tokens */
    bool in_training;
};

struct entries {
    struct entry *items;
    int64_t count, capacity;
};

/* Called with the hash of each example of a shard. */
typedef void visit_hash(struct entries *entries, uint64_t hash);

static void add_hash(struct entries *entries, uint64_t hash)
{
    if (entries->count < entries->capacity) {
        entries->items[entries->count++] = (struct entry){hash, false};
    }
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* Marks all entries with this hash; they are sorted. */
static void mark_hash(struct entries *entries, uint64_t hash)
{
    int64_t low = 0, high = entries->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (entries->items[middle].hash < hash) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < entries->count && entries->items[low].hash == hash; low++) {
        entries->items[low].in_training = true;
    }
}

struct scan {
    visit_hash *visit;
    struct entries *entries;
};

/* Calls `visit` for the examples of an open shard. */
static status scan_shard(struct shard *shard, void *context)
{
    const struct scan *scan = context;
    const struct shard_header *h = shard_get_header(shard);
    int64_t ends[READ_DOCUMENTS], document = 0, end_count = 0, next_end = 0;
    int32_t ids[READ_TOKENS];
    uint64_t hash = 0;
    for (int64_t first = 0, count; first < h->tokens; first += count) {
        count = number_min(h->tokens - first, READ_TOKENS);
        TRY(shard_read(shard, first, count, ids));
        for (int64_t i = 0; i < count; i++) {
            if (next_end == end_count) {
                int64_t left = h->documents - document;
                end_count = number_min(left, READ_DOCUMENTS);
                TRY(shard_read_documents(shard, document + 1, end_count, ends));
                document += end_count;
                next_end = 0;
            }
            hash = text_map_hash_int(hash ^ (uint64_t)ids[i]);
            if (first + i + 1 == ends[next_end]) {
                scan->visit(scan->entries, hash);
                hash = 0;
                next_end++;
            }
        }
    }
    return STATUS_OK;
}

status shared_examples_count(const char *folder, int train_shards, int validation_shards,
                             int64_t validation_examples, int64_t *out)
{
    struct entries entries = {0};
    *out = 0;
    if (validation_examples == 0) {
        return STATUS_OK;
    }
    entries.capacity = number_min(validation_examples, EXAMPLES_MAX);
    TRY(ALLOCATE(entries.items, entries.capacity, "the hashes of the validation examples"));
    struct scan add = {add_hash, &entries}, mark = {mark_hash, &entries};
    status result = shard_for_each_part(folder, "validation", validation_shards, scan_shard, &add);
    if (result == STATUS_OK) {
        qsort(entries.items, (size_t)entries.count, sizeof *entries.items, compare_entries);
        result = shard_for_each_part(folder, "train", train_shards, scan_shard, &mark);
    }
    for (int64_t i = 0; i < entries.count; i++) {
        *out += entries.items[i].in_training;
    }
    free(entries.items);
    return result;
}
