/* Model files may contain a parameter under further names. These are the second name of a tied or
 * renamed tensor, and the token table of each stack of an encoder-decoder. */
#pragma once

#include "trainer/formats/huggingface/huggingface_impl.h"

enum { TENSOR_ALIASES_STACKS = 2 };

/* Names of the token tables of the encoder and the decoder, after the prefix of the class. */
extern const char *const tensor_aliases_stack_tables[TENSOR_ALIASES_STACKS];

/* tensor_aliases_find - return the second name of a parameter; NULL if it has none. */
const char *tensor_aliases_find(const struct huggingface_import_job *job, const char *name);

/* tensor_aliases_check - set *is_alias to whether a tensor has a further name of a parameter. Tied
 * tensors must have the same bits. A tensor with an untied second name is not read.
 *
 * Order     job->sources must contain the sources of all parameters
 * Errors    STATUS_DATA: tied tensors differ; STATUS_UNAVAILABLE: a stack has its own token table
 */
status tensor_aliases_check(const struct huggingface_import_job *job,
                            const struct safetensors *file, const struct safetensors_tensor *tensor,
                            bool *is_alias);
