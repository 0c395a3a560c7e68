/* The learning rate of each step: a linear warm-up, then the recipe's course down to min_ratio of the
 * highest rate R. With W warm-up steps, T steps in all and step s counted from 0:
 *
 *   s < W        R (s + 1) / W
 *   afterwards   R (m + (1 - m) f(p)),  p = (s - W) / (T - W) in [0, 1),  m = min_ratio
 *
 *   constant     f = 1 and m plays no part
 *   linear       f = 1 - p
 *   cosine       f = (1 + cos(pi p)) / 2
 *   polynomial   f = (1 - p)^power
 *   polynomial_nvidia  f = (1 - s / T)^power: what the warm-up took is not given back
 *   wsd          f = 1 until the last D = decay_ratio T steps, then 1 - sqrt(q), q = (s - (T - D)) / D
 *
 * Source    llm.c (llmc/schedulers.h): s + 1 in the warm-up, so that the first step is not lost, and wsd's
 *           square root (Hagele et al. 2024, arXiv:2405.18392); the rest as in Hugging Face transformers
 *           (optimization.py), whose polynomial ends at lr_end = m R; polynomial_nvidia as in
 *           NVIDIA's BERT (PolyWarmUpScheduler) */
#pragma once

#include "trainer/recipe/recipe.h"

/* schedule_warmup - W: the recipe's steps, or its ratio of total_steps, rounded up. */
int64_t schedule_warmup(const struct recipe *recipe, int64_t total_steps);

/* schedule_rate - the learning rate of optimizer step `step`, from 0; the last value from T on. */
double schedule_rate(const struct recipe *recipe, int64_t step, int64_t total_steps);
