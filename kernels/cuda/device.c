/* GPUs as devices (base/device.h): memory, page-locked memory of the host, streams and events of the CUDA
 * runtime. Its default stream is never used.
 *
 * The runtime is linked in whole and finds the driver when it is first asked, so that one program starts on
 * machines with a GPU and without. A struct stream is a cudaStream_t, a struct event a cudaEvent_t. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "base/device.h"
#include "kernels/cuda/cuda.h"

struct gpu {
    int index;
    char name[288];
    unsigned char identity[DEVICE_IDENTITY_BYTES];
    cudaStream_t stream; /* for what the host waits for */
    bool ranged;         /* within a range of NVTX */
};

static const size_t mebibyte = (size_t)1 << 20;

static struct gpu *gpu_of(const struct device *dev)
{
    return device_state(dev);
}

static cudaStream_t stream_of(struct stream *stream)
{
    return (cudaStream_t)(void *)stream;
}

static cudaEvent_t event_of(struct event *event)
{
    return (cudaEvent_t)(void *)event;
}

/* CHECK - return where the runtime says no. What it says of a kernel that failed comes with a later call. */
#define CHECK(dev, what, call)                                                                     \
    do {                                                                                           \
        cudaError_t check_error = (call);                                                          \
        REQUIRE(check_error == cudaSuccess, STATUS_INTERNAL, "%s: %s failed: %s",                  \
                gpu_of(dev)->name, what, cudaGetErrorString(check_error));                         \
    } while (0)

/* Every thread has a GPU of its own in mind. */
static status enter(const struct device *dev)
{
    CHECK(dev, "choosing it", cudaSetDevice(gpu_of(dev)->index));
    return STATUS_OK;
}

/* Something other than a launch is queued on this stream, or memory comes or goes (NULL): launches that were held
 * back for a graph go first. */
static status enter_behind(const struct device *dev, const struct stream *stream)
{
    TRY(enter(dev));
    return cuda_graph_cut(stream);
}

/* ---- memory ---- */

static status gpu_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes)
{
    TRY(enter(dev));
    CHECK(dev, "asking for its memory", cudaMemGetInfo(free_bytes, all_bytes));
    return STATUS_OK;
}

static status raise_out_of_memory(struct device *dev, size_t bytes, const char *what)
{
    size_t free_bytes = 0, all_bytes = 0;
    (void)cudaGetLastError(); /* it was told */
    (void)cudaMemGetInfo(&free_bytes, &all_bytes);
    RAISE(STATUS_INTERNAL,
          "out of memory on %s: %zu bytes (%zu MiB) for %s, %zu of %zu MiB are free; lower "
          "batch.micro_size or share the optimizer's state (parallel.zero_stage). `bireme plan` "
          "tells "
          "what a recipe needs",
          gpu_of(dev)->name, bytes, bytes / mebibyte, what, free_bytes / mebibyte,
          all_bytes / mebibyte);
}

static status gpu_zero(struct device *dev, struct stream *stream, void *to, size_t bytes)
{
    REQUIRE(stream != NULL, STATUS_INTERNAL, "zeros for a GPU without a stream");
    TRY(enter_behind(dev, stream));
    if (bytes > 0) {
        CHECK(dev, "zeroing", cudaMemsetAsync(to, 0, bytes, stream_of(stream)));
    }
    return STATUS_OK;
}

static status gpu_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    size_t size = bytes > 0 ? bytes : 1;
    TRY(enter_behind(dev, NULL));
    cudaError_t error = cudaMalloc(out, size);
    if (error == cudaErrorMemoryAllocation) {
        return raise_out_of_memory(dev, bytes, what);
    }
    CHECK(dev, what, error);
    CHECK(dev, what, cudaMemsetAsync(*out, 0, size, gpu_of(dev)->stream));
    CHECK(dev, what, cudaStreamSynchronize(gpu_of(dev)->stream));
    return STATUS_OK;
}

