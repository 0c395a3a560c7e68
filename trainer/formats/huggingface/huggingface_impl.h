/* State and steps that import.c and adapter_import.c share. */
#pragma once

#include "trainer/formats/checkpoint/manifest.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/formats/huggingface/huggingface.h"
#include "trainer/model/model.h"

enum { HUGGINGFACE_FILES_MAX = 512 };

/* The source of a parameter; tensor == NULL: no file contains it. */
struct huggingface_tensor_source {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
};

struct huggingface_import_job {
    const char *folder;
    struct recipe *recipe;
    struct huggingface_config config;
    struct model_parameter *parameters;
    int count;
    struct safetensors *files[HUGGINGFACE_FILES_MAX];
    int file_count;
    struct huggingface_tensor_source *sources; /* [count] */
    struct manifest manifest;                  /* tensors in the order of the parameters */
    /* Writes a block of a parameter that no file contains, in the orientation of the file. */
    status (*fill_missing)(const struct huggingface_import_job *job, int index,
                           const int64_t offset[2], const int64_t shape[2], float *out);
    void *fill_context;  /* for fill_missing */
    char *const *tokens; /* [token_count] special tokens to add */
    int token_count;
    float **new_rows; /* [count] rows after the file's rows (added_tokens.h); NULL: none */
};

/* huggingface_import_open_file - open a file of the folder and append it to files.
 *
 * Errors    as safetensors_open */
status huggingface_import_open_file(struct huggingface_import_job *job, const char *name);

/* huggingface_import_check_tensor - check shape and dtype of the tensor found for a parameter.
 *
 * Errors    STATUS_DATA naming file and tensor */
status huggingface_import_check_tensor(const struct huggingface_tensor_source *source,
                                       const struct model_parameter *parameter);

/* huggingface_import_check_tokenizer - set *exists to whether the folder has a tokenizer.
 *
 * Errors    STATUS_DATA if it is invalid or has more ids than the recipe's vocabulary */
status huggingface_import_check_tokenizer(const struct huggingface_import_job *job,
                                          const char *folder, bool *exists);

/* huggingface_import_write_checkpoint - write the checkpoint.
 *
 * tokenizer_dir (NULL: none) and tokenizer_files are as in struct checkpoint_source. */
status huggingface_import_write_checkpoint(struct huggingface_import_job *job, const char *output,
                                           const char *tokenizer_dir,
                                           const char *const *tokenizer_files);

/* huggingface_import_close - close the files and free everything except the recipe. */
void huggingface_import_close(struct huggingface_import_job *job);
