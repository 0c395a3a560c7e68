/* Exports adapters: merged into the matrices of the base model, or in peft's format. */
#pragma once

#include <stdio.h>

#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

/* The adapter of one matrix, not split across ranks. */
struct adapter_weights {
    float *a, *b; /* A [rank, input_width], B [outputs, rank]; NULL: no adapter */
    int64_t rank, input_width;
    float scale;
};

/* adapter_export_read - read the adapter of a parameter from a checkpoint of adapters.
 *
 * A parameter without an adapter gives a == b == NULL.
 *
 * Memory    the caller frees *out with adapter_export_free()
 * Errors    STATUS_CHECKPOINT if a shape differs from the rank in the recipe */
status adapter_export_read(struct checkpoint_reader *adapters, const struct recipe *recipe,
                           const struct model_parameter *p, struct adapter_weights *out);

/* adapter_export_free - free the matrices of an adapter. */
void adapter_export_free(struct adapter_weights *adapter);

/* adapter_export_merge - add scale B A to a block of the matrix.
 *
 * Shapes    block f32 [shape[0], shape[1]], at `offset` of the matrix, in the orientation of the
 *           file: [inputs, outputs] if `transposed` is true, otherwise [outputs, inputs]
 * Numerics  sums in double precision, rounded once */
void adapter_export_merge(const struct adapter_weights *adapter, bool transposed,
                          const int64_t offset[2], const int64_t shape[2], float *block);

enum { HUGGINGFACE_NAME_BYTES = MODEL_NAME_BYTES + 32 };

/* adapter_export_name - compute peft's name of a trained parameter of a frozen model. */
void adapter_export_name(const struct huggingface_architecture *architecture,
                         const struct model_config *config, const struct model_parameter *parameter,
                         char out[HUGGINGFACE_NAME_BYTES]);

/* adapter_export_write_config - write peft's adapter_config.json.
 *
 * Shapes    parameters [count]: the parameters of the adapters and of the task head
 * Errors    STATUS_INTERNAL if memory runs out */
status adapter_export_write_config(const struct recipe *recipe, const struct model_config *config,
                                   const struct model_parameter *parameters, int count, FILE *file);
