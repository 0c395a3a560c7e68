/* AdamW and LAMB over the flat buffers: decay on matrices and embeddings, not on biases and norms.
 *
 * LAMB multiplies the rate of each tensor by its trust ratio |weights| / |update|, and ranks may hold parts of
 * a tensor. So its step has a first half: optimizer_moments for all slices, optimizer_squares, the sums over
 * the ranks by the caller, optimizer_trust; then optimizer_update as for AdamW. */
#pragma once

#include "kernels/kernels.h"

struct optimizer;

/* A run of elements that are treated alike: one parameter, or a part of one. */
struct optimizer_range {
    int64_t first, count; /* in the weights and gradients */
    int64_t at; /* of its first element in the moments: a rank may hold those of its share alone */
    bool decay;
    int tensor;               /* whose part it is, from 0 */
    struct rounding rounding; /* how its copy is rounded, but for the key */
};

enum optimizer_kind { OPTIMIZER_ADAMW = 0, OPTIMIZER_LAMB };

struct optimizer_settings {
    double beta1, beta2, epsilon, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    enum optimizer_kind kind;
    bool trust_all;           /* LAMB: a ratio for tensors without decay too (NVLAMB) */
    bool stochastic_rounding; /* of the bf16 copy: the caller's ranges say where they lie */
    uint64_t seed;            /* of stochastic rounding */
};

/* optimizer_create - both moments, zero.
 *
 * Memory    8 bytes per element of the moments on k's device; ranges [count], by rising first, are copied */
status optimizer_create(struct kernels *k, const struct optimizer_settings *settings,
                        const struct optimizer_range *ranges, int count, int64_t elements,
                        struct optimizer **out);
status optimizer_destroy(struct optimizer **o);

float *optimizer_moment1(const struct optimizer *o); /* f32 [elements] */
float *optimizer_moment2(const struct optimizer *o);
int64_t optimizer_elements(const struct optimizer *o);

/* optimizer_ranges - as they were given.  Memory: the optimizer's */
const struct optimizer_range *optimizer_ranges(const struct optimizer *o, int *count);

/* optimizer_clip - the factor that brings a gradient of this norm down to max_grad_norm, at most 1.
 *
 * Source    Pascanu, Mikolov, Bengio 2013; as torch.nn.utils.clip_grad_norm_: max / (norm + 1e-6) */
double optimizer_clip(const struct optimizer *o, double norm);

/* Where [first, first + count) lies: the pointers are of element `first`. */
struct optimizer_slice {
    int64_t first, count;
    float *weights;
    const float *gradients;
    bf16 *copy; /* NULL: none */
};

/* optimizer_rounding - how the copy of a range is made by step number `step`: at random anew in each step. */
struct rounding optimizer_rounding(const struct optimizer *o, const struct optimizer_range *r,
                                   int64_t step);

/* optimizer_has_trust - whether a step has LAMB's first half. */
bool optimizer_has_trust(const struct optimizer *o);

/* optimizer_moments - the first half for the ranges that begin in the slice; step and scale as for
 * optimizer_update, which reads no gradients then. */
status optimizer_moments(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                         double scale);

/* Sums of squares over a tensor, or the part of it that this rank has. */
struct optimizer_squares {
    double weights, update;
};

/* optimizer_squares - what the ranges have of each tensor, added to squares [tensors]. Waits for the device. */
status optimizer_squares(struct optimizer *o, struct optimizer_squares *squares);

/* optimizer_trust - ratios from whole tensors' sums: |weights| / |update|, and 1 where either is 0 or the tensor
 * has no decay.
 *
 * Source    You et al. 2019, arXiv:1904.00962; as in NVIDIA's apex (FusedLAMB): no clamp */
void optimizer_trust(struct optimizer *o, const struct optimizer_squares *squares);

/* optimizer_update - step number `step` (from 1) of the ranges that begin in the slice.
 *
 * Units     scale: what the gradients are multiplied with first (1 / tokens, clipping) */
status optimizer_update(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                        double learning_rate, double scale);
