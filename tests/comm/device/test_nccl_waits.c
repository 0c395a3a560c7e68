/* Tests the exposed time of a communicator over NCCL on a GPU: the time for which the computing
 * stream waits. The device is a model of a GPU in host memory. Each of its streams has a clock that
 * the test sets, and an event stores the clock of its stream. */
#include <math.h>

#include "base/device/device.h"
#include "comm/device/device.h"
#include "comm/device/nccl_impl.h"
#include "tests/check.h"

struct stream {
    int priority;
    double now;
};

struct event {
    bool timed;
    double when;
};

static double transfer_seconds; /* duration of each collective */
static bool is_late;            /* the device has not reached the waits of the computing stream */
static int events_created;

/* ---- the model of a GPU ---- */

static status model_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    (void)dev;
    (void)what;
    *out = calloc(1, bytes);
    return STATUS_OK;
}

static void model_release(struct device *dev, void *memory, size_t bytes)
{
    (void)dev;
    (void)bytes;
    free(memory);
}

static status model_stream_create(struct device *dev, int priority, struct stream **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    (*out)->priority = priority;
    return STATUS_OK;
}

static status model_stream_destroy(struct device *dev, struct stream *stream)
{
    (void)dev;
    free(stream);
    return STATUS_OK;
}

static status model_stream_done(struct device *dev, struct stream *stream, bool *done)
{
    (void)dev;
    (void)stream;
    *done = true;
    return STATUS_OK;
}

static status model_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    (void)dev;
    stream->now = fmax(stream->now, event->when);
    return STATUS_OK;
}

static void *model_stream_handle(struct device *dev, struct stream *stream)
{
    (void)dev;
    return stream;
}

static status model_event_create(struct device *dev, bool timed, struct event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    (*out)->timed = timed;
    events_created++;
    return STATUS_OK;
}

static status model_event_destroy(struct device *dev, struct event *event)
{
    (void)dev;
    free(event);
    events_created--;
    return STATUS_OK;
}

/* The stream of NCCL (priority 1) records an event after each collective. */
static status model_event_record(struct device *dev, struct event *event, struct stream *stream)
{
    (void)dev;
    stream->now += stream->priority > 0 ? transfer_seconds : 0;
    event->when = stream->now;
    return STATUS_OK;
}

static status model_event_done(struct device *dev, struct event *event, bool *done)
{
    (void)dev;
    *done = !(event->timed && is_late);
    return STATUS_OK;
}

static status model_event_seconds(struct device *dev, struct event *from, struct event *to,
                                  double *out)
{
    (void)dev;
    CHECK(from->timed && to->timed && !is_late);
    *out = to->when - from->when;
    return STATUS_OK;
}

static const char *model_name(const struct device *dev)
{
    (void)dev;
    return "a model of a GPU";
}

static status model_count(int *out)
{
    *out = 1;
    return STATUS_OK;
}

static status model_open(int index, struct device *dev, const struct device_operations **operations,
                         void **state)
{
    static const struct device_operations table = {
        .allocate = model_allocate,
        .release = model_release,
        .stream_create = model_stream_create,
        .stream_destroy = model_stream_destroy,
        .stream_done = model_stream_done,
        .stream_wait = model_stream_wait,
        .stream_handle = model_stream_handle,
        .event_create = model_event_create,
        .event_destroy = model_event_destroy,
        .event_record = model_event_record,
        .event_done = model_event_done,
        .event_seconds = model_event_seconds,
        .name = model_name,
    };
    (void)index;
    (void)dev;
    *operations = &table;
    *state = NULL;
    return STATUS_OK;
}

/* ---- tests ---- */

static struct comm *comm;
static struct stream *computing;
static float data[64];

/* Starts an all-reduce, computes while it runs, and lets the computing stream wait for it. */
static void reduce_and_compute(double compute_seconds)
{
    struct comm_request *request = NULL;
    CHECK_OK(comm_all_reduce_start(comm, data, 64, &request));
    computing->now += compute_seconds;
    CHECK_OK(comm_wait(comm, &request));
}

static double take_exposed_seconds(void)
{
    struct comm_times times;
    comm_take_times(comm, &times);
    return times.exposed_seconds;
}

static void test_exposed_time_is_that_of_the_stream(void)
{
    transfer_seconds = 3;
    reduce_and_compute(1);
    CHECK_EQUAL(take_exposed_seconds(), 2);
    CHECK_EQUAL(take_exposed_seconds(), 0); /* it counts once */
    reduce_and_compute(5);
    CHECK_EQUAL(take_exposed_seconds(), 0); /* the transfer is hidden */
    reduce_and_compute(0);
    reduce_and_compute(3);
    reduce_and_compute(2);
    CHECK_EQUAL(take_exposed_seconds(), 4);
}

/* A wait counts when the device has passed it. The host does not block until then. */
static void test_times_are_read_later(void)
{
    is_late = true;
    reduce_and_compute(1);
    CHECK_EQUAL(take_exposed_seconds(), 0);
    is_late = false;
    CHECK_EQUAL(take_exposed_seconds(), 2);
}

/* The events are reused. If all of them are pending, a wait is not measured. */
static void test_number_of_events_is_limited(void)
{
    int before = events_created;
    for (int i = 0; i < 3 * NCCL_WAITS; i++) {
        reduce_and_compute(2);
    }
    CHECK_EQUAL(take_exposed_seconds(), 3 * NCCL_WAITS);
    is_late = true;
    for (int i = 0; i < NCCL_WAITS + 5; i++) {
        reduce_and_compute(2);
    }
    is_late = false;
    CHECK_EQUAL(take_exposed_seconds(), NCCL_WAITS);
    reduce_and_compute(2);
    CHECK_EQUAL(take_exposed_seconds(), 1);
    CHECK_EQUAL(events_created, before);
}

static status reduce_once(void *unused)
{
    (void)unused;
    reduce_and_compute(0);
    return STATUS_OK;
}

static void test_calibration_is_not_counted(void)
{
    CHECK_OK(comm_calibrate(comm, reduce_once, NULL));
    CHECK_EQUAL(take_exposed_seconds(), 0);
    is_late = true;
    CHECK_OK(comm_calibrate(comm, reduce_once, NULL));
    is_late = false;
    CHECK_EQUAL(take_exposed_seconds(), 0);
}

int main(int argc, char **argv)
{
    static const struct device_driver driver = {.count = model_count, .open = model_open};
    struct comm_device_options options = {0};
    struct comm *control = NULL;
    CHECK_OK(comm_world_create(&argc, &argv, &control));
    device_register(DEVICE_CUDA, &driver);
    CHECK_OK(device_create(DEVICE_CUDA, 0, &options.device));
    CHECK_OK(device_stream_create(options.device, 0, &computing));
    options.stream = computing;
    CHECK_OK(comm_nccl_create(control, &options, &comm));
    test_exposed_time_is_that_of_the_stream();
    test_times_are_read_later();
    test_number_of_events_is_limited();
    test_calibration_is_not_counted();
    CHECK_OK(comm_destroy(&comm));
    CHECK_EQUAL(events_created, 0);
    CHECK_OK(device_stream_destroy(options.device, &computing));
    CHECK_OK(device_destroy(&options.device));
    return 0;
}
