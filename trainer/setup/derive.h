/* Computes from a recipe: the configuration of the model, the limits of the kernels, the sizes of
 * micro-batches, and the settings of masking and preference losses. */
#pragma once

#include "datasets/loader/denoise.h"
#include "datasets/loader/loader.h"
#include "datasets/loader/masking.h"
#include "datasets/tokenizer/tokenizer.h"
#include "kernels/kernels.h"
#include "trainer/model/model.h"
#include "trainer/objective/preference.h"
#include "trainer/recipe/recipe.h"

/* derive_model_config - return the configuration of the recipe's model.
 *
 * Units     vocabulary: number of token ids, of sources if targets have their own */
struct model_config derive_model_config(const struct recipe *recipe, int64_t vocabulary);

/* derive_separate_embeddings - return whether encoder and decoder have a token table each. */
bool derive_separate_embeddings(const struct recipe *recipe);

/* derive_decoder_vocabulary - return the number of token ids of the decoder: `vocabulary`, the
 * number of token ids, unless model.decoder_vocab_size sets it. */
int64_t derive_decoder_vocabulary(const struct recipe *recipe, int64_t vocabulary);

/* derive_reads_last_row - return whether a head for sequences reads the last row of a
 * sequence. Encoders read the first row. */
bool derive_reads_last_row(const struct recipe *recipe);

/* derive_window - return the window of attention in rows; 0: none, or one that covers all
 * positions of the model. */
int64_t derive_window(const struct recipe *recipe);

/* derive_decoder_start - return the first input of a decoder. It is model.decoder_start_token_id if
 * it is set, or the padding token of the tokenizer for t5, else its end token. -1: there is none,
 * or it is the language of the target (mbart). */
int32_t derive_decoder_start(const struct recipe *recipe, const struct tokenizer *tokenizer);

/* derive_dropout_scheme - return the number of the dropout scheme of training: DROPOUT_SCHEME, or 3
 * for T5. Scheme 3 has the bits of DROPOUT_SCHEME at more sites (model_extra_site). */
int derive_dropout_scheme(const struct recipe *recipe);

/* derive_first_input - return the first decoder input of training batches: derive_decoder_start, or
 * LOADER_START_LAST for mbart. */
int32_t derive_first_input(const struct recipe *recipe, const struct tokenizer *tokenizer);

/* derive_masking - compute the masking settings of objective mlm.
 *
 * Without a tokenizer that has a mask token, only shards with stored masks can be read.
 *
 * Memory    the caller frees out->kinds with free()
 * Errors    STATUS_INTERNAL out of memory */
status derive_masking(const struct recipe *recipe, const struct tokenizer *tokenizer,
                      int64_t vocabulary, struct masking *out);

/* derive_denoise - compute the corruption of objective denoise. Other objectives have none.
 *
 * Memory    the caller frees out->sentence_ends with free()
 * Errors    STATUS_INTERNAL (out of memory) */
status derive_denoise(const struct recipe *recipe, const struct tokenizer *tokenizer,
                      int64_t vocabulary, struct denoise *out);

/* Tokens of a sample. */
struct sample_lengths {
    double source; /* of an encoder-decoder; 0 for other models */
    double target; /* of other models: the sequence */
};

/* derive_sample_lengths - compute the lengths of a sample.
 *
 * They are data.sequence_length, and with the objective denoise the means over 64 corruptions of
 * the seed.
 *
 * Errors    STATUS_INTERNAL out of memory */
status derive_sample_lengths(const struct recipe *recipe, struct sample_lengths *out);

/* derive_precision_name - return "fp32", "bf16" or "fp8". */
const char *derive_precision_name(const struct recipe *recipe);

/* derive_has_delayed_scales - return whether the run trains in FP8 with scales from past steps. */
bool derive_has_delayed_scales(const struct recipe *recipe);

/* derive_check_fp8 - check that train.precision fp8 fits the model.
 *
 * Errors    STATUS_RECIPE if no matrix is in FP8, or if a size is not a multiple of
 *           FP8_MULTIPLE */
status derive_check_fp8(const struct recipe *recipe, const struct model_config *config);

/* derive_kernel_limits - return the largest sizes that the kernels have to support.
 *
 * Units     rows: of a micro-batch; sequence: rows of the longest sequence; tensor: ranks that
 *           share the model */
struct kernels_limits derive_kernel_limits(const struct model_config *config, int tensor,
                                           int64_t rows, int64_t sequence, bool training);

/* derive_sample_rows - return the maximum number of rows of a sample.
 *
 * A preference pair or a pair to embed has two sequences. A multiple-choice example has one
 * sequence per choice. */
int64_t derive_sample_rows(const struct recipe *recipe);

/* derive_rows - return the maximum number of rows of a micro-batch. */
int64_t derive_rows(const struct recipe *recipe);

/* derive_longest_sequence - return the maximum number of rows that attend to each other: a
 * sequence, or a prompt with both of its responses. */
int64_t derive_longest_sequence(const struct recipe *recipe);

/* derive_preference - compute the settings of the recipe's sections dpo and reward.
 *
 * Errors    STATUS_RECIPE at the key, if settings contradict each other or dpo has no initial
 *           model */
status derive_preference(const struct recipe *recipe, struct preference_settings *out);

/* derive_preference_loss - compute the same settings for a model without an initial model. */
status derive_preference_loss(const struct recipe *recipe, struct preference_settings *out);

/* derive_micro_batches - return the micro-batches of a step on the rank with the most. */
int64_t derive_micro_batches(const struct recipe *recipe, int data_ranks);

/* derive_all_micro_batches - return the micro-batches of a step over all ranks, if the global batch
 * is split into micro-batches before it is distributed (parallel.reproducible). */
int64_t derive_all_micro_batches(const struct recipe *recipe);

/* derive_moment_dtype - return the type of the optimizer's moments (optimizer.state_dtype). */
enum dtype derive_moment_dtype(const struct recipe *recipe);

/* derive_bucket_elems - return the f32 elements of a bucket of parallel.bucket_mib. */
int64_t derive_bucket_elems(const struct recipe *recipe);
