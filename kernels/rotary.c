/* The table of rotary position embedding: cosines and sines of p f_i, f_i = theta^(-2 i / R).
 * R is the number of rotated columns of a head.
 *
 * For sequences longer than in pre-training, a frequency f is scaled:
 *
 *   linear   f / s
 *   llama3   u f + (1 - u) f / s, with u = (o f / 2 pi - low) / (high - low) clamped to [0, 1]
 *   yarn     (1 - r) f + r f / s, with r = (i - first) / (last - first) clamped to [0, 1]
 *   dynamic  f of the base theta (s p / o - s + 1)^(R / (R - 2)), for a context p above o
 *   longrope f / c_i, with a constant for each i
 *
 * Here o is original_positions, so that o f / 2 pi is the number of rotations within the context of
 * pre-training. Frequencies with at least `high` rotations are unchanged. Those with at most `low`
 * rotations are divided by s. YaRN interpolates over the index i instead: `first` is the last index
 * with at least beta_fast rotations, and `last` is the first index with at most beta_slow. YaRN and
 * LongRoPE multiply the table by the attention factor, which makes the scores of attention larger.
 *
 * Source    Chen et al. 2023, arXiv:2306.15595; Peng et al. 2023, arXiv:2309.00071 (also of the
 *           dynamic base); Ding et al. 2024, arXiv:2402.13753; modeling_rope_utils of Hugging
 *           Face transformers */
#include <math.h>

#include "kernels/kernels.h"

/* Computes the index, which is not an integer, of the frequency with this number of rotations. */
static double find_index(double turns, int64_t width, double theta, const struct rotary_scaling *s)
{
    return (double)width * log(s->original_positions / (turns * 2 * acos(-1))) / (2 * log(theta));
}

/* Computes YaRN's share of f / s at index i. */
static double compute_yarn_ramp(int64_t i, int64_t width, double theta,
                                const struct rotary_scaling *s)
{
    double first = fmax(floor(find_index(s->beta_fast, width, theta, s)), 0);
    double last = fmin(ceil(find_index(s->beta_slow, width, theta, s)), (double)width - 1);
    last += first == last ? 0.001 : 0; /* as transformers does */
    return fmax(0, fmin(1, ((double)i - first) / (last - first)));
}

/* Computes the base of ROTARY_DYNAMIC. With it, the lowest frequency covers the context as f / s
 * would, and the highest one, f_0, stays 1. */
static double compute_dynamic_base(int64_t width, double theta, const struct rotary_scaling *s)
{
    double ratio = fmax(s->positions / s->original_positions, 1);
    return theta * pow(s->factor * ratio - s->factor + 1, (double)width / (double)(width - 2));
}

double rotary_frequency(int64_t i, int64_t width, double theta, const struct rotary_scaling *s)
{
    double frequency = pow(theta, -2.0 * (double)i / (double)width);
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
    case ROTARY_YARN: {
        double scaled = compute_yarn_ramp(i, width, theta, s);
        return (1 - scaled + scaled / s->factor) * frequency;
    }
    case ROTARY_DYNAMIC:
        return pow(compute_dynamic_base(width, theta, s), -2.0 * (double)i / (double)width);
    case ROTARY_LONGROPE:
        return frequency / s->pair_factors[i];
    case ROTARY_PLAIN:
        break;
    }
    return frequency;
}

double rotary_attention_factor(const struct rotary_scaling *s)
{
    switch (s->kind) {
    case ROTARY_YARN:
        return s->attention_factor != 0 ? s->attention_factor : 0.1 * log(s->factor) + 1;
    case ROTARY_LONGROPE:
        return s->attention_factor != 0 ? s->attention_factor
               : s->factor > 1          ? sqrt(1 + log(s->factor) / log(s->original_positions))
                                        : 1;
    default:
        return 1;
    }
}

void rotary_fill_table(float *table, int64_t positions, int64_t width, double theta,
                       const struct rotary_scaling *scaling)
{
    int64_t half = width / 2;
    double size = rotary_attention_factor(scaling);
    for (int64_t i = 0; i < half; i++) {
        double frequency = rotary_frequency(i, width, theta, scaling);
        for (int64_t p = 0; p < positions; p++) {
            table[p * width + i] = (float)(size * cos((double)p * frequency));
            table[p * width + half + i] = (float)(size * sin((double)p * frequency));
        }
    }
}
