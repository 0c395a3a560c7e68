/* The objects of a job in the order in which they are made: device, kernels, tokenizer, model.
 *
 * What `train`, `evaluate`, `generate`, `score` and `bench step` have in common. */
#pragma once

#include "base/file.h"
#include "comm/mesh.h"
#include "datasets/shard/labels.h"
#include "datasets/loader/masking.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/weights/state_dict.h"
#include "trainer/model/model.h"
#include "trainer/objective/preference.h"
#include "trainer/recipe/recipe.h"
#include "trainer/train/sharded_optimizer.h"

struct session {
    struct recipe recipe;
    struct mesh mesh; /* the world is the caller's */
    struct device *device;
    struct kernels *kernels;
    struct tokenizer *tokenizer;         /* NULL where the recipe names none */
    char tokenizer_dir[FILE_PATH_BYTES]; /* the folder that a checkpoint has it in; "": none */
    struct masking masking;              /* where the objective is mlm */
    struct labels labels;                /* a checkpoint's; none where it has no names */
    char labels_sha256[HASH_TEXT_BYTES]; /* of these; "": there are none */
    struct model *model;
};

/* session_model_config - the model that a recipe describes, for this vocabulary. */
struct model_config session_model_config(const struct recipe *recipe, int64_t vocabulary);

/* session_masking - what mlm masks. Without a tokenizer, or a [MASK] in it, only examples that are masked in their
 * files can be read.
 *
 * Memory    out->kinds is the caller's, for free() */
status session_masking(const struct recipe *recipe, const struct tokenizer *tokenizer,
                       int64_t vocabulary, struct masking *out);

/* session_limits - the sizes that the kernels will meet, for micro-batches of `rows` rows and a model that
 * `tensor` ranks share. */
struct kernels_limits session_limits(const struct model_config *config, int tensor, int64_t rows,
                                     int64_t sequence, bool training);

/* session_tokenizer - the recipe's tokenizer (folder "": *out NULL) and its vocabulary, else the
 * tokenizer's.
 *
 * Errors    of tokenizer_open, with the recipe's place and, where it is missing, the command that makes
 *           one; STATUS_RECIPE if the recipe's vocabulary is smaller than the tokenizer's */
status session_tokenizer(const struct recipe *recipe, const char *folder, struct tokenizer **out,
                         int64_t *vocabulary);

/* session_device_kind - what the recipe's train.device comes to on this machine. */
enum device_kind session_device_kind(const struct recipe *recipe);

/* session_device - the recipe's device and precision; ranks of a host share out its GPUs.
 *
 * Errors    STATUS_UNAVAILABLE where this build or machine has not got them, with the recipe's place */
status session_device(const struct recipe *recipe, int local_rank, int threads,
                      const struct kernels_limits *limits, struct device **device,
                      struct kernels **kernels);

/* session_start - everything above for s->recipe; weights are zero. model_connect comes next.
 *
 * Units     rows of a micro-batch at most; sequence: its longest sequence
 * Order     collective; errors are agreed on */
status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training);
status session_stop(struct session *s);

/* session_tune - on a GPU: the ways to do products that rank 0 knows become all ranks'. measure: it times first those
 * that it has met since this was called last (kernels_tune). Between two steps. Collective. */
status session_tune(struct session *s, struct comm *world, bool measure);

/* session_open_checkpoint - a model ready for use from what checkpoint_choose takes at the path. Collective.
 *
 * Units     rows of a micro-batch at least; it is never less than the recipe's, nor than the positions
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT; agreed on all ranks */
status session_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows);

/* session_rows - rows of a micro-batch at most; a preference pair has two sequences, so has a pair to embed, and every
 * choice is one. */
int64_t session_rows(const struct recipe *recipe);

/* session_sequence - rows of the longest piece that attention goes through: a sequence, or a prompt with both of its
 * answers. */
int64_t session_sequence(const struct recipe *recipe);

/* session_preference - the recipe's section dpo.
 *
 * Errors    STATUS_RECIPE at the key, where settings contradict each other or dpo has no model to begin with */
status session_preference(const struct recipe *recipe, struct preference_settings *out);

/* session_require_causal - whether the model predicts next tokens.  Errors: STATUS_DATA naming the checkpoint */
status session_require_causal(const struct session *s, const char *checkpoint);

/* session_micro_batches - of a step, on the rank that has most. */
int64_t session_micro_batches(const struct recipe *recipe, int data_ranks);

int64_t session_bucket_elements(const struct recipe *recipe);

/* session_update - gradients and AdamW for the model's parameters with the recipe's settings. Collective. */
status session_update(struct session *s, int64_t micro_batches, struct update **out);

/* session_part - what lies of some parameters in these elements of the flat buffer, the first of which is at
 * weights. */
status session_part(const struct session *s, enum family_part part, struct range elements,
                    float *weights, struct family *out);

/* session_weights, session_moments - what this rank holds of them, for the checkpoint (family.h). u NULL: all
 * weights are the model's. */
status session_weights(const struct session *s, const struct update *u, struct family *out);
status session_moments(const struct session *s, const struct update *u, struct family *out);
