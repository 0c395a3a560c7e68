/* The losses are defined in kernels/preference_loss.h. */
#include "trainer/objective/preference.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/preference_terms.h"

static const char *const names[PREFERENCE_LOSSES] = {
    [PREFERENCE_SIGMOID] = "sigmoid",
    [PREFERENCE_HINGE] = "hinge",
    [PREFERENCE_IPO] = "ipo",
    [PREFERENCE_EXO_PAIR] = "exo_pair",
    [PREFERENCE_NCA_PAIR] = "nca_pair",
    [PREFERENCE_ROBUST] = "robust",
    [PREFERENCE_BCO_PAIR] = "bco_pair",
    [PREFERENCE_SPPO_HARD] = "sppo_hard",
    [PREFERENCE_AOT] = "aot",
    [PREFERENCE_AOT_UNPAIRED] = "aot_unpaired",
    [PREFERENCE_APO_ZERO] = "apo_zero",
    [PREFERENCE_APO_DOWN] = "apo_down",
    [PREFERENCE_DISCOPOP] = "discopop",
    [PREFERENCE_SFT] = "sft",
    [PREFERENCE_SIGMOID_NORM] = "sigmoid_norm",
};

enum preference_loss preference_find(const char *name)
{
    int loss = 0;
    while (loss < PREFERENCE_LOSSES && strcmp(names[loss], name) != 0) {
        loss++;
    }
    return (enum preference_loss)loss;
}

static void add_pairwise_terms(const struct preference_settings *s,
                               const struct preference_term *term,
                               const struct preference_pair *pairs, int64_t count,
                               struct preference_gradient *out)
{
    for (int64_t i = 0; i < count; i++) {
        preference_add_term(s, term, &pairs[i], &out[i]);
    }
}

/* ---- losses of the whole batch ---- */

/* Adds the loss sft: the sum over the chosen responses, divided by their tokens. */
static void add_sft_term(const struct preference_term *term, const struct preference_pair *pairs,
                         int64_t count, struct preference_gradient *out)
{
    double tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    double scale = -term->weight * (double)count / tokens;
    for (int64_t i = 0; i < count; i++) {
        out[i].loss += scale * pairs[i].logps[CHOSEN];
        out[i].logps[CHOSEN] += scale;
    }
}

struct ranked_pair {
    double value;
    int64_t pair;
};

/* Compares for qsort. Equal values keep the order of the pairs, so that each rank gets the same. */
static int compare_values(const void *a, const void *b)
{
    const struct ranked_pair *x = a, *y = b;
    int order = (x->value > y->value) - (x->value < y->value);
    return order != 0 ? order : (x->pair > y->pair) - (x->pair < y->pair);
}

/* Sorts chosen * values[i][CHOSEN] + rejected * values[i][REJECTED] of all pairs i into out. */
static void sort_pairs(const double values[][RESPONSES], int64_t count, double chosen,
                       double rejected, struct ranked_pair *out)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] =
            (struct ranked_pair){chosen * values[i][CHOSEN] + rejected * values[i][REJECTED], i};
    }
    qsort(out, (size_t)count, sizeof *out, compare_values);
}

/* Adds the loss of the differences high[k] - low[k]. With `margins` these are the sorted margins of
 * the policy and of the reference, else the sorted log-ratios c and r. */
static void add_sorted(const struct preference_settings *s, const struct preference_term *term,
                       const struct ranked_pair *high, const struct ranked_pair *low, int64_t count,
                       bool margins, struct preference_gradient *out)
{
    for (int64_t k = 0; k < count; k++) {
        struct preference_scalar f =
            preference_smoothed_loss(s->beta * (high[k].value - low[k].value), s->label_smoothing);
        double gradient = term->weight * s->beta * f.gradient;
        out[high[k].pair].loss += term->weight * f.value;
        out[high[k].pair].logps[CHOSEN] += gradient;
        out[margins ? high[k].pair : low[k].pair].logps[REJECTED] -= gradient;
    }
}

/* Adds the loss aot or aot_unpaired. */
static status add_aot_term(const struct preference_settings *s, const struct preference_term *term,
                           const struct preference_pair *pairs, int64_t count,
                           struct preference_gradient *out)
{
    bool margins = term->loss == PREFERENCE_AOT;
    size_t rows = (size_t)count;
    double(*high_values)[RESPONSES] = NULL;
    struct ranked_pair *high = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(high_values, 2 * rows, "pairs"));
    TRY_GOTO(result, done, ALLOCATE(high, 2 * rows, "pairs"));
    double(*low_values)[RESPONSES] = high_values + rows;
    struct ranked_pair *low = high + rows;
    for (int64_t i = 0; i < count; i++) {
        for (int a = 0; a < RESPONSES; a++) {
            high_values[i][a] = pairs[i].logps[a] - (margins ? 0 : pairs[i].reference[a]);
            low_values[i][a] = margins ? pairs[i].reference[a] : high_values[i][a];
        }
    }
    sort_pairs((const double(*)[RESPONSES])high_values, count, 1, margins ? -1 : 0, high);
    sort_pairs((const double(*)[RESPONSES])low_values, count, margins ? 1 : 0, margins ? -1 : 1,
               low);
    add_sorted(s, term, high, low, count, margins, out);
done:
    free(high_values);
    free(high);
    return result;
}

bool preference_needs_whole_batch(const struct preference_settings *s)
{
    for (int i = 0; i < s->terms; i++) {
        enum preference_loss loss = s->term[i].loss;
        if (loss == PREFERENCE_AOT || loss == PREFERENCE_AOT_UNPAIRED || loss == PREFERENCE_SFT) {
            return true;
        }
    }
    return false;
}

status preference_gradients(const struct preference_settings *s,
                            const struct preference_pair *pairs, int64_t count,
                            struct preference_gradient *out)
{
    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = 0; i < s->terms && count > 0; i++) {
        const struct preference_term *term = &s->term[i];
        switch (term->loss) {
        case PREFERENCE_AOT:
        case PREFERENCE_AOT_UNPAIRED:
            TRY(add_aot_term(s, term, pairs, count, out));
            break;
        case PREFERENCE_SFT:
            add_sft_term(term, pairs, count, out);
            break;
        default:
            add_pairwise_terms(s, term, pairs, count, out);
            break;
        }
    }
    return STATUS_OK;
}
