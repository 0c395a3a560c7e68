/* Adapters on their way to model folders: put into the matrices that they are beside, or as peft saves them. */
#pragma once

#include <stdio.h>

#include "trainer/checkpoint/reader.h"
#include "trainer/model/model.h"
#include "trainer/huggingface/architectures.h"
#include "trainer/recipe/recipe.h"

/* One matrix's adapter, whole. */
struct pretrained_adapter {
    float *in, *out; /* A [rank, inputs], B [outputs, rank]; NULL: there is none */
    int64_t rank, inputs;
    float scale;
};

/* pretrained_adapter_read - the parameter's adapter from a checkpoint of adapters, if it has one there.
 *
 * Memory    *out is for pretrained_adapter_free
 * Errors    STATUS_CHECKPOINT where its shapes are not those of the recipe's rank */
status pretrained_adapter_read(struct checkpoint_reader *adapters, const struct recipe *recipe,
                               const struct model_parameter *p, struct pretrained_adapter *out);
void pretrained_adapter_free(struct pretrained_adapter *adapter);

/* pretrained_adapter_merge - block += scale B A, for this box of the matrix as its file has it.
 *
 * Numerics  sums in double precision, rounded once */
void pretrained_adapter_merge(const struct pretrained_adapter *adapter, bool transposed,
                              const int64_t offset[2], const int64_t shape[2], float *block);

/* pretrained_adapter_name - what peft calls a parameter that is trained beside a frozen model. */
enum { PRETRAINED_NAME_BYTES = MODEL_NAME_BYTES + 32 };
void pretrained_adapter_name(const struct pretrained_family *family,
                             const struct model_config *config,
                             const struct model_parameter *parameter,
                             char out[PRETRAINED_NAME_BYTES]);

/* pretrained_adapter_config - peft's adapter_config.json; parameters: those of the adapters and of a task's head. */
status pretrained_adapter_config(const struct recipe *recipe, const struct model_config *config,
                                 const struct model_parameter *parameters, int count, FILE *file);
