/* Multiple choice by log-likelihood: which of the given continuations does the model find most probable?
 *
 * A task file is JSON Lines: {"context": TEXT, "choices": [TEXT, ...], "label": index from 0}. As in
 * lm-evaluation-harness, a blank separates context and choice where neither has one, and a blank at the
 * end of the context belongs to the choice. `accuracy` picks by the sum of log-probabilities,
 * `accuracy_norm` by the sum over the choice's bytes, `accuracy_norm_tokens` by the mean over its tokens
 * (HellaSwag's length normalisation, as llm.c has it). */
#pragma once

#include "datasets/tokenizer/tokenizer.h"
#include "trainer/inference/log_likelihood.h"

struct task_report {
    int64_t rows, choices, cut;
    double correct, correct_norm, correct_norm_tokens; /* counts of rows */
};

/* task_run - every `stride`-th row from row `first` on, so that ranks share a file.
 *
 * Units     rows_limit: rows of a micro-batch; at most limit rows of the file are used, 0: all
 * Errors    STATUS_NO_INPUT; STATUS_DATA with file, line and reason */
status task_run(struct kernels *k, struct model *m, const struct tokenizer *t, const char *path,
                int64_t rows_limit, int64_t limit, int64_t first, int64_t stride,
                struct task_report *out);
