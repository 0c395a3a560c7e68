/* Description of a cluster: rates of its devices and of the links between them.
 *
 * `bireme plan --cluster FILE` reads a description and predicts the time of a step from it
 * (predict.h). recipes/clusters/ contains descriptions; `bireme bench cluster` measures this
 * machine. Rates are those that large operations reach, not the peaks of data sheets. A device is
 * the unit that one rank computes on. If a node has more ranks than devices, the ranks share the
 * rates of the devices. A CPU node is one device with all its cores. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define CLUSTER_TEXT_BYTES 256

/* A link between devices. 0: not given. */
struct cluster_link {
    double gb_per_second;        /* sent by a device while it receives at the same rate */
    double latency_microseconds; /* of one message */
};

struct cluster {
    char path[1024]; /* file, for messages */
    char name[CLUSTER_TEXT_BYTES];
    struct {
        double memory_gib;
        double peak_tflops; /* reference of the model FLOPs utilization (MFU) */
        double gemm_tflops_fp32, gemm_tflops_bf16; /* of the GEMMs of a step */
        double gemm_tflops_fp8; /* of the GEMMs with FP8 operands, including their casts */
        /* attention forward and backward; causal: only the unmasked half counts */
        double attention_tflops_fp32, attention_tflops_bf16;
        double memory_gb_per_second;   /* read and written by elementwise operations */
        double operation_microseconds; /* to launch an operation */
    } device;
    struct {
        int64_t devices;
        double memory_gib;        /* host memory of a node with GPUs; 0: not given */
        struct cluster_link link; /* to other devices of the node */
    } node;
    struct cluster_link network; /* to devices of other nodes */
    /* fraction of the computation that can overlap communication; 0 for CPU ranks */
    double overlap;
};

/* cluster_read - read a description from a YAML file, checked as strictly as a recipe.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_RECIPE "file:line:column: key: reason" */
status cluster_read(const char *path, struct cluster *out);

/* cluster_is_gpu - return whether the devices are GPUs. Only they overlap communication. */
static inline bool cluster_is_gpu(const struct cluster *cluster)
{
    return cluster->overlap > 0;
}

/* cluster_write - write a description as YAML, without the fields that are 0. */
void cluster_write(const struct cluster *cluster, FILE *file);
