#include "trainer/inference/prediction/top_scores.h"

#include <math.h>

int64_t top_scores_select(const float *logits, int64_t count, int64_t top_k, struct top_score *out)
{
    int64_t kept = 0;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = kept < top_k ? kept++ : top_k;
        for (; slot > 0 && logits[i] > logits[out[slot - 1].index]; slot--) {
            if (slot < top_k) {
                out[slot] = out[slot - 1];
            }
        }
        if (slot < top_k) {
            out[slot].index = i;
        }
    }
    for (int64_t i = 0; i < count && kept > 0; i++) {
        sum += exp((double)logits[i] - (double)logits[out[0].index]);
    }
    for (int64_t i = 0; i < kept; i++) {
        out[i].probability = exp((double)logits[out[i].index] - (double)logits[out[0].index]) / sum;
    }
    return kept;
}
