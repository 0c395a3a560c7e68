#include "trainer/objective/pair_loss.h"

#include <stdlib.h>
#include <string.h>

enum { VALUES = 3 * ANSWERS }; /* of a pair */

status whole_batch_create(int64_t size, struct whole_batch *out)
{
    *out = (struct whole_batch){.size = size};
    out->pairs = calloc((size_t)size, sizeof *out->pairs);
    out->slopes = calloc((size_t)size, sizeof *out->slopes);
    out->exchanged = calloc((size_t)size * VALUES + 1, sizeof *out->exchanged);
    if (out->pairs == NULL || out->slopes == NULL || out->exchanged == NULL) {
        whole_batch_destroy(out);
        RAISE(STATUS_INTERNAL, "out of memory for %lld pairs", (long long)size);
    }
    return STATUS_OK;
}

void whole_batch_destroy(struct whole_batch *w)
{
    free(w->pairs);
    free(w->slopes);
    free(w->exchanged);
    *w = (struct whole_batch){0};
}

void whole_batch_clear(struct whole_batch *w)
{
    memset(w->pairs, 0, (size_t)w->size * sizeof *w->pairs);
}

status whole_batch_gather(struct comm *data, const struct preference_settings *settings,
                          struct whole_batch *w, bool known, bool *failed)
{
    int64_t count = 0;
    for (int64_t i = 0; i < w->size; i++) {
        for (int a = 0; a < ANSWERS; a++) { /* one rank's values, zeros of all others: exact */
            double *at = w->exchanged + VALUES * i + a;
            at[0] = w->pairs[i].logps[a];
            at[ANSWERS] = w->pairs[i].reference[a];
            at[2 * ANSWERS] = (double)w->pairs[i].tokens[a];
        }
    }
    w->exchanged[VALUES * w->size] = !known;
    TRY(comm_sum_doubles(data, w->exchanged, VALUES * w->size + 1));
    *failed = w->exchanged[VALUES * w->size] > 0;
    while (count < w->size && w->exchanged[VALUES * count + 2 * ANSWERS] > 0) {
        for (int a = 0; a < ANSWERS; a++) {
            const double *at = w->exchanged + VALUES * count + a;
            w->pairs[count].logps[a] = at[0];
            w->pairs[count].reference[a] = at[ANSWERS];
            w->pairs[count].tokens[a] = (int64_t)at[2 * ANSWERS];
        }
        count++; /* a last batch may be shorter */
    }
    return *failed ? STATUS_OK : preference_slopes(settings, w->pairs, count, w->slopes);
}
