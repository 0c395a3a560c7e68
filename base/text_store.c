#include "base/text_store.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)1 << 18)

struct text_block {
    struct text_block *next;
    size_t used;
    size_t bytes;
    char data[];
};

status text_store_copy(struct text_store *store, const char *text, size_t bytes, const char **out)
{
    struct text_block *block = store->blocks;
    if (block == NULL || block->bytes - block->used <= bytes) {
        size_t block_bytes = bytes + 1 > BLOCK_BYTES ? bytes + 1 : BLOCK_BYTES;
        block = malloc(sizeof *block + block_bytes);
        REQUIRE(block != NULL, STATUS_INTERNAL, "out of memory for %zu bytes of tokens",
                block_bytes);
        *block = (struct text_block){.next = store->blocks, .used = 0, .bytes = block_bytes};
        store->blocks = block;
    }
    char *copy = block->data + block->used;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    block->used += bytes + 1;
    *out = copy;
    return STATUS_OK;
}

void text_store_free(struct text_store *store)
{
    while (store->blocks != NULL) {
        struct text_block *next = store->blocks->next;
        free(store->blocks);
        store->blocks = next;
    }
}
