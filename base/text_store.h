/* Memory for strings of any length, in blocks that never move. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct text_block;

/* A store of all zeros is empty. */
struct text_store {
    struct text_block *blocks;
};

/* text_store_copy - copy a string into the store and append a NUL.
 *
 * Memory    *out is valid until text_store_free
 * Errors    STATUS_INTERNAL (out of memory) */
status text_store_copy(struct text_store *store, const char *text, size_t bytes, const char **out);

/* text_store_free - free all strings. */
void text_store_free(struct text_store *store);
