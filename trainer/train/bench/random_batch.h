/* A micro-batch of random tokens for any objective, in the layout of the loader. */
#pragma once

#include "datasets/loader/batch.h"
#include "trainer/setup/session.h"

struct random_batch {
    struct batch batch; /* its arrays are in this struct's memory */
    int32_t *inputs, *targets, *positions, *token_type_ids, *cu_rows;
    int32_t *output_rows, *example_rows, *labels, *shared_prefix_offsets;
    int32_t *first_targets, *target_rows, *target_ids;
    int32_t *source_inputs, *source_positions, *source_cu_rows;
    float *float_labels;
    double *reference_logps;
};

/* random_batch_create - fill a micro-batch of batch.micro_size examples without padding: every text
 * has data.sequence_length tokens. The texts of denoise have the mean lengths of
 * derive_sample_lengths.
 *
 * The first half of a text is the prompt, if the objective has prompts. The masked tokens of mlm
 * are evenly spaced. Labels are random. The reference log-probabilities of dpo are computed from a
 * uniform distribution.
 *
 * Memory    the caller releases *out with random_batch_destroy, also after an error
 * Errors    STATUS_INTERNAL out of memory */
status random_batch_create(const struct session *s, struct random_batch *out);

/* random_batch_destroy - free the memory. Accepts a partly created batch. */
void random_batch_destroy(struct random_batch *b);
