/* Sequence to sequence: each token of a target is predicted from its source and the tokens before
 * it (teacher forcing).
 *
 *   loss = -sum_i log p(y_i | x, y_0 .. y_{i-1}) / tokens of the targets
 *
 * Source    Vaswani et al. 2017, arXiv:1706.03762; transformers' ...ForConditionalGeneration */
#include "trainer/objective/objective.h"

static status seq2seq_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    return objective_clm.loss(k, batch, in, gradient, sums);
}

const struct objective objective_seq2seq = {
    .name = "seq2seq", .unit = "tokens", .perplexity = true, .loss = seq2seq_loss};

/* Denoising: seq2seq with sources and targets that the loader makes from texts (denoise.h). */
const struct objective objective_denoise = {
    .name = "denoise", .unit = "tokens", .perplexity = true, .loss = seq2seq_loss};
