/* The checkpoint that an export reads: recipe, parameters, tokenizer and weights, with the adapters
 * merged into the matrices. export.c writes it as a model folder of transformers,
 * trainer/formats/gguf as a GGUF file. */
#pragma once

#include "base/file.h"
#include "datasets/shard/labels.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/formats/weights/fingerprint.h"
#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

struct export_source {
    struct checkpoint_info found, base; /* base: only if `found` contains adapters alone */
    struct checkpoint_reader *reader;   /* model weights */
    struct checkpoint_reader *adapters; /* adapters and task head; NULL: none */
    bool adapters_only;                 /* export only the adapters, not the model */
    struct fingerprint sums;            /* fingerprint of the model weights read */
    struct recipe recipe;
    const struct huggingface_architecture *architecture;
    int64_t vocabulary;
    struct model_config config;
    struct model_parameter *parameters; /* of the whole model, or the trained ones alone */
    int count;
    struct tokenizer *tokenizer; /* NULL: the checkpoint has none */
    struct labels labels;        /* of the task head; may be empty */
    char tokenizer_folder[FILE_PATH_BYTES];
};

/* Receives the next elements of a tensor, row by row. */
typedef status (*export_sink)(void *user, const float *values, int64_t count);

/* export_source_open - open a checkpoint for an export. The checkpoint is verified first.
 *
 * Memory    the caller calls export_source_close, also after an error
 * Errors    as checkpoint_resolve; STATUS_UNAVAILABLE if the architecture cannot be
 *           exported; STATUS_USAGE if adapters_only and there are no adapters; STATUS_CHECKPOINT
 *           naming a tensor */
status export_source_open(struct export_source *source, const char *checkpoint, bool adapters_only);

/* export_source_close - free everything that export_source_open has allocated. */
status export_source_close(struct export_source *source);

/* export_source_read - pass all elements of a parameter to the sink, in the orientation and with
 * the values of a file of transformers. Adapters are merged.
 *
 * Shapes    buffer [CHECKPOINT_READ_ELEMENTS], working memory
 * Errors    STATUS_CHECKPOINT naming file and tensor; errors of the sink */
status export_source_read(struct export_source *source, int index, float *buffer, export_sink sink,
                          void *user);

/* export_source_check_base - check that the adapters were merged into the base weights that they
 * were trained with. Call it after all parameters have been read.
 *
 * Errors    as adapter_base_check */
status export_source_check_base(const struct export_source *source);
