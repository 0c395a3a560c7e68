/* Tests the context: errors, properties, profile, roofline and memory. A GEMM of a shape that was
 * used before must not allocate. */
#include <malloc.h>

#include "kernels/cpu/matmul.h"
#include "tests/kernels/operation.h"

static const struct kernels_limits limits = {.rows = 64,
                                             .width = 32,
                                             .inner = 64,
                                             .heads = 2,
                                             .head_width = 16,
                                             .sequence = 32,
                                             .vocabulary = 100,
                                             .training = true};

static void test_errors(struct device *dev)
{
    struct kernels *k = (struct kernels *)dev;
    struct kernels_limits wrong = limits;
    wrong.width = 0;
    CHECK_FAILS(kernels_create(dev, DTYPE_F32, 1, &wrong, &k), STATUS_INTERNAL, "width 0");
    CHECK(k == NULL);
    CHECK(setenv("BIREME_CPU", "abacus", 1) == 0);
    CHECK_FAILS(kernels_create(dev, DTYPE_F32, 1, &limits, &k), STATUS_UNAVAILABLE, "abacus");
    CHECK(k == NULL);
    CHECK(unsetenv("BIREME_CPU") == 0);
    if (!kernels_supports(dev, DTYPE_BF16)) {
        CHECK_FAILS(kernels_create(dev, DTYPE_BF16, 1, &limits, &k), STATUS_UNAVAILABLE, "bf16");
    }
    CHECK(kernels_supports(dev, DTYPE_F32));
}

static void test_context(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 0, &limits, &k));
    CHECK(kernels_threads(k) >= 1);
    CHECK(kernels_device(k) == dev && kernels_dtype(k) == DTYPE_F32);
    CHECK(strstr(kernels_description(k), "oneDNN") != NULL);
    CHECK_OK(kernels_destroy(&k));
    CHECK(k == NULL);
    CHECK_OK(kernels_destroy(&k));
    CHECK(kernels_workspace_bytes(DEVICE_CPU, DTYPE_F32, 1, &limits) > 0);
}

static void test_profile(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    struct tensor x = operation_random(DTYPE_F32, 10, 32, 1, 1);
    struct tensor w = operation_random(DTYPE_F32, 20, 32, 2, 1);
    struct tensor y = operation_tensor(DTYPE_F32, 10, 20, 20);
    struct tensor none = tensor_absent();
    struct kernels_time times[KERNELS_OPERATIONS_MAX];
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    CHECK_EQUAL(kernels_times(k, times), 0);
    kernels_profile(k, true);
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    kernels_profile(k, false);
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    CHECK_EQUAL(kernels_times(k, times), 1);
    CHECK_TEXT(times[0].operation, "linear_forward");
    CHECK_EQUAL(times[0].calls, 2);
    CHECK_NEAR(times[0].flops, 2 * 2.0 * 10 * 20 * 32, 0);
    CHECK(times[0].seconds > 0);
    operation_release(&x);
    operation_release(&w);
    operation_release(&y);
    CHECK_OK(kernels_destroy(&k));
}

static void test_roofline(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 2, &limits, &k));
    const struct gemm_shape shapes[] = {{GEMM_FORWARD, 40, 24, 56, 3},
                                        {GEMM_BACKWARD_INPUT, 40, 24, 56, 1},
                                        {GEMM_BACKWARD_WEIGHT, 40, 24, 56, 2}};
    double seconds[3][KERNELS_ROOFLINE_ALGORITHMS] = {{0}};
    CHECK_OK(kernels_roofline(k, seconds, shapes, 3));
    for (int i = 0; i < 3 * KERNELS_ROOFLINE_ALGORITHMS; i++) {
        CHECK(seconds[i / KERNELS_ROOFLINE_ALGORITHMS][i % KERNELS_ROOFLINE_ALGORITHMS] > 0);
    }
    const struct gemm_shape empty = {GEMM_FORWARD, 40, 0, 56, 3};
    CHECK_FAILS(kernels_roofline(k, seconds, &empty, 1), STATUS_INTERNAL, "40 x 0 x 56");
    CHECK_OK(kernels_destroy(&k));
}

/* The third call with the same shapes leaves the heap as the second call left it. */
static void test_allocations(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    struct tensor x = operation_random(DTYPE_F32, 64, 32, 1, 1);
    struct tensor w = operation_random(DTYPE_F32, 100, 32, 2, 1);
    struct tensor dx = operation_random(DTYPE_F32, 64, 32, 3, 1);
    struct tensor dw = operation_random(DTYPE_F32, 100, 32, 4, 1);
    static int32_t targets[64];
    static float losses[64];
    struct classifier c = {.vocabulary = 100, .ignored = -1, .gradient = true};
    size_t used[2] = {0};
    for (int i = 0; i < 3; i++) {
        used[0] = used[1];
        CHECK_OK(classifier_run(k, losses, NULL, dx, dw, x, w, targets, &c));
        used[1] = mallinfo2().uordblks;
    }
    CHECK_EQUAL(used[0], used[1]);
    operation_release(&x);
    operation_release(&w);
    operation_release(&dx);
    operation_release(&dw);
    CHECK_OK(kernels_destroy(&k));
}

/* For large GEMMs of each kind, oneDNN allocates at most the estimate of matmul_library_bytes. */
static void test_library_memory(struct device *dev, enum dtype dtype)
{
    const struct kernels_limits large = {.rows = 600,
                                         .width = 768,
                                         .inner = 1536,
                                         .heads = 12,
                                         .head_width = 64,
                                         .sequence = 64,
                                         .vocabulary = 64};
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, dtype, 2, &large, &k));
    struct tensor x = operation_random(dtype, 600, 768, 1, 1);
    struct tensor w = operation_random(dtype, 1536, 768, 2, 1);
    struct tensor y = operation_tensor(dtype, 600, 1536, 1536);
    struct tensor dw = operation_tensor(DTYPE_F32, 1536, 768, 768), none = tensor_absent();
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    CHECK_OK(linear_backward_input(k, x, y, w, ACTIVATION_NONE, none));
    CHECK_OK(linear_backward_weight(k, dw, none, y, x, true));
    CHECK(matmul_allocated_bytes(k) <= matmul_library_bytes(dtype, 2, &large));
    CHECK(kernels_workspace_bytes(DEVICE_CPU, dtype, 2, &large) >= matmul_allocated_bytes(k));
    operation_release(&x);
    operation_release(&w);
    operation_release(&y);
    operation_release(&dw);
    CHECK_OK(kernels_destroy(&k));
}

int main(void)
{
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    test_errors(dev);
    test_context(dev);
    test_profile(dev);
    test_roofline(dev);
    test_allocations(dev);
    test_library_memory(dev, DTYPE_F32);
    if (kernels_supports(dev, DTYPE_BF16)) {
        test_library_memory(dev, DTYPE_BF16);
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
