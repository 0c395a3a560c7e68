/* GPUs as devices of base/device/device.h: device memory, page-locked host memory, streams and
 * events of the CUDA runtime. The default stream is never used.
 *
 * The runtime is linked statically and loads the driver at its first call, so that the same program
 * starts on machines with and without a GPU. A struct stream is a cudaStream_t, a struct event
 * a cudaEvent_t. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "base/device/device.h"
#include "base/memory.h"
#include "kernels/cuda/cuda.h"

struct gpu {
    int index;
    char name[288];
    int capability; /* 10 times the compute capability */
    unsigned char identity[DEVICE_IDENTITY_BYTES];
    cudaStream_t stream; /* for work that the host waits for */
    bool in_range;       /* an NVTX range is open */
};

static const size_t mebibyte = (size_t)1 << 20;

static struct gpu *get_gpu(const struct device *dev)
{
    return device_state(dev);
}

static cudaStream_t to_cuda_stream(struct stream *stream)
{
    return (cudaStream_t)(void *)stream;
}

static cudaEvent_t to_cuda_event(struct event *event)
{
    return (cudaEvent_t)(void *)event;
}

/* CHECK - raise an error and return if a call of the runtime fails. The error of a failed kernel
 * appears at a later call. */
#define CHECK(dev, what, call)                                                                     \
    do {                                                                                           \
        cudaError_t check_error = (call);                                                          \
        REQUIRE(check_error == cudaSuccess, STATUS_INTERNAL, "%s: %s failed: %s",                  \
                get_gpu(dev)->name, what, cudaGetErrorString(check_error));                        \
    } while (0)

/* Selects the GPU: the current device is a setting of each thread. */
static status set_current(const struct device *dev)
{
    CHECK(dev, "cudaSetDevice", cudaSetDevice(get_gpu(dev)->index));
    return STATUS_OK;
}

/* Selects the GPU and starts the launches that a graph has deferred. Called before anything other
 * than a launch is queued on this stream, and with NULL before memory is allocated or released. */
static status set_current_and_flush(const struct device *dev, const struct stream *stream)
{
    TRY(set_current(dev));
    return cuda_graph_end_segment(stream);
}

/* ---- memory ---- */

static status gpu_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes)
{
    TRY(set_current(dev));
    CHECK(dev, "cudaMemGetInfo", cudaMemGetInfo(free_bytes, all_bytes));
    return STATUS_OK;
}

static status raise_out_of_memory(struct device *dev, size_t bytes, const char *what)
{
    size_t free_bytes = 0, all_bytes = 0;
    (void)cudaGetLastError(); /* clear the error; it is reported here */
    (void)cudaMemGetInfo(&free_bytes, &all_bytes);
    RAISE(STATUS_INTERNAL,
          "out of memory on %s: %zu bytes (%zu MiB) for %s, %zu of %zu MiB are free; lower "
          "batch.micro_size or shard the optimizer state (parallel.zero_stage). `bireme plan` "
          "prints the memory that a recipe needs",
          get_gpu(dev)->name, bytes, bytes / mebibyte, what, free_bytes / mebibyte,
          all_bytes / mebibyte);
}

static status gpu_zero(struct device *dev, struct stream *stream, void *to, size_t bytes)
{
    REQUIRE(stream != NULL, STATUS_INTERNAL, "zeroing memory of a GPU requires a stream");
    TRY(set_current_and_flush(dev, stream));
    if (bytes > 0) {
        CHECK(dev, "zeroing memory", cudaMemsetAsync(to, 0, bytes, to_cuda_stream(stream)));
    }
    return STATUS_OK;
}

static status gpu_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    size_t size = bytes > 0 ? bytes : 1;
    TRY(set_current_and_flush(dev, NULL));
    cudaError_t error = cudaMalloc(out, size);
    if (error == cudaErrorMemoryAllocation) {
        return raise_out_of_memory(dev, bytes, what);
    }
    CHECK(dev, what, error);
    CHECK(dev, what, cudaMemsetAsync(*out, 0, size, get_gpu(dev)->stream));
    CHECK(dev, what, cudaStreamSynchronize(get_gpu(dev)->stream));
    return STATUS_OK;
}

