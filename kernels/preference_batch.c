/* The losses of a whole batch: shape checks, dispatch, and the computation on the host. */
#include "kernels/preference_batch_terms.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/checks.h"

static status check_batch(const char *where, const struct preference_batch *b, int64_t count)
{
    TRY(check_present(where, "pairs", b->pairs));
    TRY(check_present(where, "gradients", b->gradients));
    TRY(check_present(where, "ranked", b->ranked));
    REQUIRE(count >= 0 && count <= b->size, STATUS_INTERNAL,
            "%s: %" PRId64 " pairs of a batch of %" PRId64, where, count, b->size);
    return STATUS_OK;
}

status preference_batch_store(struct kernels *k, const struct preference_batch *batch,
                              const double *logps, const struct preference_rows *rows,
                              int64_t first)
{
    double bytes = (double)rows->pairs * sizeof *batch->pairs;
    PRESENT(logps);
    PRESENT(rows->first);
    TRY(check_batch("preference_batch_store", batch, rows->pairs));
    REQUIRE(first >= 0 && first < batch->size, STATUS_INTERNAL,
            "preference_batch_store: pair %" PRId64 " of a batch of %" PRId64, first, batch->size);
    DISPATCH(k, preference_batch_store, 0, bytes, k, batch, logps, rows, first);
}

status preference_batch_run(struct kernels *k, const struct preference_batch *batch, int64_t count,
                            const struct preference_settings *settings)
{
    double bytes = (double)count * (sizeof *batch->pairs + sizeof *batch->gradients);
    TRY(check_batch("preference_batch_run", batch, count));
    DISPATCH(k, preference_batch_run, 50 * (double)count, bytes, k, batch, count, settings);
}

/* ---- the host ---- */

/* Compares for qsort. */
static int compare_values(const void *a, const void *b)
{
    const struct preference_ranked *x = a, *y = b;
    return preference_is_before(y, x) - preference_is_before(x, y);
}

/* Adds the loss aot or aot_unpaired. */
static void add_aot(struct preference_gradient *gradients, struct preference_ranked *high,
                    const struct preference_pair *pairs, int64_t count,
                    const struct preference_settings *s, const struct preference_term *term)
{
    bool margins = term->loss == PREFERENCE_AOT;
    struct preference_ranked *low = high + count;
    for (int64_t i = 0; i < count; i++) {
        const struct preference_values v = preference_get_values(&pairs[i], margins);
        high[i] = (struct preference_ranked){v.high, i};
        low[i] = (struct preference_ranked){v.low, i};
    }
    qsort(high, (size_t)count, sizeof *high, compare_values);
    qsort(low, (size_t)count, sizeof *low, compare_values);
    for (int64_t i = 0; i < count; i++) {
        preference_add_sorted(s, term, &high[i], &low[i], margins, gradients);
    }
}

static double count_chosen_tokens(const struct preference_pair *pairs, int64_t count)
{
    double tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    return tokens;
}

/* Adds a loss with a separate gradient for each pair. */
static void add_pairs(struct preference_gradient *gradients, const struct preference_pair *pairs,
                      int64_t count, const struct preference_settings *s,
                      const struct preference_term *term)
{
    double tokens = term->loss == PREFERENCE_SFT ? count_chosen_tokens(pairs, count) : 0;
    for (int64_t i = 0; i < count; i++) {
        if (term->loss == PREFERENCE_SFT) {
            preference_add_sft(term, &pairs[i], count, tokens, &gradients[i]);
        } else {
            preference_add_term(s, term, &pairs[i], &gradients[i]);
        }
    }
}

void preference_batch_compute(struct preference_gradient *gradients,
                              struct preference_ranked *ranked, const struct preference_pair *pairs,
                              int64_t count, const struct preference_settings *settings)
{
    memset(gradients, 0, (size_t)count * sizeof *gradients);
    for (int i = 0; i < settings->terms && count > 0; i++) {
        const struct preference_term *term = &settings->term[i];
        if (term->loss == PREFERENCE_AOT || term->loss == PREFERENCE_AOT_UNPAIRED) {
            add_aot(gradients, ranked, pairs, count, settings, term);
        } else {
            add_pairs(gradients, pairs, count, settings, term);
        }
    }
}
