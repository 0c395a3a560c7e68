/* Frequencies of rotary positions, f_i = theta^(-2 i / D), and how they are slowed down for longer texts:
 *
 *   linear   f / s
 *   llama3   with o positions that the model was first trained with and u = (o f / 2 pi - low) / (high - low), cut to [0, 1]:
 *            u f + (1 - u) f / s. What turns high times or more within o stays, what turns low times or less is slowed.
 *
 * Source    Chen et al. 2023, arXiv:2306.15595; transformers' modeling_rope_utils for Llama 3.1 */
#include <math.h>

#include "kernels/kernels.h"

static double slowed(double frequency, const struct rotary_scaling *s)
{
    double turns = s->positions * frequency / (2 * acos(-1));
    switch (s->kind) {
    case ROTARY_LINEAR:
        return frequency / s->factor;
    case ROTARY_LLAMA3: {
        double stays = fmax(0, fmin(1, (turns - s->low) / (s->high - s->low)));
        return (stays + (1 - stays) / s->factor) * frequency;
    }
    case ROTARY_PLAIN:
        break;
    }
    return frequency;
}

void rotary_angles(float *table, int64_t positions, int64_t head_width, double theta,
                   const struct rotary_scaling *scaling)
{
    int64_t half = head_width / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = slowed(pow(theta, -2.0 * (double)i / (double)head_width), scaling);
        for (int64_t p = 0; p < positions; p++) {
            table[p * head_width + i] = (float)cos((double)p * frequency);
            table[p * head_width + half + i] = (float)sin((double)p * frequency);
        }
    }
}
