/* Imports and exports model folders in the format of Hugging Face's transformers: config.json,
 * model.safetensors (or several files with model.safetensors.index.json) and tokenizer files.
 *
 * A checkpoint stores the same tensors in the same orientation. Both directions therefore copy
 * blocks of 4 MiB and never hold a whole model in memory. */
#pragma once

#include "trainer/formats/huggingface/safetensors.h"
#include "trainer/recipe/recipe.h"

/* Names of the tokenizer files, terminated by NULL. */
extern const char *const huggingface_tokenizer_files[];

struct huggingface_summary {
    int64_t parameters;
    int tensors, files; /* of the model folder's weights */
    bool tokenizer;
};

/* huggingface_import - convert a model folder to a checkpoint of weights only, like run_dir/final.
 *
 * `objective` is required if the class supports several (config.h); with NULL it follows from
 * config.json. *recipe receives the recipe of the checkpoint: the settings of config.json and
 * defaults. `tokens` are further special tokens; the embedding grows if the tokenizer then has more
 * ids than the model (added_tokens.h).
 *
 * Errors    STATUS_NO_INPUT, also for tokens without a tokenizer; STATUS_DATA naming file, place
 *           and reason; STATUS_UNAVAILABLE for an unsupported setting of config.json; STATUS_CREATE
 *           if output exists; STATUS_WRITE; as tokenizer_add_special */
status huggingface_import(const char *folder, const char *objective, const char *output,
                          char *const *tokens, int token_count, struct recipe *recipe,
                          struct huggingface_summary *summary);

/* huggingface_is_adapter_folder - return whether a folder contains adapters in peft's format. */
bool huggingface_is_adapter_folder(const char *folder);

/* huggingface_import_adapter - convert a folder in peft's format to a checkpoint of adapters and of
 * the task head.
 *
 * `base` is the checkpoint of the base model; with NULL, the path in adapter_config.json is used.
 * Tensors of the head that are missing in the folder are copied from the base model.
 *
 * Errors    as huggingface_import; STATUS_USAGE if there is no base model */
status huggingface_import_adapter(const char *folder, const char *base, const char *output,
                                  struct recipe *recipe, struct huggingface_summary *summary);

/* huggingface_export - convert a checkpoint of any parallel layout to a model folder.
 *
 * The checkpoint is verified first. If `adapter` is true, only the adapters are written, in peft's
 * format. Otherwise they are merged into the matrices.
 *
 * Numerics  SAFETENSORS_F32: the same bits; SAFETENSORS_BF16: rounded to nearest even; merges are
 *           summed in double precision and rounded once
 * Errors    as checkpoint_resolve; STATUS_CREATE if output exists; STATUS_WRITE */
status huggingface_export(const char *checkpoint, const char *output, enum safetensors_dtype dtype,
                          bool adapter, struct huggingface_summary *summary);
