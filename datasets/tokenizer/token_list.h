/* A growing list of token ids. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* Zero-initialized is empty. */
struct token_list {
    int32_t *ids;
    int64_t count;
    int64_t capacity;
};

/* token_list_free - free the ids and make the list empty. */
void token_list_free(struct token_list *list);

/* token_list_reserve - allocate memory for `more` further ids.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status token_list_reserve(struct token_list *list, int64_t more);

/* token_list_add - append one id. Errors as token_list_reserve. */
status token_list_add(struct token_list *list, int32_t id);

/* token_list_append - append ids. `ids` may be NULL if count is 0. Errors as token_list_reserve. */
status token_list_append(struct token_list *list, const int32_t *ids, int64_t count);
