/* New special tokens of an imported model: the tokenizer, and rows of the embedding matrices. */
#pragma once

#include "trainer/formats/huggingface/huggingface_impl.h"

/* added_tokens_make_tokenizer - write the tokenizer of job->folder with job->tokens to a new
 * folder, with copies of its other files. *vocab_size receives the number of ids.
 *
 * Errors    STATUS_NO_INPUT if the folder has no tokenizer; as tokenizer_add_special, file_write */
status added_tokens_make_tokenizer(const struct huggingface_import_job *job, const char *output,
                                   int64_t *vocab_size);

/* added_tokens_compute_rows - compute the rows of a parameter that its tensor in the file lacks:
 * out[parameter rows - file rows, columns].
 *
 * Memory    the caller frees *out with free()
 * Numerics  as resize_token_embeddings of transformers: a normal distribution with the mean of the
 *           file's rows and 1e-9 times their covariance; vectors get the mean. Sums in double
 *           precision. The numbers depend only on the seed and the rows.
 * Errors    as safetensors_read; STATUS_INTERNAL (out of memory) */
status added_tokens_compute_rows(const struct huggingface_import_job *job, int index, float **out);
