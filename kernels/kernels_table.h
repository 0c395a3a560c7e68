/* What a back-end is: one function for each operation of kernels.h, with the same signature.
 *
 * KERNELS_OPERATIONS names every operation once; the table, the profile's rows and the CPU's
 * per-instruction-set prototypes are made from it. kernels.c has checked the shapes before a
 * back-end's function is called. */
#pragma once

#include "kernels/kernels.h"

#define KERNELS_OPERATIONS(X)                                                                      \
    X(linear_forward)                                                                              \
    X(linear_backward_input)                                                                       \
    X(linear_backward_weight)                                                                      \
    X(linear_add)                                                                                  \
    X(activation_forward)                                                                          \
    X(scale)                                                                                       \
    X(activation_backward)                                                                         \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(rotary_apply)                                                                                \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(dropout_apply)                                                                               \
    X(gather_rows)                                                                                 \
    X(scatter_rows)                                                                                \
    X(residual_norm_forward)                                                                       \
    X(residual_norm_backward)                                                                      \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(classifier_run)                                                                              \
    X(classifier_logits)                                                                           \
    X(adamw_update)                                                                                \
    X(lamb_moments)                                                                                \
    X(lamb_apply)                                                                                  \
    X(weights_round)                                                                               \
    X(sum_of_squares)                                                                              \
    X(tally_rows)                                                                                  \
    X(floats_add)                                                                                  \
    X(convert)

enum kernels_operation {
#define KERNELS_OPERATION_NUMBER(name) OPERATION_##name,
    KERNELS_OPERATIONS(KERNELS_OPERATION_NUMBER)
#undef KERNELS_OPERATION_NUMBER
        OPERATIONS
};

/* Of a back-end that can start many launches as one (kernels_graph_begin); NULL of the others. */
struct kernels_graphs {
    void (*want)(struct kernels *k, bool wanted);
    status (*begin)(struct kernels *k, const struct kernels_graph_key *key);
    status (*cut)(struct kernels *k);
    status (*end)(struct kernels *k);
};

struct kernels_table {
#define KERNELS_OPERATION_POINTER(name) __typeof__(name) *name;
    KERNELS_OPERATIONS(KERNELS_OPERATION_POINTER)
#undef KERNELS_OPERATION_POINTER
    __typeof__(kernels_floor) *floor;
    struct kernels_graphs graphs;
    __typeof__(kernels_tune) *tune; /* NULL, with the next: there is nothing to choose */
    __typeof__(kernels_tuned) *tuned;
    void (*destroy)(struct kernels *k);
};

/* What every back-end's context has; `state` is the back-end's own. */
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
    struct kernels_time times[OPERATIONS];
};

/* A back-end. create fills description, stream, threads, table and state of a context whose device, dtype and
 * limits are set; on failure it leaves nothing behind. The others are pure. */
struct kernels_driver {
    status (*create)(struct kernels *k, int threads);
    bool (*supports)(enum dtype dtype);
};

/* kernels_register - how a back-end other than the CPU's makes itself known, before kernels_create. */
void kernels_register(enum device_kind kind, const struct kernels_driver *driver);

extern const struct kernels_driver cpu_driver;

/* What a context allocates. Both are in every program: plans are made for other machines too. */
size_t cpu_workspace_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits);
size_t cuda_workspace_bytes(enum dtype dtype, const struct kernels_limits *limits);
