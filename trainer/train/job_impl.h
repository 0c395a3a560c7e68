/* Functions that the files of job.h share. */
#pragma once

#include "trainer/setup/data.h"
#include "trainer/train/job.h"

/* job_get_data_setup - return the recipe with the properties that its shards must have. */
struct data_setup job_get_data_setup(const struct job *job);

/* job_restore_best - restore the best evaluation up to the resumed step: rank 0 reads it from
 * metrics.jsonl and broadcasts it.
 *
 * Order     collective
 * Errors    as early_stopping_restore; the same on all ranks */
status job_restore_best(struct job *job);

/* job_check_finished - set job->finished if the run has done all steps and has its final weights.
 *
 * Order     collective */
status job_check_finished(struct job *job);

/* job_write_recipe_text - write a recipe in YAML to a new text.
 *
 * Memory    the caller frees *out, also after an error
 * Errors    as recipe_write */
status job_write_recipe_text(const struct recipe *recipe, char **out);

/* job_has_adapters - return whether the run trains adapters. */
bool job_has_adapters(const struct job *job);

/* job_initialize_weights - set the weights at the start of a run: random, or from model.init_from.
 *
 * Order     collective
 * Errors    agreed on all ranks */
status job_initialize_weights(struct job *job);

/* job_initialize_before_resume - initialize the weights before a checkpoint is read, if some are
 * frozen or there is a reference model.
 *
 * Order     collective
 * Errors    as job_initialize_weights */
status job_initialize_before_resume(struct job *job);

/* job_compute_reference - compute the log-probabilities of the reference model, which has the
 * initial weights. Their fingerprint becomes part of the data fingerprint, which a resumed
 * checkpoint must match.
 *
 * Order     collective
 * Errors    as reference_logprobs_compute */
status job_compute_reference(struct job *job);

/* job_open_checkpoints - open the checkpoints of the run folder.
 *
 * Order     collective
 * Errors    as checkpoint_open */
status job_open_checkpoints(struct job *job);

/* job_reserve_snapshot - allocate the snapshot at the start, so that the first save stalls no
 * longer than later ones, and check the space on the disk.
 *
 * Order     collective
 * Errors    as checkpoint_reserve */
status job_reserve_snapshot(struct job *job);

/* job_resume_or_initialize - load the newest or the given checkpoint; without one, initialize the
 * weights.
 *
 * Order     collective
 * Errors    agreed on all ranks */
status job_resume_or_initialize(const struct job_options *options, struct job *job);

/* job_release_full_weights - with ZeRO and bf16, release the f32 weights of other ranks. From here
 * on, a rank keeps and saves its own shards.
 *
 * Errors    as sharded_optimizer_release_weights */
status job_release_full_weights(struct job *job);
