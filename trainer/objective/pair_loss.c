/* The losses are defined in preference.h. */
#include "trainer/objective/pair_loss.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { PAIR_VALUES = 3 * RESPONSES }; /* doubles to exchange for one pair */

status pair_loss_create(int64_t size, struct pair_loss_batch *out)
{
    status result = STATUS_OK;
    *out = (struct pair_loss_batch){.size = size};
    TRY_GOTO(result, failed, ALLOCATE(out->pairs, size, "pairs"));
    TRY_GOTO(result, failed, ALLOCATE(out->gradients, size, "the gradients of pairs"));
    TRY_GOTO(result, failed, ALLOCATE(out->reduced, size * PAIR_VALUES + 1, "the values of pairs"));
    return STATUS_OK;
failed:
    pair_loss_destroy(out);
    return result;
}

void pair_loss_destroy(struct pair_loss_batch *batch)
{
    free(batch->pairs);
    free(batch->gradients);
    free(batch->reduced);
    *batch = (struct pair_loss_batch){0};
}

void pair_loss_clear(struct pair_loss_batch *batch)
{
    memset(batch->pairs, 0, (size_t)batch->size * sizeof *batch->pairs);
}

status pair_loss_gather(struct comm *data, const struct preference_settings *settings,
                        struct pair_loss_batch *batch, bool complete, bool *failed)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->size; i++) {
        for (int a = 0; a < RESPONSES; a++) { /* zeros on other ranks: the sum is exact */
            double *value = batch->reduced + PAIR_VALUES * i + a;
            value[0] = batch->pairs[i].logps[a];
            value[RESPONSES] = batch->pairs[i].reference[a];
            value[2 * RESPONSES] = (double)batch->pairs[i].tokens[a];
        }
    }
    batch->reduced[PAIR_VALUES * batch->size] = !complete;
    TRY(comm_sum_doubles(data, batch->reduced, PAIR_VALUES * batch->size + 1));
    *failed = batch->reduced[PAIR_VALUES * batch->size] > 0;
    while (count < batch->size && batch->reduced[PAIR_VALUES * count + 2 * RESPONSES] > 0) {
        for (int a = 0; a < RESPONSES; a++) {
            const double *value = batch->reduced + PAIR_VALUES * count + a;
            batch->pairs[count].logps[a] = value[0];
            batch->pairs[count].reference[a] = value[RESPONSES];
            batch->pairs[count].tokens[a] = (int64_t)value[2 * RESPONSES];
        }
        count++; /* the last batch may be shorter */
    }
    return *failed ? STATUS_OK
                   : preference_gradients(settings, batch->pairs, count, batch->gradients);
}
