#include "datasets/tokenizer/token_list.h"

#include <inttypes.h>
#include <stdlib.h>

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

status token_list_reserve(struct token_list *list, int64_t more)
{
    if (list->capacity - list->count >= more) {
        return STATUS_OK;
    }
    int64_t capacity = list->count + more + list->capacity / 2 + 64;
    int32_t *ids = realloc(list->ids, (size_t)capacity * sizeof *ids);
    REQUIRE(ids != NULL, STATUS_INTERNAL, "out of memory for %" PRId64 " token ids", capacity);
    list->ids = ids;
    list->capacity = capacity;
    return STATUS_OK;
}
