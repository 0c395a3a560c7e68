/* A model of byte tokens on the CPU, with its tokenizer, for tests of inference. */
#pragma once

#include <stdlib.h>

#include "base/file.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/check.h"
#include "tests/datasets/train_tokenizer.h"
#include "trainer/model/model.h"

enum { SMALL_MODEL_VOCABULARY = 257 }; /* the bytes and the end token */

struct small_model {
    struct device *device;
    struct kernels *kernels;
    struct model *model;
    struct tokenizer *tokenizer;
};

/* small_model_train_tokenizer - make a tokenizer of the bytes and the end token, without merges. */
static inline void small_model_train_tokenizer(struct tokenizer **out)
{
    char folder[] = "/tmp/bireme-small-model-XXXXXX", path[FILE_PATH_BYTES];
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(file_join(path, folder, "text"));
    CHECK_OK(file_write(path, "abc", 3));
    char *files[] = {path};
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, SMALL_MODEL_VOCABULARY, files, 1, 1, out));
    CHECK_OK(file_remove_tree(folder));
}

/* small_model_create - create the model and its tokenizer in fp32 on one thread. The weights are
 * not set. */
static inline void small_model_create(const struct model_config *config, int64_t rows,
                                      struct small_model *out)
{
    struct kernels_limits limits = {
        .rows = rows,
        .width = config->width,
        .inner = config->inner,
        .heads = (int)config->heads,
        .head_width = config->width / config->heads,
        .sequence = config->positions,
        .vocabulary = model_vocabulary_rows(config, 1),
    };
    small_model_train_tokenizer(&out->tokenizer);
    CHECK_OK(device_create(DEVICE_CPU, 0, &out->device));
    CHECK_OK(kernels_create(out->device, DTYPE_F32, 1, &limits, &out->kernels));
    CHECK_OK(model_create(out->kernels, config, NULL, false, limits.rows, false, &out->model));
}

static inline void small_model_destroy(struct small_model *m)
{
    CHECK_OK(tokenizer_destroy(&m->tokenizer));
    CHECK_OK(model_destroy(&m->model));
    CHECK_OK(kernels_destroy(&m->kernels));
    CHECK_OK(device_destroy(&m->device));
}
