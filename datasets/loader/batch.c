#include "datasets/loader/batch.h"

#include <stdbool.h>
#include <stddef.h>

/* Finds the rows of response s of a batch, including prompt rows that the pair does not share.
 * Response 2 i is the chosen one of pair i, response 2 i + 1 the rejected one. */
static void find_response_rows(const struct batch *b, int64_t s, int32_t *first, int32_t *last)
{
    const int32_t *branches = b->preference_pairs.shared_prefix_offsets;
    if (branches == NULL) {
        *first = b->cu_rows[s];
        *last = b->cu_rows[s + 1];
        return;
    }
    int64_t pair = s / 2;
    bool chosen = s % 2 == 0;
    *first = b->cu_rows[pair] + branches[s];
    *last = chosen ? b->cu_rows[pair] + branches[s + 1] : b->cu_rows[pair + 1];
}

void batch_list_targets(const struct batch *b, int32_t *first, int32_t *rows, int32_t *ids)
{
    int32_t count = 0;
    for (int64_t s = 0; s < 2 * b->sequences; s++) {
        int32_t row, last;
        find_response_rows(b, s, &row, &last);
        first[s] = count;
        for (; row < last; row++) {
            if (b->targets[row] != BATCH_IGNORED) {
                ids[count] = b->targets[row];
                rows[count++] = row;
            }
        }
    }
    first[2 * b->sequences] = count;
}
