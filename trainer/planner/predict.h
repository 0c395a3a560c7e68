/* How long a step takes on a described cluster, and which layout of the ranks is the fastest.
 *
 * A step of the rank that has most is a sum of
 *   products    FLOPs of the matrix products, 6 for each element and token (plan.h), at the products' rate
 *   attention   7 T C a layer and token where attention is causal: 2 forward, 5 backward, which computes the
 *               scores again
 *   passes      bytes of norms (16 C elements a layer and token), activations and their gradients (5 F), biases
 *               (3 C + F), attention's row sums (2 C), embedding (5 C once), logits (2 V once), and of gradients
 *               that are added up (8 a weight and micro-batch, 4 for the first), at the memory's rate
 *   again       what backward makes again (train.activation_checkpointing): selective reads and writes another 4 C + 2 F
 *               elements a layer and token but in the last one; full does these layers' forward pass once more
 *   optimizer   34 bytes a weight that the rank updates: gradient twice, moments and weight read and written,
 *               copy written
 *   starts      12 operations forward and 22 backward a layer
 *   traffic     what of the ring's time is left when the part that travels behind computation is taken off:
 *               gradients behind the last micro-batch's backward pass (at ZeRO stage 2 every one's), weights at
 *               stage 1 and 2 behind the first forward pass, half of the tensor-parallel sums behind the products
 *               of weights' gradients. One bucket is always waited for.
 *
 * Links     a ring of R ranks sends 2 (R - 1) / R of the bytes in 2 (R - 1) messages, or in 2 log2 R where a tree
 *           is faster; ranks of a node that are in one group use their links to the network together. Where a
 *           node has more ranks than devices, they divide rates and links.
 * Limits    products have one rate whatever their shape: narrow models and small micro-batches are predicted too
 *           fast. Packing, evaluation, checkpoints and reading data are not in it.
 * Source    Thakur, Rabenseifner, Gropp 2005 (collectives); docs/benchmarks/prediction_* (measured errors) */
#pragma once

#include "trainer/planner/cluster.h"
#include "trainer/planner/plan.h"

struct prediction {
    int tensor, data, zero_stage;
    int64_t micro_size;
    double products, attention, passes, optimizer, starts; /* seconds of a step */
    double tensor_traffic, data_traffic;                   /* seconds, if nothing were hidden */
    double tensor_exposed, data_exposed;
    double step;
    double tokens_per_second; /* over all ranks */
    double mfu;               /* 0: the device's peak is not given */
    int64_t device_bytes;     /* of a rank: what must fit into the device's memory */
    bool fits;
};

/* predict_step - of a planned layout.
 *
 * Errors    STATUS_RECIPE naming what the description lacks for this recipe and layout */
status predict_step(const struct recipe *recipe, const struct plan *plan,
                    const struct cluster *cluster, struct prediction *out);

/* predict_micro_size - the largest batch.micro_size that fits into a rank's share of a device; 0: none.
 *
 * Errors    as predict_step */
status predict_micro_size(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                          int64_t *out);

/* predict_layouts - every tensor size that the model allows with ZeRO 0 to 2, each with its fastest micro-batch of a
 * power of two: those that fit into memory, the fastest first, of equals the smaller.
 *
 * Memory    out[most]
 * Errors    *count 0 where none fits; otherwise as predict_step and plan_make */
status predict_layouts(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                       struct prediction *out, int most, int *count);
