/* A cluster in a few numbers: what a device reaches, and what the links between devices carry.
 *
 * `bireme plan --cluster FILE` reads one (recipes/clusters/, or what `bireme bench cluster` has measured here)
 * and predicts a step's time from it (predict.h). Rates are those that large operations reach, not a data
 * sheet's peaks. A device is what one rank computes on; where a node has more ranks than devices they divide the
 * devices' rates, so that a CPU node is one device: all its cores. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define CLUSTER_TEXT_BYTES 256

/* 0: not given. */
struct cluster_link {
    double gb_per_second;        /* that a device sends, while it receives as much */
    double latency_microseconds; /* of one message */
};

struct cluster {
    char path[1024]; /* of the file, for messages */
    char name[CLUSTER_TEXT_BYTES];
    struct {
        double memory_gib;
        double peak_tflops;                              /* what MFU is a share of */
        double product_tflops_fp32, product_tflops_bf16; /* of a step's matrix products */
        double attention_tflops_fp32,
            attention_tflops_bf16;     /* forward and backward, masked half not counted */
        double memory_gb_per_second;   /* read and written by element-wise passes */
        double operation_microseconds; /* to start one */
    } device;
    struct {
        int64_t devices;
        struct cluster_link link; /* to the other devices of the node */
    } node;
    struct cluster_link network; /* to devices of other nodes */
    double
        overlap; /* share of the computation's time behind which data can travel; 0: none (CPU ranks) */
};

/* cluster_read - from a YAML file, checked as strictly as a recipe.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_RECIPE "file:line:column: key: reason" */
status cluster_read(const char *path, struct cluster *out);

/* cluster_write - as YAML that cluster_read takes; what is 0 is left out. */
void cluster_write(const struct cluster *cluster, FILE *file);
