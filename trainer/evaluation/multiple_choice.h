/* Multiple-choice evaluation by log-likelihood: the model's choice is the most probable
 * continuation.
 *
 * A task file is JSON Lines: {"context": TEXT, "choices": [TEXT, ...], "label": index from 0}.
 * As in lm-evaluation-harness, a blank separates context and choice if neither has one, and a blank
 * at the end of the context is moved to the choice.
 *
 *   accuracy               selects by the sum of log-probabilities
 *   accuracy_norm          selects by the sum divided by the choice's bytes
 *   accuracy_norm_tokens   selects by the mean over the choice's tokens (HellaSwag's length
 *                          normalization, as in llm.c) */
#pragma once

#include "datasets/tokenizer/tokenizer.h"
#include "trainer/inference/log_likelihood.h"

struct multiple_choice_report {
    int64_t rows, choices, truncated;                  /* truncated: number of truncated choices */
    double correct, correct_norm, correct_norm_tokens; /* numbers of rows */
};

/* multiple_choice_run - evaluate rows first, first + stride, ... of a task file.
 *
 * Ranks share a file by passing their rank as first and their count as stride.
 *
 * Units     rows_limit: rows of a micro-batch; limit: rows read from the file, 0: all
 * Errors    STATUS_NO_INPUT; STATUS_DATA with file, line and reason */
status multiple_choice_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                           const char *path, int64_t rows_limit, int64_t limit, int64_t first,
                           int64_t stride, struct multiple_choice_report *out);
