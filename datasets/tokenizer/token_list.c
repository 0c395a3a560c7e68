#include "datasets/tokenizer/token_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

status token_list_reserve(struct token_list *list, int64_t more)
{
    return RESERVE(list->ids, list->capacity, list->count + more, "token ids");
}

status token_list_add(struct token_list *list, int32_t id)
{
    TRY(token_list_reserve(list, 1));
    list->ids[list->count++] = id;
    return STATUS_OK;
}

status token_list_append(struct token_list *list, const int32_t *ids, int64_t count)
{
    TRY(token_list_reserve(list, count));
    if (count > 0) { /* memcpy is undefined for NULL */
        memcpy(list->ids + list->count, ids, (size_t)count * sizeof *ids);
    }
    list->count += count;
    return STATUS_OK;
}
