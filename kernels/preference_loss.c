/* Checks the arguments of preference_loss_run and calls the operation of the back-end. */
#include "kernels/checks.h"

static status check_settings(const struct preference_rows *r, const struct preference_settings *s)
{
    for (int i = 0; i < s->terms; i++) {
        enum preference_loss loss = s->term[i].loss;
        bool reads_batch = loss == PREFERENCE_AOT || loss == PREFERENCE_AOT_UNPAIRED ||
                           loss == PREFERENCE_SFT || loss >= PREFERENCE_LOSSES;
        REQUIRE(!reads_batch || r->gradients != NULL, STATUS_INTERNAL,
                "preference_loss_run: loss %d reads the whole batch and there are no gradients",
                (int)loss);
    }
    return STATUS_OK;
}

status preference_loss_run(struct kernels *k, double *sums, float *row_scales, double *logps,
                           const struct preference_rows *rows,
                           const struct preference_settings *settings)
{
    PRESENT(rows->first);
    PRESENT(rows->losses);
    if (sums != NULL) {
        PRESENT(rows->entropies);
        PRESENT(rows->mean_logits);
        PRESENT(rows->argmax);
        PRESENT(rows->targets);
    }
    REQUIRE(rows->pairs >= 0 && rows->rows >= RESPONSES * rows->pairs &&
                (rows->gradients == NULL || rows->gradient_count > 0),
            STATUS_INTERNAL, "preference_loss_run: %" PRId64 " rows for %" PRId64 " pairs",
            rows->rows, rows->pairs);
    TRY(check_settings(rows, settings));
    DISPATCH(k, preference_loss_run, 10 * (double)rows->rows, 24 * (double)rows->rows, k, sums,
             row_scales, logps, rows, settings);
}