static void gpu_release(struct device *dev, void *memory, size_t bytes)
{
    (void)bytes;
    (void)set_current_and_flush(dev, NULL);
    (void)cudaFree(memory);
}

static status gpu_host_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    size_t size = bytes > 0 ? bytes : 1;
    TRY(set_current_and_flush(dev, NULL));
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
    (void)set_current_and_flush(dev, NULL);
    (void)cudaFreeHost(memory);
}

static bool gpu_host_register(struct device *dev, void *memory, size_t bytes)
{
    (void)set_current_and_flush(dev, NULL);
    bool done = cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess;
    (void)cudaGetLastError();
    return done;
}

static void gpu_host_unregister(struct device *dev, void *memory)
{
    (void)set_current_and_flush(dev, NULL);
    (void)cudaHostUnregister(memory);
    (void)cudaGetLastError();
}

static status gpu_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                       size_t bytes)
{
    REQUIRE(stream != NULL, STATUS_INTERNAL, "a copy on a GPU requires a stream");
    TRY(set_current_and_flush(dev, stream));
    if (bytes > 0) {
        CHECK(dev, "copying memory",
              cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, to_cuda_stream(stream)));
    }
    return STATUS_OK;
}

/* ---- streams and events ---- */

static status gpu_stream_create(struct device *dev, int priority, struct stream **out)
{
    cudaStream_t stream = NULL;
    int lowest = 0, greatest = 0;
    TRY(set_current(dev));
    CHECK(dev, "creating a stream", cudaDeviceGetStreamPriorityRange(&lowest, &greatest));
    CHECK(
        dev, "creating a stream",
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority > 0 ? greatest : 0));
    *out = (struct stream *)(void *)stream;
    return STATUS_OK;
}

static status gpu_stream_destroy(struct device *dev, struct stream *stream)
{
    TRY(set_current_and_flush(dev, stream));
    CHECK(dev, "destroying a stream", cudaStreamDestroy(to_cuda_stream(stream)));
    return STATUS_OK;
}

static status check_progress(struct device *dev, cudaError_t error, bool *done)
{
    *done = error == cudaSuccess;
    REQUIRE(error == cudaSuccess || error == cudaErrorNotReady, STATUS_INTERNAL,
            "%s: queued work failed: %s", get_gpu(dev)->name, cudaGetErrorString(error));
    return STATUS_OK;
}

static status gpu_stream_done(struct device *dev, struct stream *stream, bool *done)
{
    TRY(set_current_and_flush(dev, stream));
    return check_progress(dev, cudaStreamQuery(to_cuda_stream(stream)), done);
}

static status gpu_event_create(struct device *dev, bool timed, struct event **out)
{
    cudaEvent_t event = NULL;
    TRY(set_current(dev));
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    CHECK(dev, "creating an event", cudaEventCreateWithFlags(&event, flags));
    *out = (struct event *)(void *)event;
    return STATUS_OK;
}

static status gpu_event_destroy(struct device *dev, struct event *event)
{
    TRY(set_current(dev));
    CHECK(dev, "destroying an event", cudaEventDestroy(to_cuda_event(event)));
    return STATUS_OK;
}

static status gpu_event_record(struct device *dev, struct event *event, struct stream *stream)
{
    TRY(set_current_and_flush(dev, stream));
    CHECK(dev, "recording an event", cudaEventRecord(to_cuda_event(event), to_cuda_stream(stream)));
    return STATUS_OK;
}

static status gpu_event_done(struct device *dev, struct event *event, bool *done)
{
    TRY(set_current(dev));
    return check_progress(dev, cudaEventQuery(to_cuda_event(event)), done);
}

static status gpu_event_seconds(struct device *dev, struct event *from, struct event *to,
                                double *out)
{
    float milliseconds = 0;
    TRY(set_current(dev));
    CHECK(dev, "reading the time between events",
          cudaEventElapsedTime(&milliseconds, to_cuda_event(from), to_cuda_event(to)));
    *out = 1e-3 * (double)milliseconds;
    return STATUS_OK;
}

