/* The objects of a job in the order in which they are made: device, kernels, tokenizer, model.
 *
 * What `train`, `evaluate`, `generate`, `score` and `bench step` have in common. */
#pragma once

#include "comm/mesh.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/recipe.h"

struct session {
    struct recipe recipe;
    struct mesh mesh; /* the world is the caller's */
    struct device *device;
    struct kernels *kernels;
    struct tokenizer *tokenizer; /* NULL where the recipe names none */
    struct model *model;
};

/* session_model_config - the model that a recipe describes, for this vocabulary. */
struct model_config session_model_config(const struct recipe *recipe, int64_t vocabulary);

/* session_limits - the sizes that the kernels will meet, for micro-batches of `rows` rows. */
struct kernels_limits session_limits(const struct model_config *config, int64_t rows,
                                     int64_t sequence, bool training);

/* session_threads - CPU threads of this rank: the recipe's, else the cores that this process may use,
 * shared among the ranks of this host where they are not bound to cores of their own. */
int session_threads(const struct recipe *recipe, const struct comm *world);

/* session_vocabulary - the recipe's vocabulary, else the tokenizer's.
 *
 * Errors    STATUS_RECIPE if neither is there, or the recipe's is smaller than the tokenizer's */
status session_vocabulary(const struct recipe *recipe, const struct tokenizer *tokenizer,
                          int64_t *out);

/* session_start - everything above for s->recipe; weights are zero.
 *
 * Units     rows of a micro-batch at most; sequence: its longest sequence
 * Order     not collective but for the mesh; errors are this rank's own: the caller agrees on them */
status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training);
status session_stop(struct session *s);

/* session_open_checkpoint - a model ready for use from a checkpoint, a final folder or a run folder (then
 * its final weights, else its newest whole checkpoint).
 *
 * Units     rows, sequence as for session_start; 0: the recipe's micro-batch / the model's positions
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT */
status session_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows,
                               int64_t sequence);

/* session_tensors - the weights (and both moments) as named tensors for the checkpoint; for free(). */
status session_tensors(const struct model *m, float *data, struct checkpoint_tensor **out,
                       int *count);
