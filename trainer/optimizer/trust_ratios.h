/* The trust ratios of LAMB in device memory. Each rank holds a part of a tensor; the ratio
 * describes the whole tensor. It has the same bits as with optimizer_add_squares and
 * optimizer_set_trust_ratios. */
#pragma once

#include "comm/mesh.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"

struct trust_ratios;

struct trust_ratios_options {
    const struct mesh *mesh;
    struct kernels *kernels;
    struct optimizer *optimizer; /* its later updates read the ratios */
    const struct model_parameter *parameters;
    int parameter_count;
    bool sharded; /* the data-parallel ranks own different ranges */
};

/* trust_ratios_create - allocate the sums and the ratios.
 *
 * Memory    on the device; release with trust_ratios_destroy, after the last update
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status trust_ratios_create(const struct trust_ratios_options *options, struct trust_ratios **out);

/* trust_ratios_destroy - release the memory and set *t to NULL; *t may be NULL. */
void trust_ratios_destroy(struct trust_ratios **t);

/* trust_ratios_queue - queue the ratios of a step.
 *
 * Order     collective, after optimizer_update_moments of all slices */
status trust_ratios_queue(struct trust_ratios *t);
