/* Predicts how long a step takes on a described cluster, and which layout of the ranks is fastest.
 *
 * The time of a step, on the rank with the most work, is a sum of these terms:
 *
 *   gemm         FLOPs of the GEMMs, 6 for each element and token (plan.h), at the GEMM rate. With
 *                train.precision: fp8, GEMMs with FP8 operands have a separate rate
 *   attention    7 T C FLOPs per layer and token if attention is causal: 2 forward and 5 backward,
 *                because backward recomputes the scores
 *   elementwise  bytes of norms (16 C elements per layer and token), activations and their
 *                gradients (5 F), biases (3 C + F), row sums of attention (2 C), embedding (5 C
 *                once), logits (2 V once), and of gradient accumulation (8 bytes per weight and
 *                micro-batch, 4 for the first), at the memory rate
 *   optimizer    34 bytes for each weight that the rank updates: the gradient is read twice,
 *                moments and weight are read and written, the bf16 copy is written
 *   launch       launch time of 12 operations forward and 22 backward per layer
 *   exposed      communication time that no computation overlaps. Gradients overlap the backward
 *                pass of the last micro-batch (at ZeRO stage 2 of every micro-batch). Weights at
 *                stages 1 and 2 overlap the first forward pass. Half of the tensor-parallel
 *                reductions overlap the GEMMs of weight gradients. One bucket is always exposed.
 *
 * The terms include what backward recomputes (train.activation_checkpointing). selective reads and
 * writes another 4 C + 2 F elements per layer and token, except in the last layer. full repeats
 * the forward pass of these layers.
 *
 * Links     a ring of R ranks sends 2 (R - 1) / R of the bytes in 2 (R - 1) messages, or in
 *           2 log2 R if a tree is faster. Ranks of a node that belong to one group use their links
 *           to the network in parallel. If a node has more ranks than devices, the ranks share
 *           rates and links.
 * Limits    GEMMs have one rate for all shapes, so predictions for narrow models and small
 *           micro-batches are too fast. This is worst in FP8, where casts take a larger share of
 *           narrow GEMMs. Packing, evaluation, checkpoints and reading data are not included.
 * Source    Thakur, Rabenseifner, Gropp 2005 (collectives); docs/benchmarks/prediction_* (measured
 *           errors) */
#pragma once

#include "trainer/train/planner/cluster.h"
#include "trainer/train/planner/plan.h"

/* Predicted time and memory of one layout. */
struct prediction {
    int tensor, data, zero_stage;
    int64_t micro_size;
    /* terms of a step */
    double gemm_seconds, attention_seconds, elementwise_seconds, optimizer_seconds, launch_seconds;
    double tensor_comm_seconds, data_comm_seconds; /* without overlap */
    double tensor_exposed_seconds, data_exposed_seconds;
    double step_seconds;
    double tokens_per_second; /* of all ranks */
    double mfu;               /* model FLOPs utilization; 0: the cluster has no peak_tflops */
    int64_t device_bytes;     /* needed by a rank, as in struct plan */
    double memory_bytes;      /* share of a rank in the memory of a device */
    int devices;              /* used by all ranks */
    int node_ranks;           /* ranks of a full node */
    int64_t host_bytes; /* host memory that the ranks of a full node with GPUs need; 0: CPUs */
    bool fits;
};

/* predict_choose_device - set train.device: auto to the devices of the cluster, so that a plan does
 * not depend on the devices of this machine.
 *
 * Errors    STATUS_RECIPE if the recipe requires the other kind of device */
status predict_choose_device(const struct cluster *cluster, struct recipe *recipe);

/* predict_step - predict the time of a step for a planned layout.
 *
 * Errors    STATUS_RECIPE if the cluster description lacks a value that the layout needs */
status predict_step(const struct recipe *recipe, const struct plan *plan,
                    const struct cluster *cluster, struct prediction *out);

/* predict_micro_size - find the largest batch.micro_size that fits into the memory of a rank; 0 if
 * none fits.
 *
 * Errors    as predict_step */
status predict_micro_size(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                          int64_t *out);

/* predict_layouts - list the layouts that fit into memory, the fastest first.
 *
 * A layout is a tensor-parallel size that the model allows, a ZeRO stage from 0 to 2, and the
 * fastest micro-batch size among the powers of two. A setting of the command line (parallel.tensor,
 * parallel.zero_stage, batch.micro_size) is fixed: all layouts have its value. Equally fast layouts
 * are ordered by memory.
 *
 * Memory    out[max_count]
 * Errors    as predict_step and plan_make; *count is 0 if no layout fits */
status predict_layouts(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                       struct prediction *out, int max_count, int *count);
