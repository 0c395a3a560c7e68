/* Rotary position embeddings (RoPE). kernels.h states the conventions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

struct kernels;

/* The scaling of the frequencies for sequences that are longer than in pre-training. */
enum rotary_kind {
    ROTARY_PLAIN = 0,
    ROTARY_LINEAR,
    ROTARY_LLAMA3,
    ROTARY_YARN,
    ROTARY_DYNAMIC,
    ROTARY_LONGROPE
};

enum { ROTARY_PAIRS_MAX = 128 }; /* largest R / 2 of ROTARY_LONGROPE */

struct rotary_scaling {
    enum rotary_kind kind;
    double factor;
    double original_positions; /* context of pre-training; not for ROTARY_PLAIN and _LINEAR */
    double positions;          /* ROTARY_DYNAMIC: context for which the base is computed */
    /* limits in rotations within original_positions: of ROTARY_LLAMA3, and of ROTARY_YARN */
    double low_frequency_factor, high_frequency_factor, beta_slow, beta_fast;
    /* factor of the table; 0: 0.1 ln(factor) + 1 for ROTARY_YARN, sqrt(1 + ln(factor) /
     * ln(original_positions)) for ROTARY_LONGROPE */
    double attention_factor;
    double pair_factors[ROTARY_PAIRS_MAX]; /* ROTARY_LONGROPE: divisors of the frequencies */
};

/* rotary_frequency - compute the scaled frequency f_i of the pair i = 0 .. R/2 - 1 of a head.
 *
 * Numerics  in double precision
 * Source    as rotary_fill_table; width is R */
double rotary_frequency(int64_t i, int64_t width, double theta,
                        const struct rotary_scaling *scaling);

/* rotary_attention_factor - return the factor of the table. It is external only for tests.
 *
 * Source    as rotary_fill_table */
double rotary_attention_factor(const struct rotary_scaling *scaling);

/* rotary_fill_table - compute the table of cosines and sines for rotary_apply.
 *
 * Shapes    table f32 [P, R] in host memory; row p holds cos(p f_i) for i = 0 .. R/2 - 1, then
 *           sin(p f_i), with f_i = theta^(-2 i / R), scaled
 * Numerics  angles in double precision
 * Source    Su et al. 2021, arXiv:2104.09864; scaling: Chen et al. 2023, arXiv:2306.15595;
 *           YaRN: Peng et al. 2023, arXiv:2309.00071; LongRoPE: Ding et al. 2024,
 *           arXiv:2402.13753 */
void rotary_fill_table(float *table, int64_t positions, int64_t width, double theta,
                       const struct rotary_scaling *scaling);

/* rotary_apply - rotate the pairs (i, i + R/2) of each head in place by the angles of the row.
 *
 * The last D - R columns of a head are unchanged (partial rotary positions). inverse rotates back,
 * which is also the backward pass.
 *
 * Shapes    x [N, h D] for any number of heads h, so that adjacent queries and keys are rotated in
 *           one call;  table f32 [P, R], R even and at most D = head_width;  positions int32 [N]
 * Errors    positions are not checked; the caller guarantees values in [0, P)
 * Source    Su et al. 2021, arXiv:2104.09864; pairs of halves as in Hugging Face's Llama */
status rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                    const int32_t *positions, int64_t head_width, bool inverse);
