/* Describes the weights and optimizer moments of a rank as named tensors, for checkpoints.
 *
 * A rank stores its parameters in flat buffers. Under tensor parallelism it holds one or several
 * rectangles of each parameter, and under ZeRO it holds moments for some ranges of elements only.
 * A state dict splits these at the ends of rows, so that each entry is a rectangle with an offset
 * in the whole parameter. The entries are views: they own no memory of the weights. */
#pragma once

#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/setup/session.h"

struct state_dict {
    struct checkpoint_tensor_set tensor_set;
    struct checkpoint_tensor *tensors;
    char (*names)[2 * MODEL_NAME_BYTES];
    int64_t capacity; /* allocated entries of tensors and names */
};

/* Selects parameters of a model. */
enum parameter_subset {
    STATE_DICT_SUBSET_ALL = 0,
    STATE_DICT_SUBSET_TRAINED,    /* those that receive gradients */
    STATE_DICT_SUBSET_FROZEN,     /* those that do not */
    STATE_DICT_SUBSET_BASE_MODEL, /* all but the adapters */
    STATE_DICT_SUBSET_TASK_HEAD   /* trained parameters that are not adapters */
};

/* The parameters of a rank. All ranks of a tensor-parallel group hold the replicated ones; exactly
 * one of them has writes_replicated set. */
struct state_dict_layout {
    const struct model_parameter *parameters;
    int count;
    bool writes_replicated;
    enum parameter_subset subset;
};

/* Ranges of the flat buffers and their positions in memory. sharded: the other ranks of the
 * data-parallel group hold other ranges. */
struct state_dict_ranges {
    const struct optimizer_range *ranges;
    int count;
    bool sharded;
};

/* state_dict_create_weights - describe weights as the tensor set "model".
 *
 * Memory    *out is released by state_dict_destroy and points into `weights`, which may be NULL if
 *           only shapes are needed
 * Errors    STATUS_INTERNAL out of memory */
status state_dict_create_weights(const struct state_dict_layout *layout,
                                 const struct state_dict_ranges *ranges, float *weights,
                                 struct state_dict *out);

/* state_dict_create_moments - describe Adam moments as the tensors exp_avg/NAME and exp_avg_sq/NAME
 * of the tensor set "optimizer".
 *
 * Memory    as state_dict_create_weights
 * Errors    as state_dict_create_weights */
status state_dict_create_moments(const struct state_dict_layout *layout,
                                 const struct state_dict_ranges *ranges, enum dtype dtype,
                                 void *moment1, void *moment2, struct state_dict *out);

/* state_dict_create_session_weights - describe the weights of a session as a checkpoint stores
 * them. With adapters, these are the trained parameters alone.
 *
 * `ranges` are the ranges of the flat buffer that `weights` holds under ZeRO. With NULL, all
 * weights are taken from the model.
 *
 * Memory    *out is released by state_dict_destroy and points into the weights
 * Errors    STATUS_INTERNAL out of memory */
status state_dict_create_session_weights(const struct session *s,
                                         const struct state_dict_ranges *ranges, float *weights,
                                         struct state_dict *out);

/* state_dict_create_session_moments - describe the Adam moments of this rank's ranges.
 *
 * Memory    as state_dict_create_session_weights
 * Errors    as state_dict_create_session_weights */
status state_dict_create_session_moments(const struct session *s,
                                         const struct state_dict_ranges *ranges, enum dtype dtype,
                                         void *moment1, void *moment2, struct state_dict *out);

/* state_dict_create_session_subset - describe the parameters of a subset, as far as they lie in one
 * range of the flat buffer.
 *
 * Shapes    weights f32 [elements.count]: the range; NULL if only shapes are needed
 * Memory    as state_dict_create_session_weights
 * Errors    as state_dict_create_session_weights */
status state_dict_create_session_subset(const struct session *s, enum parameter_subset subset,
                                        struct comm_range elements, float *weights,
                                        struct state_dict *out);

/* state_dict_create_session_fp8 - describe the amax history of FP8 as the tensor set "fp8". All
 * ranks have the same history; the first tensor-parallel rank of each replica saves it.
 *
 * Memory    as state_dict_create_session_weights; empty without FP8
 * Errors    as state_dict_create_session_weights */
status state_dict_create_session_fp8(const struct session *s, struct state_dict *out);

/* state_dict_destroy - free the entries. The weights stay. */
void state_dict_destroy(struct state_dict *d);
