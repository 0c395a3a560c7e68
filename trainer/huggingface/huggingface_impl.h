/* An import under way: pretrained_import.c's, and of adapters (pretrained_adapter_import.c). */
#pragma once

#include "trainer/checkpoint/manifest.h"
#include "trainer/model/model.h"
#include "trainer/huggingface/huggingface.h"
#include "trainer/huggingface/config.h"

enum { PRETRAINED_FILES_MAX = 512 };

/* Where a parameter lies; no tensor: in no file. */
struct pretrained_place {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
};

struct pretrained_job {
    const char *folder;
    struct recipe *recipe;
    struct pretrained_promise promise;
    struct model_parameter *parameters;
    int count;
    struct safetensors *files[PRETRAINED_FILES_MAX];
    int file_count;
    struct pretrained_place *places; /* of the parameters, in their order */
    struct manifest manifest;        /* of the parameters, in their order */
    /* A box of a parameter that no file has, as a file would have it. */
    status (*fill)(const struct pretrained_job *job, int index, const int64_t offset[2],
                   const int64_t shape[2], float *out);
    void *user; /* of fill */
};

/* pretrained_import_open - a file of the folder, behind those that are open.  Errors: of safetensors_open */
status pretrained_import_open(struct pretrained_job *job, const char *name);

/* pretrained_import_check - shape and type of what is there for a parameter.  Errors: STATUS_DATA naming file and tensor */
status pretrained_import_check(const struct pretrained_place *place,
                               const struct model_parameter *parameter);

/* pretrained_import_tokenizer - whether a folder has one, which must be readable and fit the recipe's vocabulary. */
status pretrained_import_tokenizer(const struct pretrained_job *job, const char *folder,
                                   bool *there);

/* pretrained_import_write - the checkpoint.  tokenizer_dir: NULL: none; tokenizer_files: as checkpoint_source's */
status pretrained_import_write(struct pretrained_job *job, const char *output,
                               const char *tokenizer_dir, const char *const *tokenizer_files);

/* pretrained_import_end - close the files, and free all but the recipe. */
void pretrained_import_end(struct pretrained_job *job);
