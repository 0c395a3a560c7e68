/* The losses are defined in kernels/preference_loss.h. */
#include "trainer/objective/preference.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/preference_batch.h"

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
    struct preference_ranked *ranked = NULL;
    TRY(ALLOCATE(ranked, 2 * count + 1, "pairs"));
    preference_batch_compute(out, ranked, pairs, count, s);
    free(ranked);
    return STATUS_OK;
}
