/* Tests the context: errors, properties, profile, roofline and memory. A GEMM of a shape that was
 * used before must not allocate. */
#include <malloc.h>

#include "base/memory.h"
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
    if (!matmul_supports(DTYPE_BF16)) {
        CHECK_FAILS(kernels_create(dev, DTYPE_BF16, 1, &limits, &k), STATUS_UNAVAILABLE, "bf16");
    }
    CHECK(matmul_supports(DTYPE_F32));
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

/* The variant v4_amx is selected if oneDNN may use AMX. The test kernels_without_amx sets
 * DNNL_MAX_CPU_ISA. */
static void test_amx_limit(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    bool uses_amx = strstr(kernels_description(k), "v4_amx") != NULL;
    CHECK_OK(kernels_destroy(&k));
    CHECK(uses_amx == matmul_permits_amx());
    CHECK(!uses_amx || getenv("DNNL_MAX_CPU_ISA") == NULL);
    if (!uses_amx) {
        CHECK(setenv("BIREME_CPU", "v4_amx", 1) == 0);
        CHECK_FAILS(kernels_create(dev, DTYPE_F32, 1, &limits, &k), STATUS_UNAVAILABLE, "v4_amx");
        CHECK(unsetenv("BIREME_CPU") == 0);
    }
}

static void test_profile(struct device *dev)
{
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    struct tensor x = operation_random(DTYPE_F32, 40, 32, 1, 1);
    struct tensor w = operation_random(DTYPE_F32, 20, 32, 2, 1);
    struct tensor y = operation_tensor(DTYPE_F32, 40, 20, 20);
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
    CHECK_NEAR(times[0].flops, 2 * 2.0 * 40 * 20 * 32, 0);
    CHECK_NEAR(times[0].gemm_work.done, 2.0 * 40 * 20 * 32, 0);
    CHECK_NEAR(times[0].gemm_work.possible, 2.0 * 40 * 20 * 32, 0); /* one thread is never idle */
    CHECK(times[0].seconds > 0);
    operation_release(&x);
    operation_release(&w);
    operation_release(&y);
    CHECK_OK(kernels_destroy(&k));
}

/* Counts the pairs of a query and a key that attention computes for one head. */
static double count_pairs(const struct attention *a)
{
    int queries = a->cu_q[1], keys = a->cu_k[1], pairs = 0;
    for (int q = keys - queries; q < keys; q++) {
        for (int k = 0; k < keys; k++) {
            pairs += (!a->causal || k <= q) && (a->window == 0 || abs(q - k) < a->window);
        }
    }
    return pairs;
}

/* The FLOPs of attention are those of the visible pairs: causal or not, with and without a
 * window, for all keys or for the last queries. */
