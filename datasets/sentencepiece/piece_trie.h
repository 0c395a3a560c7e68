/* A trie of byte strings: finds all pieces at the beginning of a text.
 *
 * The nodes are in breadth-first order. The children of a node are neighbors, in the order of
 * their bytes. Node 0 is the root.
 *
 * Calls     piece_trie_build; piece_trie_next from node 0 for each byte, or piece_trie_longest;
 *           piece_trie_free */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct piece_key {
    const char *text;
    size_t bytes;  /* > 0 */
    int32_t value; /* >= 0 */
};

struct piece_trie_node {
    uint32_t first; /* first child */
    int32_t value;  /* of the string that ends here; -1: none */
    uint16_t count; /* of children */
};

/* A trie of all zeros contains no string. */
struct piece_trie {
    struct piece_trie_node *nodes;
    uint8_t *labels; /* [node] last byte of the string up to this node */
    uint32_t count;
};

/* piece_trie_build - build the trie of these different strings.
 *
 * Memory    keys is sorted; the strings are not needed afterwards. Free the trie with
 *           piece_trie_free.
 * Errors    STATUS_DATA: the strings have too many prefixes; STATUS_INTERNAL (out of memory) */
status piece_trie_build(struct piece_trie *t, struct piece_key *keys, int64_t count);

/* piece_trie_free - free the nodes. */
void piece_trie_free(struct piece_trie *t);

/* piece_trie_next - return the child of a node for this byte; 0: none. */
uint32_t piece_trie_next(const struct piece_trie *t, uint32_t node, unsigned char byte);

/* piece_trie_longest - return the length of the longest string at the beginning of a text; 0: none.
 */
size_t piece_trie_longest(const struct piece_trie *t, const char *text, size_t bytes);
