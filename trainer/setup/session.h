/* Creates the objects that every command with a model needs, in order: mesh, device, kernels,
 * tokenizer, model. Used by `train`, `evaluate`, `generate`, `score`, `bench step` and others. */
#pragma once

#include "base/file.h"
#include "comm/mesh.h"
#include "datasets/loader/denoise.h"
#include "datasets/loader/masking.h"
#include "datasets/shard/labels.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

struct session {
    struct recipe recipe;
    struct mesh mesh; /* the caller owns its world communicator */
    int threads;      /* CPU threads of this rank, also if the kernels run on a GPU */
    struct device *device;
    bool same_devices; /* the devices of all ranks are of the same model */
    struct kernels *kernels;
    struct tokenizer *tokenizer;         /* NULL: the recipe names none */
    char tokenizer_dir[FILE_PATH_BYTES]; /* tokenizer folder of a checkpoint; "": none */
    char checkpoint[FILE_PATH_BYTES];    /* set by weights_open_checkpoint */
    struct masking masking;              /* used by objective mlm */
    struct denoise denoise;              /* used by objective denoise */
    struct labels labels;                /* label names of a checkpoint; may be empty */
    char labels_sha256[HASH_TEXT_BYTES]; /* digest of the label names; "": none */
    struct model *model;
};

/* session_tokenizer - open the tokenizer in `folder` and compute the size of the vocabulary: the
 * recipe's model.vocab_size, or else the tokenizer's. For folder "", *out is NULL.
 *
 * Memory    the caller releases *out with tokenizer_destroy
 * Errors    as tokenizer_open, with the recipe's line and, if the folder is missing, the
 *           command that creates it; STATUS_RECIPE if the recipe's vocabulary is smaller than the
 *           tokenizer's */
status session_tokenizer(const struct recipe *recipe, const char *folder, struct tokenizer **out,
                         int64_t *vocabulary);

/* session_start - create all objects of a session for s->recipe. The weights are zero; the caller
 * calls model_connect next.
 *
 * Units     rows: maximum of a micro-batch; sequence: rows of its longest sequence
 * Order     collective
 * Errors    errors of the objects; the same on all ranks */
status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training);

/* session_stop - destroy all objects of a session. Accepts a partly created session. */
status session_stop(struct session *s);

/* session_tune - on GPUs, broadcast the GEMM algorithms that rank 0 has selected to all ranks. If
 * `measure` is true, rank 0 first times the GEMM shapes that it has used since the last call
 * (kernels_tune).
 *
 * Order     collective; between two steps */
status session_tune(struct session *s, struct comm *world, bool measure);
