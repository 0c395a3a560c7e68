/* Learning rate schedules: a linear warm-up, then a decay to min_ratio times the maximum rate R.
 *
 * With W warm-up steps, T total steps and step s counted from 0:
 *
 *   s < W        R (s + 1) / W
 *   s >= W       R (m + (1 - m) f(p)),  p = (s - W) / (T - W) in [0, 1),  m = min_ratio
 *
 *   constant     f = 1; m has no effect
 *   linear       f = 1 - p
 *   cosine       f = (1 + cos(pi p)) / 2
 *   polynomial   f = (1 - p)^power
 *   polynomial_nvidia  f = (1 - s / T)^power: the decay also counts the warm-up steps
 *   wsd          f = 1 until the last D = decay_ratio T steps, then f = 1 - sqrt(q),
 *                q = (s - (T - D)) / D
 *   inverse_sqrt R sqrt(W / s); without a warm-up R sqrt(10000 / (s + 10000)). T and m have no
 *                effect
 *
 * Source    llm.c (llmc/schedulers.h): s + 1 in the warm-up, so that the rate of the first step is
 *           not 0, and the square root of wsd (Hagele et al. 2024, arXiv:2405.18392). The others
 *           are as in Hugging Face transformers (optimization.py), where polynomial ends at lr_end
 *           = m R. Without a warm-up, the timescale of inverse_sqrt is 10000 there.
 *           polynomial_nvidia is as in NVIDIA's BERT (PolyWarmUpScheduler) */
#pragma once

#include "trainer/recipe/recipe.h"

/* schedule_warmup_steps - compute W: the recipe's steps, or its ratio of total_steps rounded up. */
int64_t schedule_warmup_steps(const struct recipe *recipe, int64_t total_steps);

/* schedule_learning_rate - compute the learning rate of optimizer step `step`, counted from 0.
 *
 * From step T on the rate is constant, except with inverse_sqrt. */
double schedule_learning_rate(const struct recipe *recipe, int64_t step, int64_t total_steps);