static status gpu_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    TRY(set_current_and_flush(dev, stream));
    CHECK(dev, "waiting for an event",
          cudaStreamWaitEvent(to_cuda_stream(stream), to_cuda_event(event), cudaEventWaitDefault));
    return STATUS_OK;
}

static void *gpu_stream_handle(struct device *dev, struct stream *stream)
{
    (void)dev;
    return to_cuda_stream(stream);
}

/* ---- graphs ---- */

static bool gpu_in_graph(const struct stream *stream)
{
    return cuda_graph_is_active(stream);
}

static status gpu_queue_work(struct device *dev, struct stream *stream,
                             const struct device_work *work, const void *argument, size_t bytes)
{
    TRY(set_current(dev));
    return cuda_graph_queue_work(stream, work, argument, bytes);
}

/* ---- the device ---- */

static void gpu_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES])
{
    memcpy(out, get_gpu(dev)->identity, DEVICE_IDENTITY_BYTES);
}

static const char *gpu_name(const struct device *dev)
{
    return get_gpu(dev)->name;
}

static void gpu_range(struct device *dev, const char *name)
{
    struct gpu *gpu = get_gpu(dev);
    if (gpu->in_range) {
        nvtxRangePop();
    }
    gpu->in_range = name != NULL;
    if (gpu->in_range) {
        nvtxRangePushA(name);
    }
}

static void gpu_destroy(struct device *dev)
{
    (void)cudaSetDevice(get_gpu(dev)->index);
    (void)cudaStreamDestroy(get_gpu(dev)->stream);
    free(get_gpu(dev));
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
    .event_seconds = gpu_event_seconds,
    .memory = gpu_memory,
    .name = gpu_name,
    .range = gpu_range,
    .identity = gpu_identity,
    .destroy = gpu_destroy,
    .in_graph = gpu_in_graph,
    .queue_work = gpu_queue_work,
};

static status gpu_count(int *out)
{
    *out = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        RAISE(STATUS_UNAVAILABLE,
              "device cuda: no usable GPU: %s (check with nvidia-smi that a driver for CUDA %d is "
              "installed); set train.device to cpu or auto",
              cudaGetErrorString(error), CUDART_VERSION / 1000);
    }
    return STATUS_OK;
}

static status read_properties(struct gpu *gpu)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, gpu->index);
    REQUIRE(error == cudaSuccess, STATUS_UNAVAILABLE, "device cuda: GPU %d: %s", gpu->index,
            cudaGetErrorString(error));
    snprintf(gpu->name, sizeof gpu->name, "GPU %d (%.250s)", gpu->index, properties.name);
    memcpy(gpu->identity, &properties.uuid, sizeof gpu->identity);
    gpu->capability = 10 * properties.major + properties.minor;
    REQUIRE(properties.major >= CUDA_MIN_CAPABILITY, STATUS_UNAVAILABLE,
            "device cuda: %s has compute capability %d.%d; the minimum is %d.0 (Ampere); set "
            "train.device to cpu",
            gpu->name, properties.major, properties.minor, CUDA_MIN_CAPABILITY);
    return STATUS_OK;
}

static status gpu_open(int index, struct device *dev, const struct device_operations **table,
                       void **state)
{
    (void)dev;
    struct gpu *gpu = NULL;
    TRY(ALLOCATE(gpu, 1, "a device"));
    gpu->index = index;
    status result = read_properties(gpu);
    if (result == STATUS_OK) {
        cudaError_t error = cudaSetDevice(index);
        error = error == cudaSuccess
                    ? cudaStreamCreateWithPriority(&gpu->stream, cudaStreamNonBlocking, 0)
                    : error;
        result = error == cudaSuccess
                     ? STATUS_OK
                     : RAISE_STATUS(STATUS_UNAVAILABLE, "device cuda: cannot open %s: %s",
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

int cuda_device_capability(const struct device *dev)
{
    return get_gpu(dev)->capability;
}

const struct device_driver cuda_device_driver = {.count = gpu_count, .open = gpu_open};
