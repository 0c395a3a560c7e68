/* Outputs of the model during training: samples (generate.prompt), tasks (evaluate.tasks) and
 * generated targets (evaluate.generate). */
#pragma once

#include "trainer/train/job.h"

/* sample_encode - encode the prompt of the recipe.
 *
 * Memory    appends to *ids, which the caller frees with token_list_free()
 * Errors    STATUS_RECIPE if the prompt leaves no token of data.sequence_length for the sample */
status sample_encode(const struct recipe *recipe, const struct tokenizer *tokenizer,
                     struct token_list *ids);

/* sample_bytes - return the planned memory of samples, tasks and generated targets, which do not
 * run at the same time; 0 if the recipe has none. */
int64_t sample_bytes(const struct recipe *recipe, const struct model_config *config,
                     enum dtype dtype);

/* sample_run - generate a sample with the current weights, and write it to metrics.jsonl. Each
 * tensor-parallel group computes the same text.
 *
 * Order     collective, between two steps
 * Errors    STATUS_NOT_FINITE, STATUS_INTERNAL: the same on all ranks. *written is the status of
 *           the write to metrics.jsonl, on this rank only */
status sample_run(struct job *job, status *written);

/* sample_open_tasks - read the tasks of evaluate.tasks, and check evaluate.metric and the length of
 * the outputs.
 *
 * Memory    the caller calls task_set_close, also after an error
 * Errors    those of task_set_open, and STATUS_RECIPE, at the key */
status sample_open_tasks(const struct recipe *recipe, struct task_set *out);

/* sample_check_tasks - check that sample_open_tasks succeeds. */
status sample_check_tasks(const struct recipe *recipe);

/* sample_run_tasks - run evaluate.tasks with the current weights, and append the metrics to fields.
 * A stop of poll ends them; fields then gets no metric.
 *
 * Shapes    fields has room for TASK_SET_FIELDS further ones after *count
 * Memory    names receives the names of the metrics
 * Order     collective, between two steps
 * Errors    those of task_run; the same on all ranks */
status sample_run_tasks(struct job *job, const struct stop_poll *poll,
                        struct task_field names[TASK_SET_FIELDS], struct metric *fields,
                        int *count);

/* sample_check_targets - check that sample_prepare_targets succeeds.
 *
 * Units     vocabulary: of the model; tokenizer NULL: no warnings are logged */
status sample_check_targets(const struct recipe *recipe, int64_t vocabulary,
                            const struct tokenizer *tokenizer);

/* sample_prepare_targets - read the settings of generation; nothing without evaluate.generate.
 *
 * Order     after session_start
 * Errors    STATUS_RECIPE; STATUS_DATA, STATUS_UNAVAILABLE for generation_config.json of the
 *           tokenizer */
status sample_prepare_targets(struct job *job);

/* sample_score_targets - generate the targets of the validation set with the current weights, and
 * append their scores to fields. Without evaluate.generate, and after a stop of poll, fields gets
 * no score.
 *
 * Shapes    fields has room for TEXT_METRICS further ones after *count
 * Order     collective, between two steps
 * Errors    those of target_scores_run; the same on all ranks */
status sample_score_targets(struct job *job, const struct stop_poll *poll, struct metric *fields,
                            int *count);
