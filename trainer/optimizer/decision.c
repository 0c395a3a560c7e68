#include "trainer/optimizer/decision.h"

#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "trainer/optimizer/rank_sum.h"

enum { RANK_SUMS = OBJECTIVE_SUMS + 1 }; /* doubles of struct decision_sums */

_Static_assert(sizeof(struct decision_sums) == RANK_SUMS * sizeof(double), "no padding");

/* Device memory. The host copies `result` only. */
struct memory {
    struct decision_result result;
    struct update_control control;
    /* of each data-parallel rank; the squares of the tensor-parallel ranks, f64 [ranks], follow */
    struct decision_sums gathered[];
};

struct decision {
    const struct mesh *mesh;
    struct kernels *kernels;
    double max_norm;
    struct memory *memory;
    struct decision_result *results[DECISION_STEPS]; /* page-locked host memory */
    struct event *done[DECISION_STEPS];
    struct comm_range *ranges; /* [ranks of the larger group] */
};

static size_t count_bytes(const struct decision *d)
{
    return sizeof(struct memory) + (size_t)comm_size(d->mesh->data) * sizeof(struct decision_sums) +
           (size_t)comm_size(d->mesh->tensor) * sizeof(double);
}

static status allocate_memory(struct decision *d)
{
    struct device *dev = kernels_device(d->kernels);
    int data = comm_size(d->mesh->data), tensor = comm_size(d->mesh->tensor);
    TRY(ALLOCATE(d->ranges, data > tensor ? data : tensor, "the ranges of the ranks"));
    TRY(device_allocate(dev, count_bytes(d), "the sums of a step", (void **)&d->memory));
    for (int i = 0; i < DECISION_STEPS; i++) {
        TRY(device_host_allocate(dev, sizeof *d->results[i], "the results of a step",
                                 (void **)&d->results[i]));
        TRY(device_event_create(dev, &d->done[i]));
    }
    return STATUS_OK;
}

status decision_create(const struct mesh *mesh, struct kernels *k, double max_norm,
                       struct decision **out)
{
    *out = NULL;
    struct decision *d = NULL;
    TRY(ALLOCATE(d, 1, "the sums of a step"));
    d->mesh = mesh;
    d->kernels = k;
    d->max_norm = max_norm;
    status result = allocate_memory(d);
    if (result != STATUS_OK) {
        decision_destroy(&d);
    }
    *out = d;
    return result;
}

void decision_destroy(struct decision **decision)
{
    struct decision *d = *decision;
    if (d != NULL) {
        struct device *dev = kernels_device(d->kernels);
        /* after an error, queued copies write to the results and to the caller's memory */
        (void)device_wait(dev, kernels_stream(d->kernels), DEADLINE_DEVICE_STEP_SECONDS);
        for (int i = 0; i < DECISION_STEPS; i++) {
            device_host_release(dev, d->results[i], sizeof *d->results[i]);
            (void)device_event_destroy(dev, &d->done[i]);
        }
        device_release(dev, d->memory, count_bytes(d));
        free(d->ranges);
        free(d);
        *decision = NULL;
    }
}

struct decision_sums *decision_own(const struct decision *d)
{
    return d->memory->gathered + comm_rank(d->mesh->data);
}

const struct update_control *decision_control(const struct decision *d)
{
    return &d->memory->control;
}

struct not_finite *decision_found(const struct decision *d)
{
    return &d->memory->result.found;
}

static status add_ranks(const struct decision *d)
{
    struct comm *data = d->mesh->data, *tensor = d->mesh->tensor;
    struct decision_sums *total = &d->memory->result.total;
    double *squares = (double *)(void *)(d->memory->gathered + comm_size(data));
    TRY(rank_sum_queue(d->kernels, data, total->sums, d->memory->gathered->sums, RANK_SUMS,
                       d->ranges));
    TRY(device_copy(kernels_device(d->kernels), kernels_stream(d->kernels),
                    squares + comm_rank(tensor), &total->squares, sizeof *squares));
    return rank_sum_queue(d->kernels, tensor, &total->squares, squares, 1, d->ranges);
}

status decision_queue(struct decision *d, int64_t number)
{
    struct device *dev = kernels_device(d->kernels);
    struct stream *stream = kernels_stream(d->kernels);
    struct decision_result *result = &d->memory->result;
    const double *sums = result->total.sums;
    const struct update_sums inputs = {sums + OBJECTIVE_LOSS, sums + OBJECTIVE_COUNT,
                                       &result->total.squares, d->max_norm};
    int slot = (int)(number % DECISION_STEPS);
    TRY(add_ranks(d));
    TRY(control_decide_update(d->kernels, &d->memory->control, &inputs));
    TRY(device_copy(dev, stream, d->results[slot], result, sizeof *result));
    return device_event_record(dev, d->done[slot], stream);
}

status decision_wait(const struct decision *d, int64_t number, struct decision_result *out)
{
    int slot = (int)(number % DECISION_STEPS);
    TRY(device_event_wait(kernels_device(d->kernels), d->done[slot], DEADLINE_DEVICE_STEP_SECONDS));
    *out = *d->results[slot];
    return STATUS_OK;
}
