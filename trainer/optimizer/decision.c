#include "trainer/optimizer/decision.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/optimizer/rank_sum.h"

enum { RANK_SUMS = OBJECTIVE_SUMS + 1 }; /* doubles of struct decision_sums */
enum { EVENTS = DECISION_STEPS + 1 };

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
    struct event *done[EVENTS];    /* timed: of the queued steps and of the one before them */
    int queued;                    /* steps with results that were not read */
    double pauses[DECISION_STEPS]; /* seconds without a queued step before each step */
    double waited_seconds;         /* clock_seconds at the end of the last decision_wait; 0: none */
    double ended_seconds;          /* of the last step, as in decision_time */
    struct comm_range *ranges;     /* [ranks of the larger group] */
    struct spike_averages *averages; /* page-locked host memory */
    struct spike_inputs spike_inputs;
    bool finds_spikes;
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
    TRY(ALLOCATE(d->ranges, number_max(data, tensor), "the ranges of the ranks"));
    TRY(device_allocate(dev, count_bytes(d), "the sums of a step", (void **)&d->memory));
    for (int i = 0; i < DECISION_STEPS; i++) {
        TRY(device_host_allocate(dev, sizeof *d->results[i], "the results of a step",
                                 (void **)&d->results[i]));
    }
    TRY(device_host_allocate(dev, sizeof *d->averages, "the averages of spike detection",
                             (void **)&d->averages));
    for (int i = 0; i < EVENTS; i++) {
        TRY(device_event_create_timed(dev, &d->done[i]));
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
        }
        device_host_release(dev, d->averages, sizeof *d->averages);
        for (int i = 0; i < EVENTS; i++) {
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

static struct event *get_event(const struct decision *d, int64_t number)
{
    return d->done[number % EVENTS];
}

/* Returns the event of the step before. */
static struct event *get_event_before(const struct decision *d, int64_t number)
{
    return get_event(d, number + EVENTS - 1);
}

/* The stream is idle before the first step, so an event that is recorded now marks its start. */
status decision_begin(struct decision *d, int64_t number)
{
    double now = clock_seconds(), *pause = &d->pauses[number % DECISION_STEPS];
    *pause = d->queued == 0 && d->waited_seconds > 0 ? now - d->waited_seconds : 0;
    if (d->waited_seconds > 0 || d->queued > 0) {
        return STATUS_OK;
    }
    d->ended_seconds = now;
    return device_event_record(kernels_device(d->kernels), get_event_before(d, number),
                               kernels_stream(d->kernels));
}

status decision_set_averages(struct decision *d, const struct spike_averages *averages,
                             const struct spike_inputs *loss)
{
    const struct decision_sums *total = &d->memory->result.total;
    *d->averages = *averages;
    d->spike_inputs = *loss;
    d->spike_inputs.sums = total->sums;
    d->spike_inputs.predictions = total->sums + OBJECTIVE_COUNT;
    d->spike_inputs.squares = &total->squares;
    d->finds_spikes = true;
    return device_copy(kernels_device(d->kernels), kernels_stream(d->kernels),
                       &d->memory->result.spikes.averages, d->averages, sizeof *d->averages);
}

status decision_queue(struct decision *d)
{
    struct decision_result *result = &d->memory->result;
    const double *sums = result->total.sums;
    const struct update_sums inputs = {sums + OBJECTIVE_LOSS, sums + OBJECTIVE_COUNT,
                                       &result->total.squares, d->max_norm};
    TRY(add_ranks(d));
    TRY(control_decide_update(d->kernels, &d->memory->control, &inputs));
    return d->finds_spikes ? spike_score_run(d->kernels, &d->memory->control,
                                             &d->memory->result.spikes, &d->spike_inputs)
                           : STATUS_OK;
}

status decision_record(struct decision *d, int64_t number)
{
    struct device *dev = kernels_device(d->kernels);
    struct stream *stream = kernels_stream(d->kernels);
    const struct decision_result *result = &d->memory->result;
    TRY(device_copy(dev, stream, d->results[number % DECISION_STEPS], result, sizeof *result));
    d->queued++;
    return device_event_record(dev, get_event(d, number), stream);
}

status decision_wait(struct decision *d, int64_t number, struct decision_result *out,
                     struct decision_time *time)
{
    struct device *dev = kernels_device(d->kernels);
    struct event *done = get_event(d, number);
    double seconds = 0;
    TRY(device_event_wait(dev, done, DEADLINE_DEVICE_STEP_SECONDS));
    TRY(device_event_seconds(dev, get_event_before(d, number), done, &seconds));
    *out = *d->results[number % DECISION_STEPS];
    d->queued--;
    d->ended_seconds += seconds;
    d->waited_seconds = clock_seconds();
    *time = (struct decision_time){d->ended_seconds,
                                   fmax(seconds - d->pauses[number % DECISION_STEPS], 0)};
    return STATUS_OK;
}
