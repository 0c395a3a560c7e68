#include "trainer/optimizer/trust_ratios.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/optimizer/rank_sum.h"

enum { SQUARES = 2 }; /* of a tensor: of its weights and of its update */

struct trust_ratios {
    struct trust_ratios_options options;
    int range_count;
    struct comm_range *rank_ranges; /* [ranks of the larger group] */
    void *memory;                   /* all arrays below, on the device */
    size_t bytes;
    double *all;             /* [ranks, tensors, SQUARES] */
    double *sums;            /* [tensors, SQUARES] */
    double *ratios;          /* [ranges] */
    int32_t *first, *counts; /* [tensors]: ranges of a tensor */
    int32_t *tensors;        /* [ranges]; -1: the ratio is 1 */
};

static int count_ranks(const struct trust_ratios *t)
{
    int data = comm_size(t->options.mesh->data), tensor = comm_size(t->options.mesh->tensor);
    return number_max(data, tensor);
}

static status allocate_memory(struct trust_ratios *t)
{
    size_t tensors = (size_t)t->options.parameter_count, ranges = (size_t)t->range_count;
    size_t doubles = SQUARES * tensors * ((size_t)count_ranks(t) + 1) + ranges;
    t->bytes = doubles * sizeof(double) + (2 * tensors + ranges) * sizeof(int32_t);
    TRY(ALLOCATE(t->rank_ranges, count_ranks(t), "the ranges of the ranks"));
    TRY(device_allocate(kernels_device(t->options.kernels), t->bytes, "trust ratios", &t->memory));
    t->all = t->memory;
    t->sums = t->all + SQUARES * tensors * (size_t)count_ranks(t);
    t->ratios = t->sums + SQUARES * tensors;
    t->first = (int32_t *)(void *)(t->ratios + ranges);
    t->counts = t->first + tensors;
    t->tensors = t->counts + tensors;
    return STATUS_OK;
}

/* Fills first, counts and tensors, which are adjacent. Parameters that all ranks of the
 * tensor-parallel group hold count once. */
static void list_tensors(const struct trust_ratios *t, int32_t *table)
{
    const struct trust_ratios_options *o = &t->options;
    int count = 0;
    const struct optimizer_range *ranges = optimizer_ranges(o->optimizer, &count);
    int32_t *first = table, *counts = first + o->parameter_count;
    int32_t *tensors = counts + o->parameter_count;
    for (int i = 0; i < count; i++) {
        int tensor = ranges[i].tensor;
        bool counted = comm_rank(o->mesh->tensor) == 0 || !o->parameters[tensor].replicated;
        first[tensor] = counts[tensor] == 0 ? i : first[tensor];
        counts[tensor] += counted;
        tensors[i] = optimizer_has_trust_ratio(o->optimizer, i) ? tensor : -1;
    }
}

static status upload_tensors(const struct trust_ratios *t)
{
    int64_t count = 2 * (int64_t)t->options.parameter_count + t->range_count;
    int32_t *table = NULL;
    TRY(ALLOCATE(table, count, "the tensors of the trust ratios"));
    list_tensors(t, table);
    status result =
        device_write(kernels_device(t->options.kernels), kernels_stream(t->options.kernels),
                     t->first, table, (size_t)count * sizeof *table);
    free(table);
    return result;
}

status trust_ratios_create(const struct trust_ratios_options *options, struct trust_ratios **out)
{
    *out = NULL;
    struct trust_ratios *t = NULL;
    TRY(ALLOCATE(t, 1, "the trust ratios"));
    t->options = *options;
    (void)optimizer_ranges(options->optimizer, &t->range_count);
    status result = allocate_memory(t);
    if (result == STATUS_OK) {
        result = upload_tensors(t);
    }
    if (result != STATUS_OK) {
        trust_ratios_destroy(&t);
        return result;
    }
    optimizer_set_trust_ratios_on_device(options->optimizer, t->ratios);
    *out = t;
    return STATUS_OK;
}

void trust_ratios_destroy(struct trust_ratios **t)
{
    if (*t != NULL) {
        device_release(kernels_device((*t)->options.kernels), (*t)->memory, (*t)->bytes);
        free((*t)->rank_ranges);
        free(*t);
        *t = NULL;
    }
}

/* Replaces the sums by those over all ranks of a group. */
static status add_ranks(const struct trust_ratios *t, struct comm *comm)
{
    struct kernels *k = t->options.kernels;
    int64_t columns = SQUARES * (int64_t)t->options.parameter_count;
    if (comm_size(comm) == 1) {
        return STATUS_OK;
    }
    TRY(device_copy(kernels_device(k), kernels_stream(k), t->all + comm_rank(comm) * columns,
                    t->sums, (size_t)columns * sizeof *t->sums));
    return rank_sum_queue(k, comm, t->sums, t->all, columns, t->rank_ranges);
}

status trust_ratios_queue(struct trust_ratios *t)
{
    const struct trust_ratios_options *o = &t->options;
    const double *squares = &optimizer_device_squares(o->optimizer)->weights;
    TRY(control_sum_segments(o->kernels, t->sums, squares, t->first, t->counts, o->parameter_count,
                             SQUARES));
    TRY(o->sharded ? add_ranks(t, o->mesh->data) : STATUS_OK);
    TRY(add_ranks(t, o->mesh->tensor));
    return t->range_count > 0
               ? control_trust_ratios(o->kernels, t->ratios, t->sums, t->tensors, t->range_count)
               : STATUS_OK;
}
