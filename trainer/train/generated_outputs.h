/* Outputs that the model generates during training: a text after a prompt (generate.prompt), tasks
 * (evaluate.tasks) and targets (evaluate.generate). */
#pragma once

#include "trainer/train/job.h"

/* generated_outputs_encode_prompt - encode the prompt of the recipe.
 *
 * Memory    appends to *ids, which the caller frees with token_list_free()
 * Errors    STATUS_RECIPE if the prompt leaves no token of data.sequence_length for the text */
status generated_outputs_encode_prompt(const struct recipe *recipe,
                                       const struct tokenizer *tokenizer, struct token_list *ids);

/* generated_outputs_bytes - return the planned memory of these outputs, which are not generated at
 * the same time; 0 if the recipe has none. */
int64_t generated_outputs_bytes(const struct recipe *recipe, const struct model_config *config,
                                enum dtype dtype);

/* generated_outputs_run_prompt - generate a text after generate.prompt with the current weights,
 * and write it to metrics.jsonl. Each tensor-parallel group computes the same text.
 *
 * Order     collective, between two steps
 * Errors    STATUS_NOT_FINITE, STATUS_INTERNAL: the same on all ranks. *written is the status of
 *           the write to metrics.jsonl, on this rank only */
status generated_outputs_run_prompt(struct job *job, status *written);

/* generated_outputs_open_tasks - read the tasks of evaluate.tasks, and check evaluate.metric and
 * the length of the outputs.
 *
 * Memory    the caller calls task_set_close, also after an error
 * Errors    as task_set_open, and STATUS_RECIPE, at the key */
status generated_outputs_open_tasks(const struct recipe *recipe, struct task_set *out);

/* generated_outputs_check_tasks - check that generated_outputs_open_tasks succeeds. */
status generated_outputs_check_tasks(const struct recipe *recipe);

/* generated_outputs_run_tasks - run evaluate.tasks with the current weights, and append the metrics
 * to fields. If `poll` reports a stop, the tasks end and fields gets no metric.
 *
 * Shapes    fields has room for TASK_SET_FIELDS further ones after *count
 * Memory    names receives the names of the metrics
 * Order     collective, between two steps
 * Errors    as task_run; the same on all ranks */
status generated_outputs_run_tasks(struct job *job, const struct stop_poll *poll,
                                   struct task_field names[TASK_SET_FIELDS], struct metric *fields,
                                   int *count);

/* generated_outputs_check_targets - check that generated_outputs_prepare_targets succeeds.
 *
 * Units     vocabulary: of the model; tokenizer NULL: no warnings are logged */
status generated_outputs_check_targets(const struct recipe *recipe, int64_t vocabulary,
                                       const struct tokenizer *tokenizer);

/* generated_outputs_prepare_targets - read the settings of generation; nothing without
 * evaluate.generate.
 *
 * Order     after session_start
 * Errors    STATUS_RECIPE; STATUS_DATA, STATUS_UNAVAILABLE for generation_config.json of the
 *           tokenizer */
status generated_outputs_prepare_targets(struct job *job);

/* generated_outputs_score_targets - generate the targets of the validation set with the current
 * weights, and append their scores to fields. Without evaluate.generate, and if `poll` reports a
 * stop, fields gets no score.
 *
 * Shapes    fields has room for TEXT_METRICS further ones after *count
 * Order     collective, between two steps
 * Errors    as target_scores_run; the same on all ranks */
status generated_outputs_score_targets(struct job *job, const struct stop_poll *poll,
                                       struct metric *fields, int *count);