static void test_attention_flops(struct device *dev)
{
    static const int32_t cu_rows[] = {0, 29}, cu_last[] = {0, 8};
    static const int windows[] = {0, 1, 5, 28, 29, 40};
    struct tensor x = operation_random(DTYPE_F32, 29, 32, 1, 1);
    struct tensor y = operation_tensor(DTYPE_F32, 29, 32, 32);
    for (int i = 0; i < 4 * COUNT(windows); i++) {
        struct attention a = {
            .heads = 2,
            .kv_heads = 2,
            .head_width = 16,
            .causal = i % 2 == 1,
            .window = windows[i / 4],
            .scale = 1,
            .sequences = 1,
            .cu_q = i / 2 % 2 == 1 ? cu_last : cu_rows,
            .cu_k = cu_rows,
            .longest_q = 29,
            .longest_k = 29,
        };
        struct tensor q = tensor_rows(x, 0, a.cu_q[1]), o = tensor_rows(y, 0, a.cu_q[1]);
        struct kernels_time times[KERNELS_OPERATIONS_MAX];
        struct kernels *k = NULL;
        CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
        kernels_profile(k, true);
        CHECK_OK(attention_forward(k, o, tensor_absent(), q, x, x, &a));
        CHECK_EQUAL(kernels_times(k, times), 1);
        CHECK_NEAR(times[0].flops, 4 * 16 * 2 * count_pairs(&a), 0);
        CHECK_OK(kernels_destroy(&k));
    }
    operation_release(&x);
    operation_release(&y);
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

/* Further calls with the same shapes allocate nothing. The least allocation has 32 bytes. mallinfo2
 * counts the free lists of threads as used; they may grow once. */
static void test_allocations(struct device *dev)
{
    enum { FIRST_CALLS = 2, CALLS = 64, LEAST_BYTES = 32 };
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    struct tensor x = operation_random(DTYPE_F32, 64, 32, 1, 1);
    struct tensor w = operation_random(DTYPE_F32, 100, 32, 2, 1);
    struct tensor dx = operation_random(DTYPE_F32, 64, 32, 3, 1);
    struct tensor dw = operation_random(DTYPE_F32, 100, 32, 4, 1);
    static int32_t targets[64];
    static float losses[64];
    struct classifier c = {.vocabulary = 100, .ignored = -1, .gradient = true};
    size_t before = 0;
    for (int i = 0; i < FIRST_CALLS + CALLS; i++) {
        before = i == FIRST_CALLS ? mallinfo2().uordblks : before;
        CHECK_OK(classifier_run(k, losses, NULL, dx, dw, x, w, targets, &c));
    }
    CHECK(mallinfo2().uordblks < before + CALLS * LEAST_BYTES / 2);
    operation_release(&x);
    operation_release(&w);
    operation_release(&dx);
    operation_release(&dw);
    CHECK_OK(kernels_destroy(&k));
}

static size_t count_heap_bytes(void)
{
    struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
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
    size_t before = count_heap_bytes();
    CHECK_OK(linear_forward(k, y, none, x, w, none, ACTIVATION_NONE));
    CHECK_OK(linear_backward_input(k, x, (struct bias_gradient){0}, y, w, ACTIVATION_NONE, none));
    CHECK_OK(linear_backward_weight(k, dw, none, y, x, true));
    size_t grown = count_heap_bytes() - before;
    CHECK(grown <= matmul_library_bytes(dtype, 2, &large));
    CHECK(grown <= kernels_workspace_bytes(DEVICE_CPU, dtype, 2, &large));
    operation_release(&x);
    operation_release(&w);
    operation_release(&y);
    operation_release(&dw);
    CHECK_OK(kernels_destroy(&k));
}

/* Buckets of T5Attention._relative_position_bucket in transformers 5.24: causal and not with 32
 * buckets up to 128, and not causal with 16 buckets up to 50. */
static void test_buckets(void)
{
    static const int expected[][4] = {
        {-2000, 31, 15, 7}, {-127, 31, 15, 7}, {-91, 29, 15, 7}, {-90, 29, 14, 7}, {-64, 26, 14, 7},
        {-46, 24, 13, 7},   {-33, 21, 12, 7},  {-32, 21, 12, 7}, {-23, 18, 11, 6}, {-16, 16, 10, 6},
        {-15, 15, 9, 6},    {-9, 9, 8, 5},     {-8, 8, 8, 5},    {-7, 7, 7, 4},    {-1, 1, 1, 1},
        {0, 0, 0, 0},       {1, 0, 17, 9},     {7, 0, 23, 12},   {11, 0, 24, 13},  {12, 0, 25, 13},
        {16, 0, 26, 14},    {22, 0, 26, 14},   {23, 0, 27, 14},  {32, 0, 28, 15},  {45, 0, 28, 15},
        {46, 0, 29, 15},    {64, 0, 30, 15},   {91, 0, 31, 15},  {500, 0, 31, 15},
    };
    struct attention a[3] = {{.causal = true, .bias = {.max_distance = 128}},
                             {.bias = {.max_distance = 128}},
                             {.bias = {.max_distance = 50}}};
    a[0].bias.table.rows = a[1].bias.table.rows = 32;
    a[2].bias.table.rows = 16;
    for (int i = 0; i < COUNT(expected); i++) {
        for (int j = 0; j < 3; j++) {
            CHECK_EQUAL(attention_bucket(&a[j], expected[i][0]), expected[i][j + 1]);
        }
    }
}

/* A call of the largest size of a context needs no more than its workspace. */
static void test_bias_memory(struct device *dev)
{
    enum { ROWS = 70, HEADS = 2, WIDTH = 32, BUCKETS = 32 };
    const struct kernels_limits exact = {.rows = ROWS,
                                         .width = 1,
                                         .inner = 1,
                                         .heads = HEADS,
                                         .head_width = WIDTH,
                                         .sequence = ROWS,
                                         .vocabulary = 1,
                                         .training = true,
                                         .bias_buckets = BUCKETS};
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, DTYPE_F32, 2, &exact, &k));
    const int32_t rows[] = {0, ROWS};
    struct tensor x = operation_random(DTYPE_F32, ROWS, HEADS * WIDTH, 1, 1);
    struct tensor d = operation_tensor(DTYPE_F32, ROWS, HEADS * WIDTH, HEADS * WIDTH);
    struct tensor lse = operation_tensor(DTYPE_F32, HEADS, ROWS, ROWS);
    struct tensor table = operation_random(DTYPE_F32, BUCKETS, HEADS, 2, 1);
    struct tensor gradient = operation_random(DTYPE_F32, BUCKETS, HEADS, 3, 1);
    struct attention a = {.heads = HEADS,
                          .kv_heads = HEADS,
                          .head_width = WIDTH,
                          .scale = 1,
                          .bias = {table, gradient, 128},
                          .sequences = 1,
                          .cu_q = rows,
                          .cu_k = rows,
                          .longest_q = ROWS,
                          .longest_k = ROWS};
    CHECK_OK(attention_forward(k, d, lse, x, x, x, &a));
    CHECK_OK(attention_backward(k, d, d, d, x, x, x, x, x, lse, &a));
    a.softcap = 1;
    CHECK(attention_forward(k, d, lse, x, x, x, &a) == STATUS_INTERNAL);
    a.softcap = 0;
    a.bias.max_distance = 4;
    CHECK(attention_forward(k, d, lse, x, x, x, &a) == STATUS_INTERNAL);
    struct tensor *all[] = {&x, &d, &lse, &table, &gradient};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
    CHECK_OK(kernels_destroy(&k));
}

int main(void)
{
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    test_errors(dev);
    test_context(dev);
    test_amx_limit(dev);
    test_profile(dev);
    test_attention_flops(dev);
    test_roofline(dev);
    test_allocations(dev);
    test_buckets();
    test_bias_memory(dev);
    test_library_memory(dev, DTYPE_F32);
    if (matmul_supports(DTYPE_BF16)) {
        test_library_memory(dev, DTYPE_BF16);
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
