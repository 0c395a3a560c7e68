/* Tests that a wait for a device does not poll all the time, and that it has a deadline. The device
 * is a substitute that completes its work after a time. */
#include "base/clock.h"
#include "base/device/device.h"
#include "tests/check.h"

enum { POLLS_MAX = 20000 }; /* a wait of 0.3 s without pauses polls millions of times */

static double done_seconds;
static int polls;

static status count_devices(int *out)
{
    *out = 1;
    return STATUS_OK;
}

static status is_stream_done(struct device *dev, struct stream *stream, bool *done)
{
    (void)dev;
    (void)stream;
    polls++;
    *done = clock_seconds() >= done_seconds;
    return STATUS_OK;
}

static const char *get_name(const struct device *dev)
{
    (void)dev;
    return "substitute";
}

static status open_device(int index, struct device *dev,
                          const struct device_operations **operations, void **state)
{
    static const struct device_operations table = {.stream_done = is_stream_done, .name = get_name};
    (void)index;
    (void)dev;
    *operations = &table;
    *state = NULL;
    return STATUS_OK;
}

int main(void)
{
    static const struct device_driver driver = {count_devices, open_device};
    struct device *dev = NULL;
    device_register(DEVICE_CUDA, &driver);
    CHECK_OK(device_create(DEVICE_CUDA, 0, &dev));
    CHECK_OK(device_wait(dev, NULL, 10));
    CHECK_EQUAL(polls, 1);
    double start = clock_seconds();
    done_seconds = start + 0.3;
    CHECK_OK(device_wait(dev, NULL, 10));
    CHECK(clock_seconds() - start >= 0.3);
    printf("%d polls\n", polls);
    CHECK(polls < POLLS_MAX);
    done_seconds = clock_seconds() + 60;
    CHECK_FAILS(device_wait(dev, NULL, 0.1), STATUS_HANG, "substitute did not finish");
    CHECK_OK(device_destroy(&dev));
    return 0;
}
