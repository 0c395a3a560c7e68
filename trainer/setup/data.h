/* What a job reads: its training and held-out shards. `train` opens them so, and `bireme plan` does
 * too, to know that `train` would start.
 *
 * Errors    name the recipe's file, line and key: STATUS_NO_INPUT with the command that makes shards,
 *           STATUS_DATA, STATUS_RECIPE */
#pragma once

#include "base/hash.h"
#include "datasets/loader/loader.h"
#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

/* Whose share is read, and what every shard must agree with. */
struct job_data {
    const struct recipe *recipe;
    int rank, ranks; /* of the data-parallel group */
    int64_t vocabulary;
    const char *tokenizer_sha256;   /* NULL: not checked */
    const char *labels_sha256;      /* likewise; of the names that the model's head has */
    const struct masking *masking;  /* where the objective is mlm */
    const double *const *reference; /* of each training source (loader.h); NULL: none */
    const double *held_reference;   /* of the held-out set; NULL: none */
};

struct job_data_survey {
    int64_t train_samples, train_tokens; /* of an epoch; of all shards */
    int64_t evaluate_samples;            /* of one evaluation; 0: none */
    char fingerprint[HASH_TEXT_BYTES];   /* of the training set */
};

/* job_data_kind - what the recipe's objective reads: windows of text, or examples. */
enum example_kind job_data_kind(const struct recipe *recipe);

/* job_data_task - what the head of the recipe's model is for. */
enum model_task job_data_task(const struct recipe *recipe);

/* job_data_last_rows - whether the head of a task reads a text's last row, not its first. */
bool job_data_last_rows(const struct recipe *recipe);

/* job_data_labels - the names of labels that the training shards have, and their number into the recipe where it leaves
 * that open. *out (labels.h) is the caller's, for free(); NULL: the objective has none.
 *
 * Errors    as job_data_train; STATUS_RECIPE: model.num_labels is another number */
status job_data_labels(struct recipe *recipe, char **out);

/* job_data_named - whether the recipe names training data at all.  Errors: STATUS_RECIPE */
status job_data_named(const struct recipe *recipe);

/* job_data_packing - the recipe's rules for packing; false: its objective has no such examples. */
bool job_data_packing(const struct recipe *recipe, struct packing_rules *out);

/* job_data_has_reference - whether pairs are measured against a reference: dpo. */
bool job_data_has_reference(const struct recipe *recipe);

/* job_data_shares_prompt - whether a pair's answers share one prompt: as the recipe says, or where it is faster. */
bool job_data_shares_prompt(const struct recipe *recipe);

/* job_data_train - the training set, from this sample on. */
status job_data_train(const struct job_data *d, int64_t first_sample, struct loader **out);

/* job_data_validation - the first `samples` of the held-out part; 0: all of it, again and again. */
status job_data_validation(const struct job_data *d, int64_t samples, struct loader **out);

/* job_data_survey - open and check every shard, training and held-out, and close them again. */
status job_data_survey(const struct job_data *d, struct job_data_survey *out);

/* job_data_steps - optimizer steps of the recipe with so many samples an epoch; 0 where it asks for
 * epochs and the samples are unknown (-1).
 *
 * Errors    STATUS_RECIPE: the warm-up's steps, or these and wsd's decay, are more */
status job_data_steps(const struct recipe *recipe, int64_t samples, int64_t *out);
