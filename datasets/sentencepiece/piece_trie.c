#include "datasets/sentencepiece/piece_trie.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* The keys [low, high) that begin with the string of a node. */
struct key_range {
    int64_t low, high;
    size_t depth;
};

static int compare_keys(const void *a, const void *b)
{
    const struct piece_key *x = a, *y = b;
    int difference = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return difference != 0 ? difference : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Returns the number of nodes. Each key adds the nodes after the prefix that it shares with the key
 * before it. */
static uint64_t count_nodes(const struct piece_key *keys, int64_t count)
{
    uint64_t nodes = 1;
    for (int64_t i = 0; i < count; i++) {
        size_t shared = 0;
        while (i > 0 && shared < keys[i].bytes && shared < keys[i - 1].bytes &&
               keys[i].text[shared] == keys[i - 1].text[shared]) {
            shared++;
        }
        nodes += keys[i].bytes - shared;
    }
    return nodes;
}

/* Adds the children of a node and writes their ranges. */
static void add_children(struct piece_trie *t, const struct piece_key *keys,
                         struct key_range *ranges, uint32_t node)
{
    struct key_range r = ranges[node];
    if (r.low < r.high && keys[r.low].bytes == r.depth) {
        t->nodes[node].value = keys[r.low].value;
        r.low++;
    }
    t->nodes[node].first = t->count;
    while (r.low < r.high) {
        unsigned char byte = (unsigned char)keys[r.low].text[r.depth];
        int64_t end = r.low;
        while (end < r.high && (unsigned char)keys[end].text[r.depth] == byte) {
            end++;
        }
        t->labels[t->count] = byte;
        t->nodes[t->count].value = -1;
        ranges[t->count++] = (struct key_range){r.low, end, r.depth + 1};
        t->nodes[node].count++;
        r.low = end;
    }
}

status piece_trie_build(struct piece_trie *t, struct piece_key *keys, int64_t count)
{
    qsort(keys, (size_t)count, sizeof *keys, compare_keys);
    uint64_t nodes = count_nodes(keys, count);
    REQUIRE(nodes < UINT32_MAX, STATUS_DATA, "the pieces have %" PRIu64 " prefixes: too many",
            nodes);
    struct key_range *ranges = NULL;
    status result = ALLOCATE(ranges, nodes, "the prefixes of pieces");
    KEEP_FIRST(result, ALLOCATE(t->nodes, nodes, "the prefixes of pieces"));
    KEEP_FIRST(result, ALLOCATE(t->labels, nodes, "the prefixes of pieces"));
    if (result != STATUS_OK) {
        free(ranges);
        piece_trie_free(t);
        return result;
    }
    t->count = 1;
    t->nodes[0].value = -1;
    ranges[0] = (struct key_range){0, count, 0};
    for (uint32_t node = 0; node < t->count; node++) {
        add_children(t, keys, ranges, node);
    }
    free(ranges);
    return STATUS_OK;
}

void piece_trie_free(struct piece_trie *t)
{
    free(t->nodes);
    free(t->labels);
    *t = (struct piece_trie){0};
}

uint32_t piece_trie_next(const struct piece_trie *t, uint32_t node, unsigned char byte)
{
    const struct piece_trie_node *n = &t->nodes[node];
    const uint8_t *labels = t->labels + n->first;
    if (n->count == 0) {
        return 0;
    }
    const uint8_t *found = memchr(labels, byte, n->count);
    return found == NULL ? 0 : n->first + (uint32_t)(found - labels);
}

size_t piece_trie_longest(const struct piece_trie *t, const char *text, size_t bytes)
{
    size_t longest = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < bytes && t->count > 0; i++) {
        node = piece_trie_next(t, node, (unsigned char)text[i]);
        if (node == 0) {
            break;
        }
        longest = t->nodes[node].value >= 0 ? i + 1 : longest;
    }
    return longest;
}
