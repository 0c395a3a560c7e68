/* A model with gradients, and the results of an objective for its micro-batches of ROWS rows. */
#pragma once

#include "tests/check.h"
#include "trainer/model/model_impl.h"
#include "trainer/train/step/objective_input.h"

enum { TOKENS = 7, SEQUENCES = 3, ROWS = TOKENS * SEQUENCES, MICRO_BATCHES = 2 };

struct model_instance {
    struct kernels *kernels;
    struct model *model;
    float *gradients;            /* flat buffer */
    float **parameter_gradients; /* pointers into it; NULL: frozen */
    float losses[ROWS], scales[ROWS];
    int32_t argmax[ROWS];
    double sums[OBJECTIVE_SUMS];
};

/* model_instance_create - create a model without weights, and gradients that are zero.
 *
 * tensor: the ranks that share the model, or NULL. sequence: with sequence parallelism. */
static inline void model_instance_create(struct model_instance *s, struct device *dev,
                                         enum dtype dtype, const struct model_config *config,
                                         struct comm *tensor, bool sequence)
{
    int count, ranks = tensor != NULL ? comm_size(tensor) : 1;
    struct kernels_limits limits = {.rows = ROWS,
                                    .width = config->width,
                                    .inner = config->inner,
                                    .heads = (int)config->heads,
                                    .head_width = model_head_width(config),
                                    .sequence = TOKENS,
                                    .vocabulary = model_vocabulary_rows(config, ranks),
                                    .training = true,
                                    .vocabulary_shards = ranks,
                                    .bias_buckets = (int)model_position_buckets(config)};
    *s = (struct model_instance){0};
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &s->kernels));
    CHECK_OK(model_create(s->kernels, config, tensor, sequence, ROWS, true, &s->model));
    CHECK_OK(model_connect(s->model));
    const struct model_parameter *p = model_parameters(s->model, &count);
    s->gradients = calloc((size_t)model_elems(s->model), sizeof *s->gradients);
    s->parameter_gradients = calloc((size_t)count, sizeof *s->parameter_gradients);
    CHECK(s->gradients != NULL && s->parameter_gradients != NULL);
    for (int i = 0; i < count; i++) {
        s->parameter_gradients[i] = p[i].trained ? s->gradients + p[i].first : NULL;
    }
}

/* model_instance_destroy - release the model and its gradients. */
static inline void model_instance_destroy(struct model_instance *s)
{
    CHECK_OK(model_destroy(&s->model));
    CHECK_OK(kernels_destroy(&s->kernels));
    free(s->gradients);
    free(s->parameter_gradients);
}
