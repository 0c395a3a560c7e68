/* Test of the CUDA devices of base/device/device.h on the emulated runtime. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/device/device.h"
#include "kernels/kernels.h"
#include "tests/check.h"

enum { COUNT = 1000 };

static struct device *gpu;
static struct stream *stream;

static void *allocate_on_gpu(size_t bytes)
{
    void *memory = NULL;
    CHECK_OK(device_allocate(gpu, bytes, "a test", &memory));
    return memory;
}

static int *allocate_pinned(void)
{
    void *memory = NULL;
    CHECK_OK(device_host_allocate(gpu, COUNT * sizeof(int), "a test", &memory));
    return memory;
}

static void test_memory_is_zeroed_and_copied(void)
{
    int *device = allocate_on_gpu(COUNT * sizeof *device), back[COUNT];
    memset(back, 1, sizeof back);
    CHECK_OK(device_read(gpu, stream, back, device, sizeof back));
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(back[i], 0);
        back[i] = i;
    }
    CHECK_OK(device_write(gpu, stream, device, back, sizeof back));
    memset(back, 0, sizeof back);
    CHECK_OK(device_zero(gpu, stream, device, 10 * sizeof *device));
    CHECK_OK(device_read(gpu, stream, back, device, sizeof back));
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(back[i], i < 10 ? 0 : i);
    }
    device_release(gpu, device, COUNT * sizeof *device);
}

/* Before the host waits for a copy, the copy reads the newer value of the host (late streams) or
 * the old one (eager). */
static void test_copies_are_queued(void)
{
    int *device = allocate_on_gpu(COUNT * sizeof *device), *host = allocate_pinned(),
        *back = allocate_pinned();
    const char *mode = getenv("SIMT_STREAMS");
    bool eager = mode != NULL && strcmp(mode, "eager") == 0;
    host[0] = 1;
    CHECK_OK(device_copy(gpu, stream, device, host, COUNT * sizeof *host));
    host[0] = 2;
    CHECK_OK(device_copy(gpu, stream, back, device, COUNT * sizeof *host));
    CHECK_EQUAL(back[0], eager ? 1 : 0);
    CHECK_OK(device_wait(gpu, stream, 10));
    CHECK_EQUAL(back[0], eager ? 1 : 2);
    device_host_release(gpu, host, COUNT * sizeof *host);
    device_host_release(gpu, back, COUNT * sizeof *host);
    device_release(gpu, device, COUNT * sizeof *device);
}

static void test_streams_follow_events(void)
{
    struct stream *other = NULL;
    struct event *written = NULL;
    int *device = allocate_on_gpu(COUNT * sizeof *device), *host = allocate_pinned(),
        *back = allocate_pinned();
    CHECK_OK(device_stream_create(gpu, 1, &other));
    CHECK_OK(device_event_create(gpu, &written));
    CHECK_OK(device_event_wait(gpu, written, 10)); /* never recorded: complete */
    host[5] = 7;
    CHECK_OK(device_copy(gpu, stream, device, host, COUNT * sizeof *host));
    CHECK_OK(device_event_record(gpu, written, stream));
    CHECK_OK(device_stream_wait(gpu, other, written));
    CHECK_OK(device_copy(gpu, other, back, device, COUNT * sizeof *host));
    CHECK_OK(device_wait(gpu, other, 10));
    CHECK_EQUAL(back[5], 7);
    CHECK_OK(device_event_wait(gpu, written, 10));
    CHECK_OK(device_event_destroy(gpu, &written));
    CHECK_OK(device_stream_destroy(gpu, &other));
    device_host_release(gpu, host, COUNT * sizeof *host);
    device_host_release(gpu, back, COUNT * sizeof *host);
    device_release(gpu, device, COUNT * sizeof *device);
}

/* Only timed events store a time. */
static void test_timed_events(void)
{
    struct event *from = NULL, *to = NULL, *untimed = NULL;
    double seconds = -1;
    CHECK_OK(device_event_create_timed(gpu, &from));
    CHECK_OK(device_event_create_timed(gpu, &to));
    CHECK_OK(device_event_create(gpu, &untimed));
    CHECK_OK(device_event_record(gpu, from, stream));
    CHECK_OK(device_event_record(gpu, to, stream));
    CHECK_OK(device_event_record(gpu, untimed, stream));
    CHECK_OK(device_wait(gpu, stream, 10));
    CHECK_OK(device_event_seconds(gpu, from, to, &seconds));
    CHECK(seconds >= 0 && seconds < 10);
    CHECK_FAILS(device_event_seconds(gpu, from, untimed, &seconds), STATUS_INTERNAL,
                "reading the time between events failed");
    CHECK_OK(device_event_destroy(gpu, &from));
    CHECK_OK(device_event_destroy(gpu, &to));
    CHECK_OK(device_event_destroy(gpu, &untimed));
}

/* A host access to device memory ends the program. All other tests of the host side rely on this
 * check. */
static void test_host_access_fails(void)
{
    int *device = allocate_on_gpu(COUNT * sizeof *device);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        (void)*(volatile int *)device;
        _exit(0);
    }
    int exit_status = 0;
    waitpid(child, &exit_status, 0);
    CHECK(WIFSIGNALED(exit_status) || WEXITSTATUS(exit_status) != 0);
    device_release(gpu, device, COUNT * sizeof *device);
}

static void test_out_of_memory_message(void)
{
    void *memory = NULL;
    size_t free_bytes = 0, all_bytes = 0;
    CHECK_OK(device_memory(gpu, &free_bytes, &all_bytes));
    CHECK_EQUAL(all_bytes, (size_t)64 << 20);
    CHECK_EQUAL(free_bytes, all_bytes);
    CHECK_FAILS(
        device_allocate(gpu, all_bytes + 1, "the activations", &memory), STATUS_INTERNAL,
        "out of memory on GPU 0 (emulated): 67108865 bytes (64 MiB) for the activations, 64 "
        "of 64 MiB are free; lower batch.micro_size");
}

static void test_missing_gpu_messages(void)
{
    struct device *none = NULL;
    CHECK_EQUAL(device_count(DEVICE_CUDA), 1);
    CHECK_FAILS(device_create(DEVICE_CUDA, 1, &none), STATUS_UNAVAILABLE,
                "GPU 1 is requested, but the number of visible GPUs is 1");
    setenv("SIMT_DEVICES", "0", 1);
    CHECK_EQUAL(device_count(DEVICE_CUDA), 0);
    CHECK_FAILS(device_create(DEVICE_CUDA, 0, &none), STATUS_UNAVAILABLE, "no CUDA-capable device");
    unsetenv("SIMT_DEVICES");
    setenv("SIMT_CAPABILITY", "7", 1);
    CHECK_FAILS(device_create(DEVICE_CUDA, 0, &none), STATUS_UNAVAILABLE,
                "the minimum is 8.0 (Ampere)");
    unsetenv("SIMT_CAPABILITY");
}

int main(void)
{
    setenv("SIMT_MEMORY_MIB", "64", 1);
    cuda_register();
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
    CHECK(!device_is_host(gpu));
    CHECK_OK(device_stream_create(gpu, 0, &stream));
    test_memory_is_zeroed_and_copied();
    test_copies_are_queued();
    test_streams_follow_events();
    test_timed_events();
    test_host_access_fails();
    test_out_of_memory_message();
    test_missing_gpu_messages();
    CHECK_OK(device_stream_destroy(gpu, &stream));
    CHECK_OK(device_destroy(&gpu));
    return 0;
}