static void gpu_release(struct device *dev, void *memory, size_t bytes)
{
    (void)bytes;
    (void)enter_behind(dev, NULL);
    (void)cudaFree(memory);
}

static status gpu_host_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    size_t size = bytes > 0 ? bytes : 1;
    TRY(enter_behind(dev, NULL));
    cudaError_t error = cudaHostAlloc(out, size, cudaHostAllocPortable);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        RAISE(STATUS_INTERNAL, "out of page-locked memory: %zu bytes for %s: %s", bytes, what,
              cudaGetErrorString(error));
    }
    memset(*out, 0, size);
    return STATUS_OK;
}

static void gpu_host_release(struct device *dev, void *memory, size_t bytes)
{
    (void)bytes;
    (void)enter_behind(dev, NULL);
    (void)cudaFreeHost(memory);
}

static bool gpu_host_register(struct device *dev, void *memory, size_t bytes)
{
    (void)enter_behind(dev, NULL);
    bool done = cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess;
    (void)cudaGetLastError();
    return done;
}

static void gpu_host_unregister(struct device *dev, void *memory)
{
    (void)enter_behind(dev, NULL);
    (void)cudaHostUnregister(memory);
    (void)cudaGetLastError();
}

static status gpu_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                       size_t bytes)
{
    REQUIRE(stream != NULL, STATUS_INTERNAL, "a copy on a GPU without a stream");
    TRY(enter_behind(dev, stream));
    if (bytes > 0) {
        CHECK(dev, "copying",
              cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
    }
    return STATUS_OK;
}

/* ---- streams and events ---- */

static status gpu_stream_create(struct device *dev, int priority, struct stream **out)
{
    cudaStream_t stream = NULL;
    int least = 0, greatest = 0;
    TRY(enter(dev));
    CHECK(dev, "making a stream", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(
        dev, "making a stream",
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority > 0 ? greatest : 0));
    *out = (struct stream *)(void *)stream;
    return STATUS_OK;
}

static status gpu_stream_destroy(struct device *dev, struct stream *stream)
{
    TRY(enter_behind(dev, stream));
    CHECK(dev, "ending a stream", cudaStreamDestroy(stream_of(stream)));
    return STATUS_OK;
}

static status done_or_failed(struct device *dev, cudaError_t error, bool *done)
{
    *done = error == cudaSuccess;
    REQUIRE(error == cudaSuccess || error == cudaErrorNotReady, STATUS_INTERNAL,
            "%s stopped in the middle of its queue: %s", gpu_of(dev)->name,
            cudaGetErrorString(error));
    return STATUS_OK;
}

static status gpu_stream_done(struct device *dev, struct stream *stream, bool *done)
{
    TRY(enter_behind(dev, stream));
    return done_or_failed(dev, cudaStreamQuery(stream_of(stream)), done);
}

static status gpu_event_create(struct device *dev, struct event **out)
{
    cudaEvent_t event = NULL;
    TRY(enter(dev));
    CHECK(dev, "making an event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *out = (struct event *)(void *)event;
    return STATUS_OK;
}

static status gpu_event_destroy(struct device *dev, struct event *event)
{
    TRY(enter(dev));
    CHECK(dev, "ending an event", cudaEventDestroy(event_of(event)));
    return STATUS_OK;
}

static status gpu_event_record(struct device *dev, struct event *event, struct stream *stream)
{
    TRY(enter_behind(dev, stream));
    CHECK(dev, "recording an event", cudaEventRecord(event_of(event), stream_of(stream)));
    return STATUS_OK;
}

static status gpu_event_done(struct device *dev, struct event *event, bool *done)
{
    TRY(enter(dev));
    return done_or_failed(dev, cudaEventQuery(event_of(event)), done);
}

static status gpu_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    TRY(enter_behind(dev, stream));
    CHECK(dev, "waiting for an event",
          cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault));
    return STATUS_OK;
}

static void *gpu_stream_handle(struct device *dev, struct stream *stream)
{
    (void)dev;
    return stream_of(stream);
}

