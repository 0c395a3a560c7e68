/* The interface of a back-end: one function for each operation of kernels.h, with the
 * same signature.
 *
 * KERNELS_OPERATIONS lists every operation once. The table of functions, the rows of the profile
 * and the CPU's prototypes for each instruction set are generated from it. kernels.c checks the
 * shapes before it calls a function of a back-end. */
#pragma once

#include "kernels/contrastive_loss.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"
#include "kernels/preference_batch.h"
#include "kernels/preference_loss.h"
#include "kernels/spike_score.h"

#define KERNELS_OPERATIONS(X)                                                                      \
    X(linear_forward)                                                                              \
    X(linear_backward_input)                                                                       \
    X(linear_backward_weight)                                                                      \
    X(linear_add)                                                                                  \
    X(fp8_linear_forward)                                                                          \
    X(fp8_linear_backward_input)                                                                   \
    X(fp8_linear_backward_weight)                                                                  \
    X(fp8_update_scales)                                                                           \
    X(activation_forward)                                                                          \
    X(op_scale)                                                                                    \
    X(op_softcap)                                                                                  \
    X(activation_backward)                                                                         \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(geglu_forward)                                                                               \
    X(geglu_backward)                                                                              \
    X(rotary_apply)                                                                                \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(dropout_apply)                                                                               \
    X(op_gather_rows)                                                                              \
    X(op_scatter_rows)                                                                             \
    X(residual_norm_forward)                                                                       \
    X(residual_norm_backward)                                                                      \
    X(split_norm_forward_sums)                                                                     \
    X(split_norm_forward)                                                                          \
    X(split_norm_backward_sums)                                                                    \
    X(split_norm_backward)                                                                         \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(classifier_run)                                                                              \
    X(classifier_logits)                                                                           \
    X(adamw_update)                                                                                \
    X(adamw_parts_update)                                                                          \
    X(lamb_moments)                                                                                \
    X(lamb_apply)                                                                                  \
    X(lamb_parts_moments)                                                                          \
    X(lamb_parts_apply)                                                                            \
    X(op_round_weights)                                                                            \
    X(op_sum_of_squares)                                                                           \
    X(control_gradient_squares)                                                                    \
    X(control_sum_exact)                                                                           \
    X(control_sum_rows)                                                                            \
    X(control_sum_segments)                                                                        \
    X(control_trust_ratios)                                                                        \
    X(control_decide_update)                                                                       \
    X(spike_score_run)                                                                             \
    X(op_loss_stats)                                                                               \
    X(head_loss_run)                                                                               \
    X(preference_loss_run)                                                                         \
    X(preference_batch_store)                                                                      \
    X(preference_batch_run)                                                                        \
    X(contrastive_loss_pool)                                                                       \
    X(contrastive_loss_run)                                                                        \
    X(contrastive_loss_sum)                                                                        \
    X(contrastive_loss_backward)                                                                   \
    X(op_add)                                                                                      \
    X(op_cast)

enum kernels_operation {
#define KERNELS_OPERATION_NUMBER(name) OPERATION_##name,
    KERNELS_OPERATIONS(KERNELS_OPERATION_NUMBER)
#undef KERNELS_OPERATION_NUMBER
        OPERATIONS
};

/* Functions of a back-end with graphs (see kernels_graph_begin); NULL in other back-ends. */
struct kernels_graphs {
    void (*enable)(struct kernels *k, bool enabled);
    status (*begin)(struct kernels *k, const struct kernels_graph_key *key);
    status (*end_segment)(struct kernels *k);
    status (*end)(struct kernels *k, status result);
};

struct kernels_table {
#define KERNELS_OPERATION_POINTER(name) __typeof__(name) *name;
    KERNELS_OPERATIONS(KERNELS_OPERATION_POINTER)
#undef KERNELS_OPERATION_POINTER
    __typeof__(kernels_roofline) *roofline;
    struct kernels_graphs graphs;
    __typeof__(kernels_tune) *tune; /* tune, tune_import: NULL if there is nothing to choose */
    __typeof__(kernels_tune_import) *tune_import;
    void (*destroy)(struct kernels *k);
};

/* The context, common to all back-ends. `state` belongs to the back-end. */
struct kernels {
    struct device *device;
    struct stream *stream;
    enum dtype dtype;
    int threads;
    struct kernels_limits limits;
    struct kernels_table table;
    void *state;
    char description[160];
    bool profiling;
    struct gemm_work gemm_work; /* of the running operation, while profiling */
    struct kernels_time times[OPERATIONS];
};

/* kernels_record - add one call that began at `start` to the profile, if it is on; return result.
 *
 * Order     waits for the stream, because the operation is queued */
status kernels_record(struct kernels *k, enum kernels_operation operation, double start,
                      double flops, double bytes, status result);

/* A back-end. `create` gets a context with device, dtype and limits, and sets its description,
 * stream, threads, table and state. On failure it releases all that it allocated. */
struct kernels_driver {
    status (*create)(struct kernels *k, int threads);
};

/* kernels_register - register a back-end other than the CPU's.
 *
 * Order     call before kernels_create */
void kernels_register(enum device_kind kind, const struct kernels_driver *driver);

extern const struct kernels_driver cpu_driver;

/* cpu_workspace_bytes - compute the bytes that a context of the CPU allocates. */
size_t cpu_workspace_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits);

/* cuda_workspace_bytes - compute the bytes that a context of the CUDA back-end allocates. Every
 * build contains this function, because `bireme plan` also plans for other machines. */
size_t cuda_workspace_bytes(enum dtype dtype, const struct kernels_limits *limits);
