/* Model folders as Hugging Face's transformers saves and loads them: config.json, model.safetensors (or several
 * files with model.safetensors.index.json) and the tokenizer's files. A checkpoint has the same tensors in the
 * same orientation, so that both ways copy blocks of 4 MiB and never hold a model. */
#pragma once

#include "trainer/recipe/recipe.h"
#include "trainer/huggingface/safetensors.h"

/* The tokenizer's files, up to a NULL. */
extern const char *const pretrained_tokenizer_files[];

struct pretrained_summary {
    int64_t parameters;
    int tensors, files; /* of the model folder's weights */
    bool tokenizer;
};

/* pretrained_import - a checkpoint of weights alone (as run_dir/final) from a model folder.
 *
 * objective what it is for, where its class leaves that open (pretrained_config.h); NULL: as config.json says
 * *recipe   what the checkpoint keeps: config.json's settings, else defaults
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, place and reason; STATUS_UNAVAILABLE for what config.json
 *           asks for and this version lacks; STATUS_CREATE if output exists; STATUS_WRITE */
status pretrained_import(const char *folder, const char *objective, const char *output,
                         struct recipe *recipe, struct pretrained_summary *summary);

/* pretrained_import_is_adapter - whether a folder is peft's, of adapters alone. */
bool pretrained_import_is_adapter(const char *folder);

/* pretrained_adapter_import - a checkpoint of adapters, and of a task's head, from a folder of peft's.
 *
 * base      a checkpoint of the model that they are beside; NULL: the one that the folder names, if it is here. A head, or a
 *           part of it, that the folder leaves out is taken from it
 * Errors    as pretrained_import; STATUS_USAGE where there is no base */
status pretrained_adapter_import(const char *folder, const char *base, const char *output,
                                 struct recipe *recipe, struct pretrained_summary *summary);

/* pretrained_export - a model folder from a checkpoint of any layout, which is verified first.
 *
 * adapter   false: adapters are put into the model's matrices (sums in double precision, rounded once); true: they are
 *           written as peft saves them, alone
 * dtype     SAFETENSORS_F32: the same bits; SAFETENSORS_BF16: rounded to nearest even
 * Errors    as checkpoint_choose; STATUS_CREATE if output exists; STATUS_WRITE */
status pretrained_export(const char *checkpoint, const char *output, enum safetensors_dtype dtype,
                         bool adapter, struct pretrained_summary *summary);
