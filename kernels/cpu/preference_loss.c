/* The losses of preference pairs. This file is compiled once, so that its results do not depend on
 * the instruction set. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/preference_terms.h"

static struct preference_pair get_pair(const struct preference_rows *r, int64_t i)
{
    struct preference_pair pair;
    for (int a = 0; a < RESPONSES; a++) {
        int64_t s = RESPONSES * i + a;
        double logps = 0;
        for (int64_t row = r->first[s]; row < r->first[s + 1]; row++) {
            logps -= (double)r->losses[row];
        }
        preference_set_response(&pair, r, i, a, logps);
    }
    return pair;
}

static void add_pair(double *sums, const struct preference_pair *p, double beta, double loss)
{
    const struct preference_pair_terms terms = preference_get_pair_terms(p, beta, loss);
    for (int t = 0; t < PREFERENCE_PAIR_TERMS; t++) {
        sums[preference_pair_sum(t)] += terms.values[t];
    }
    sums[PREFERENCE_SUM_PAIRS] += 1;
}

static void add_tokens(double *sums, const struct preference_rows *r, int64_t s)
{
    int64_t response = s % RESPONSES;
    double tokens = (double)(r->first[s + 1] - r->first[s]);
    for (int64_t i = r->first[s]; i < r->first[s + 1]; i++) {
        sums[PREFERENCE_SUM_ENTROPY] += (double)r->entropies[i];
        sums[PREFERENCE_SUM_LOGITS_CHOSEN + response] += (double)r->mean_logits[i];
        sums[PREFERENCE_SUM_CORRECT_TOKENS] += response == CHOSEN && r->argmax[i] == r->targets[i];
    }
    sums[PREFERENCE_SUM_TOKENS_CHOSEN + response] += tokens;
    sums[PREFERENCE_SUM_TOKENS] += tokens;
}

status cpu_preference_loss_run(struct kernels *k, double *sums, float *row_scales, double *logps,
                               const struct preference_rows *rows,
                               const struct preference_settings *settings)
{
    (void)k;
    if (sums != NULL) {
        memset(sums, 0, PREFERENCE_SUMS * sizeof *sums);
    }
    for (int64_t i = 0; i < rows->pairs; i++) {
        const struct preference_pair pair = get_pair(rows, i);
        const struct preference_gradient g = preference_get_gradient(rows, settings, &pair, i);
        for (int64_t s = RESPONSES * i; s < RESPONSES * (i + 1); s++) {
            for (int64_t row = rows->first[s]; row < rows->first[s + 1] && row_scales != NULL;
                 row++) {
                row_scales[row] = (float)-g.logps[s % RESPONSES];
            }
            if (sums != NULL) {
                add_tokens(sums, rows, s);
            }
        }
        if (sums != NULL) {
            add_pair(sums, &pair, settings->beta, g.loss);
        }
        if (logps != NULL) {
            memcpy(logps + RESPONSES * i, pair.logps, sizeof pair.logps);
        }
    }
    return STATUS_OK;
}
