/* Opens the training and validation shards that a recipe names. `bireme plan` uses the same
 * functions as `bireme train`, to check that training would start.
 *
 * Errors of all functions contain the recipe's file, line and key: STATUS_NO_INPUT with the
 * command that creates shards, STATUS_DATA, STATUS_RECIPE. */
#pragma once

#include "base/hash.h"
#include "datasets/loader/loader.h"
#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

/* The recipe, the data-parallel rank that reads, and properties that every shard must have. */
struct data_setup {
    const struct recipe *recipe;
    int rank, ranks; /* of the data-parallel group */
    int64_t vocabulary;
    const char *tokenizer_sha256;       /* NULL: not checked */
    const char *labels_sha256;          /* of the head's label names; NULL: not checked */
    const struct masking *masking;      /* for objective mlm */
    const struct denoise *denoise;      /* for objective denoise */
    int32_t decoder_start;              /* for objectives seq2seq and denoise */
    const double *const *reference;     /* log-probabilities of each training source; NULL: none */
    const double *validation_reference; /* of the validation set; NULL: none */
};

/* Totals of all shards. */
struct data_summary {
    int64_t train_samples;                  /* of one epoch */
    int64_t train_tokens;                   /* of all training shards */
    int64_t evaluate_samples;               /* of one evaluation; 0: none */
    char fingerprint[HASH_TEXT_BYTES];      /* of the training set */
    char tokenizer_sha256[HASH_TEXT_BYTES]; /* of the tokenizer of its first shard; "": unknown */
};

/* data_is_text - return whether the path is a file that is not HDF5 by its name or signature, such
 * as rows that `bireme prepare` has not encoded. */
bool data_is_text(const char *path);

/* data_write_command - write the `bireme prepare` command that creates shards for the objective.
 *
 * options: "--input FILE..." and others
 * Memory    out[bytes]; the end of a longer command is lost */
void data_write_command(const struct recipe *recipe, const char *tokenizer, const char *options,
                        char *out, size_t bytes);

/* data_check_text_pairs - check that the shards at `path` have two texts per example if the model
 * was trained on pairs of texts (data.text_pairs).
 *
 * Errors    STATUS_DATA; as shard_set_read_text_pairs */
status data_check_text_pairs(const struct recipe *recipe, const char *path);

/* data_read_labels - read the label names of the training shards, and set model.num_labels if the
 * recipe leaves it open. Also sets data.text_pairs.
 *
 * Memory    the caller frees *out with free(); NULL: the objective has no labels
 * Errors    STATUS_RECIPE if model.num_labels is a different number */
status data_read_labels(struct recipe *recipe, char **out);

/* data_require_train - check that the recipe names training data.
 *
 * Errors    STATUS_RECIPE */
status data_require_train(const struct recipe *recipe);

/* data_set_vocabulary - set the vocabulary sizes of a loader.
 *
 * Units     vocabulary: number of token ids, of sources if targets have their own */
void data_set_vocabulary(const struct recipe *r, int64_t vocabulary, struct loader_options *out);

/* data_open_train - open the training set at a sample.
 *
 * Memory    the caller releases *out with loader_close */
status data_open_train(const struct data_setup *d, int64_t first_sample, struct loader **out);

/* data_open_validation - open the first `samples` samples of the validation set; 0: all of them,
 * repeated without end. */
status data_open_validation(const struct data_setup *d, int64_t samples, struct loader **out);

/* data_validate - open and check all training and validation shards, count them, and close them. */
status data_validate(const struct data_setup *d, struct data_summary *out);

/* data_count_steps - compute the number of optimizer steps of the recipe.
 *
 * Units     samples: of one epoch; -1: unknown. *out is 0 if train.epochs is set and they are
 *           unknown
 * Errors    STATUS_RECIPE if warm-up and decay have more steps than the run */
status data_count_steps(const struct recipe *recipe, int64_t samples, int64_t *out);
