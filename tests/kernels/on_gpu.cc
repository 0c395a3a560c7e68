/* Runs the tests of the operations on a GPU. Heap and stack are in managed memory, and each
 * operation waits for the GPU before it returns.
 *
 *   test_cuda_operations NAME [ARGUMENT]
 *   test_cuda_operations --list */
#include <pthread.h>

#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

extern "C" {
#include "base/deadlines.h"
#include "kernels/cuda/cuda.h"
#include "tests/check.h"
#include "tests/kernels/on_gpu.h"

#define ON_GPU_TESTS(X)                                                                            \
    X(norm)                                                                                        \
    X(flat)                                                                                        \
    X(embedding)                                                                                   \
    X(rows) X(swiglu_rotary) X(linear) X(cross_entropy) X(attention) X(attention_features)
#define ON_GPU_PROTOTYPE(name) int on_gpu_##name(int count, char **arguments);
ON_GPU_TESTS(ON_GPU_PROTOTYPE)
#undef ON_GPU_PROTOTYPE
}

static const struct {
    const char *name;
    int (*run)(int count, char **arguments);
} tests[] = {
#define ON_GPU_ROW(name) {#name, on_gpu_##name},
    ON_GPU_TESTS(ON_GPU_ROW)
#undef ON_GPU_ROW
};

static const size_t heap_bytes = size_t{24} << 30, stack_bytes = size_t{64} << 20;
static char *heap;
static size_t used;
static struct device *gpu;

/* The selected test, its arguments and its exit code. */
static struct {
    int (*run)(int count, char **arguments);
    int count, code;
    char **arguments;
} selected;

static void skip_tests(const char *missing, const char *reason)
{
    printf("skipped: %s: %s\n", missing, reason);
    exit(CHECK_SKIPPED);
}

extern "C" void *on_gpu_allocate(size_t bytes)
{
    size_t at = used;
    used += (bytes + 255) / 256 * 256;
    CHECK(used <= heap_bytes);
    memset(heap + at, 0, bytes);
    return heap + at;
}

extern "C" void on_gpu_free(void *memory)
{
    if (memory != nullptr && (memory < heap || memory >= heap + heap_bytes)) {
        free(memory); /* a library function allocated it */
    }
}

/* ---- operations that wait ---- */

template <auto OPERATION> struct run_and_wait;
template <typename... A, status (*OPERATION)(struct kernels *, A...)>
struct run_and_wait<OPERATION> {
    static status call(struct kernels *k, A... arguments)
    {
        TRY(OPERATION(k, arguments...));
        return device_wait(k->device, k->stream, DEADLINE_DEVICE_SECONDS);
    }
};

extern "C" struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                                          const struct kernels_limits *limits)
{
    struct kernels *k = nullptr;
    CHECK_OK(kernels_create(dev, dtype, 1, limits, &k));
#define ON_GPU_WAIT(name) k->table.name = run_and_wait<cuda_##name>::call;
    KERNELS_OPERATIONS(ON_GPU_WAIT)
#undef ON_GPU_WAIT
    return k;
}

extern "C" struct device *on_gpu_device()
{
    return gpu;
}

/* ---- main program ---- */

static void *run_selected(void *unused)
{
    CHECK(cudaSetDevice(0) == cudaSuccess);
    selected.code = selected.run(selected.count, selected.arguments);
    return unused;
}

static void prepare_gpu()
{
    int count = 0, concurrent = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        skip_tests("no GPU", cudaGetErrorString(error));
    }
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0) ==
          cudaSuccess);
    if (concurrent == 0) { /* not skipped: the machine has a GPU that would stay untested */
        fprintf(stderr, "this GPU and the host cannot use managed memory at the same time; run the "
                        "tests on Linux without virtualization of the GPU\n");
        exit(1);
    }
    cuda_register();
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
    void *memory = nullptr;
    CHECK(cudaMallocManaged(&memory, heap_bytes + stack_bytes, cudaMemAttachGlobal) == cudaSuccess);
    heap = static_cast<char *>(memory);
}

static void select_test(int count, char **arguments)
{
    for (const auto &test : tests) {
        if (count > 1 && strcmp(arguments[1], "--list") == 0) {
            puts(test.name);
        } else if (count > 1 && strcmp(arguments[1], test.name) == 0) {
            selected = {test.run, count - 1, 0, arguments + 1};
        }
    }
    if (count > 1 && strcmp(arguments[1], "--list") == 0) {
        puts("attention aligned\nattention wgmma");
        exit(0);
    }
    if (selected.run == nullptr) {
        fprintf(stderr, "usage: %s NAME [ARGUMENT], or --list\n", arguments[0]);
        exit(64);
    }
}

int main(int count, char **arguments)
{
    pthread_attr_t attributes;
    pthread_t thread;
    select_test(count, arguments);
    prepare_gpu();
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, heap + heap_bytes, stack_bytes) == 0);
    CHECK(pthread_create(&thread, &attributes, run_selected, nullptr) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
    CHECK_OK(device_destroy(&gpu));
    return selected.code;
}
