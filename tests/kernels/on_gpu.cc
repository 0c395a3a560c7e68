/* Runs the tests of the operations on a GPU (on_gpu.h).
 *
 *   test_cuda_operations NAME [ARGUMENT]
 *   test_cuda_operations --list */
#include <cstdio>
#include <cstring>

#include "tests/kernels/operand_copies.h"

extern "C" {
#include "tests/check.h"
#include "tests/kernels/on_gpu.h"

#define ON_GPU_TESTS(X)                                                                            \
    X(norm)                                                                                        \
    X(flat)                                                                                        \
    X(embedding)                                                                                   \
    X(rows)                                                                                        \
    X(control)                                                                                     \
    X(head_loss)                                                                                   \
    X(preference_loss)                                                                             \
    X(contrastive_loss)                                                                            \
    X(preference_batch)                                                                            \
    X(swiglu_rotary) X(linear) X(fp8) X(cross_entropy) X(attention) X(attention_features)
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

static struct device *gpu;

/* The selected test and its arguments. */
static struct {
    int (*run)(int count, char **arguments);
    int count;
    char **arguments;
} selected;

extern "C" struct device *on_gpu_device()
{
    return gpu;
}

/* Skips the test without a GPU. Any other error of the GPU is a failure of the test. */
static void open_gpu()
{
    cuda_register();
    if (device_count(DEVICE_CUDA) == 0) {
        CHECK(device_create(DEVICE_CUDA, 0, &gpu) == STATUS_UNAVAILABLE);
        CHECK_SKIP("%s", status_pending()->text);
    }
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
}

static void select_test(int count, char **arguments)
{
    for (const auto &test : tests) {
        if (count > 1 && strcmp(arguments[1], "--list") == 0) {
            puts(test.name);
        } else if (count > 1 && strcmp(arguments[1], test.name) == 0) {
            selected = {test.run, count - 1, arguments + 1};
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
    select_test(count, arguments);
    open_gpu();
    int code = selected.run(selected.count, selected.arguments);
    operand_copies_release();
    CHECK_OK(device_destroy(&gpu));
    return code;
}
