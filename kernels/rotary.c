/* The table of rotary position embedding: cosines and sines of p f_i, f_i = theta^(-2 i / D).
 *
 * For sequences longer than those of pre-training, a frequency f is scaled:
 *
 *   linear   f / s
 *   llama3   u f + (1 - u) f / s, with u = (o f / 2 pi - low) / (high - low) clamped to [0, 1]
 *
 * Here o is original_positions, so that o f / 2 pi is the number of rotations within the context of
 * pre-training. Frequencies with at least `high` rotations are unchanged. Those with at most `low`
 * rotations are divided by s.
 *
 * Source    Chen et al. 2023, arXiv:2306.15595; modeling_rope_utils of Hugging Face transformers,
 *           for Llama 3.1 */
#include <math.h>

#include "kernels/kernels.h"

static double scale_frequency(double frequency, const struct rotary_scaling *s)
{
    double turns = s->original_positions * frequency / (2 * acos(-1));
    switch (s->kind) {
    case ROTARY_LINEAR:
        return frequency / s->factor;
    case ROTARY_LLAMA3: {
        double unscaled =
            fmax(0, fmin(1, (turns - s->low_frequency_factor) /
                                (s->high_frequency_factor - s->low_frequency_factor)));
        return (unscaled + (1 - unscaled) / s->factor) * frequency;
    }
    case ROTARY_PLAIN:
        break;
    }
    return frequency;
}

void rotary_fill_table(float *table, int64_t positions, int64_t head_width, double theta,
                       const struct rotary_scaling *scaling)
{
    int64_t half = head_width / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency =
            scale_frequency(pow(theta, -2.0 * (double)i / (double)head_width), scaling);
        for (int64_t p = 0; p < positions; p++) {
            table[p * head_width + i] = (float)cos((double)p * frequency);
            table[p * head_width + half + i] = (float)sin((double)p * frequency);
        }
    }
}