/* ---- the device ---- */

static void gpu_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES])
{
    memcpy(out, gpu_of(dev)->identity, DEVICE_IDENTITY_BYTES);
}

static const char *gpu_name(const struct device *dev)
{
    return gpu_of(dev)->name;
}

static void gpu_range(struct device *dev, const char *name)
{
    struct gpu *gpu = gpu_of(dev);
    if (gpu->ranged) {
        nvtxRangePop();
    }
    gpu->ranged = name != NULL;
    if (gpu->ranged) {
        nvtxRangePushA(name);
    }
}

static void gpu_destroy(struct device *dev)
{
    (void)cudaSetDevice(gpu_of(dev)->index);
    (void)cudaStreamDestroy(gpu_of(dev)->stream);
    free(gpu_of(dev));
}

static const struct device_operations operations = {
    .allocate = gpu_allocate,
    .release = gpu_release,
    .host_allocate = gpu_host_allocate,
    .host_release = gpu_host_release,
    .host_register = gpu_host_register,
    .host_unregister = gpu_host_unregister,
    .copy = gpu_copy,
    .zero = gpu_zero,
    .stream_create = gpu_stream_create,
    .stream_destroy = gpu_stream_destroy,
    .stream_done = gpu_stream_done,
    .stream_wait = gpu_stream_wait,
    .stream_handle = gpu_stream_handle,
    .event_create = gpu_event_create,
    .event_destroy = gpu_event_destroy,
    .event_record = gpu_event_record,
    .event_done = gpu_event_done,
    .memory = gpu_memory,
    .name = gpu_name,
    .range = gpu_range,
    .identity = gpu_identity,
    .destroy = gpu_destroy,
};

static status gpu_count(int *out)
{
    *out = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        RAISE(
            STATUS_UNAVAILABLE,
            "device cuda: no GPU can be used: %s (nvidia-smi tells whether a driver of CUDA %d is "
            "there); set train.device to cpu or auto",
            cudaGetErrorString(error), CUDART_VERSION / 1000);
    }
    return STATUS_OK;
}

static status describe(struct gpu *gpu)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, gpu->index);
    REQUIRE(error == cudaSuccess, STATUS_UNAVAILABLE, "device cuda: GPU %d: %s", gpu->index,
            cudaGetErrorString(error));
    snprintf(gpu->name, sizeof gpu->name, "GPU %d (%.250s)", gpu->index, properties.name);
    memcpy(gpu->identity, &properties.uuid, sizeof gpu->identity);
    REQUIRE(properties.major >= CUDA_CAPABILITY_LEAST, STATUS_UNAVAILABLE,
            "device cuda: %s has compute capability %d.%d, and %d.0 (Ampere) is the least; set "
            "train.device to cpu",
            gpu->name, properties.major, properties.minor, CUDA_CAPABILITY_LEAST);
    return STATUS_OK;
}

static status gpu_open(int index, struct device *dev, const struct device_operations **table,
                       void **state)
{
    (void)dev;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    REQUIRE(gpu != NULL, STATUS_INTERNAL, "out of memory for a device");
    gpu->index = index;
    status result = describe(gpu);
    if (result == STATUS_OK) {
        cudaError_t error = cudaSetDevice(index);
        error = error == cudaSuccess
                    ? cudaStreamCreateWithPriority(&gpu->stream, cudaStreamNonBlocking, 0)
                    : error;
        result = error == cudaSuccess ? STATUS_OK
                                      : status_raise(STATUS_UNAVAILABLE, __FILE__, __LINE__,
                                                     "device cuda: %s cannot be opened: %s",
                                                     gpu->name, cudaGetErrorString(error));
    }
    if (result != STATUS_OK) {
        free(gpu);
        return result;
    }
    *table = &operations;
    *state = gpu;
    return STATUS_OK;
}

const struct device_driver cuda_device_driver = {.count = gpu_count, .open = gpu_open};
