/* Tests linear layers on the CPU with at most KERNELS_FEW_ROWS rows. The result of a row must have
 * the same bits as if the row were computed alone. */
#include "tests/kernels/operation.h"

static void test_rows(struct kernels *k, int64_t rows)
{
    enum { INNER = 131, OUTPUTS = 37, PAD = 3 };
    enum dtype dtype = kernels_dtype(k);
    struct tensor none = tensor_absent();
    struct tensor padded = operation_random(dtype, rows, INNER + PAD, 1, 1);
    struct tensor x = tensor_columns(padded, 0, INNER);
    struct tensor w = operation_random(dtype, OUTPUTS, INNER, 2, 0.1);
    struct tensor bias = operation_random(DTYPE_F32, 1, OUTPUTS, 3, 1);
    struct tensor y = operation_tensor(dtype, rows, OUTPUTS, OUTPUTS);
    struct tensor alone = operation_tensor(dtype, rows, OUTPUTS, OUTPUTS);
    size_t bytes = (size_t)(rows * OUTPUTS) * dtype_bytes(dtype);
    CHECK_OK(linear_forward(k, y, none, x, w, bias, ACTIVATION_GELU_TANH));
    for (int64_t i = 0; i < rows; i++) {
        CHECK_OK(linear_forward(k, tensor_rows(alone, i, 1), none, tensor_rows(x, i, 1), w, bias,
                                ACTIVATION_GELU_TANH));
    }
    CHECK(memcmp(y.data, alone.data, bytes) == 0);
    CHECK_OK(linear_add(k, y, x, w, false));
    for (int64_t i = 0; i < rows; i++) {
        CHECK_OK(linear_add(k, tensor_rows(alone, i, 1), tensor_rows(x, i, 1), w, false));
    }
    CHECK(memcmp(y.data, alone.data, bytes) == 0);
    operation_release(&padded);
    operation_release(&w);
    operation_release(&bias);
    operation_release(&y);
    operation_release(&alone);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    (void)other;
    for (int64_t rows = 2; rows <= KERNELS_FEW_ROWS; rows++) {
        test_rows(k, rows);
    }
}

int main(void)
{
    const struct kernels_limits limits = {.rows = KERNELS_FEW_ROWS,
                                          .width = 131,
                                          .inner = 131,
                                          .heads = 1,
                                          .head_width = 64,
                                          .sequence = 64,
                                          .vocabulary = 64,
                                          .training = true};
    operation_run_all(&limits, test_all);
    return 0;
}
