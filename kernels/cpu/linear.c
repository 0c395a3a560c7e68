/* The linear layer: a GEMM with an epilogue that applies the activation to each block while it is
 * in the cache.
 *
 *   forward          z = x w^T + b,  y = act(z),  saved = act'(z)
 *   backward input   dx = (dy w) * saved, with saved of the activation that computed x
 *   backward weight  dw += dy^T x,  db += sum of the rows of dy; = instead of += with overwrite
 *
 * matmul.c splits the GEMMs over the threads. */

#include "kernels/cpu/linear.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

/* Returns max(x, 0). vector_max returns x if it is NaN. */
CPU_INLINE vector rectify_values(vector x)
{
    return vector_max(vector_set(0.0f), x);
}

CPU_INLINE vector compute_silu_derivative(vector x)
{
    vector s = math_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* The switches over activations have no default, so that the compiler reports a missing one. */
CPU_INLINE vector apply_activation(vector x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return math_gelu_tanh(x);
    case ACTIVATION_GELU_ERF:
        return math_gelu_erf(x);
    case ACTIVATION_TANH:
        return math_tanh(x);
    case ACTIVATION_RELU:
        return rectify_values(x);
    case ACTIVATION_RELU2:
        return rectify_values(x) * rectify_values(x);
    case ACTIVATION_SILU:
        return x * math_sigmoid(x);
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

CPU_INLINE vector compute_derivative(vector x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return math_gelu_tanh_derivative(x);
    case ACTIVATION_GELU_ERF:
        return math_gelu_erf_derivative(x);
    case ACTIVATION_TANH:
        return 1.0f - math_tanh(x) * math_tanh(x);
    case ACTIVATION_RELU:
        return vector_select(x <= 0.0f, vector_set(0.0f), vector_set(1.0f));
    case ACTIVATION_RELU2:
        return 2.0f * rectify_values(x);
    case ACTIVATION_SILU:
        return compute_silu_derivative(x);
    case ACTIVATION_NONE:
        break;
    }
    return vector_set(1.0f);
}

/* The epilogue of a GEMM, for one block: y = act(y) and saved = act'(y), or y = y * saved. The
 * forward pass computes the derivative together with the activation, because they share most of
 * the work. */
struct epilogue {
    struct tensor y, saved;
    enum activation act;
};

/* A block exceeds the L1 and L2 caches, so rows are prefetched. */
enum { ROWS_AHEAD = 2 };

/* Specialized for one dtype and one activation, so that common subexpressions are computed once. */
CPU_INLINE void activate_rows(const struct epilogue *e, struct matmul_block block, enum dtype dtype,
                              enum activation act)
{
    for (int64_t i = block.row; i < block.row + block.rows; i++) {
        int64_t y = i * e->y.stride + block.column, saved = i * e->saved.stride + block.column;
        cpu_prefetch(e->y, i + ROWS_AHEAD, block.column, block.columns);
        for (int64_t j = 0; j < block.columns; j += VECTOR_LANES) {
            int64_t left = block.columns - j;
            vector z = vector_get(e->y.data, dtype, y + j, left);
            vector_put(e->y.data, dtype, y + j, apply_activation(z, act), left);
            if (e->saved.data != NULL) {
                vector_put(e->saved.data, dtype, saved + j, compute_derivative(z, act), left);
            }
        }
    }
}

CPU_INLINE void activate_rows_as(const struct epilogue *e, struct matmul_block block,
                                 enum activation act)
{
    if (e->y.dtype == DTYPE_F32) {
        activate_rows(e, block, DTYPE_F32, act);
    } else {
        activate_rows(e, block, DTYPE_BF16, act);
    }
}

static void activate_block(void *context, struct matmul_block block)
{
    const struct epilogue *e = context;
    switch (e->act) {
    case ACTIVATION_GELU_TANH:
        activate_rows_as(e, block, ACTIVATION_GELU_TANH);
        break;
    case ACTIVATION_GELU_ERF:
        activate_rows_as(e, block, ACTIVATION_GELU_ERF);
        break;
    case ACTIVATION_TANH:
        activate_rows_as(e, block, ACTIVATION_TANH);
        break;
    case ACTIVATION_RELU:
        activate_rows_as(e, block, ACTIVATION_RELU);
        break;
    case ACTIVATION_RELU2:
        activate_rows_as(e, block, ACTIVATION_RELU2);
        break;
    case ACTIVATION_SILU:
        activate_rows_as(e, block, ACTIVATION_SILU);
        break;
    case ACTIVATION_NONE:
        break;
    }
}

CPU_INLINE void multiply_rows(const struct epilogue *e, struct matmul_block block, enum dtype dtype)
{
    for (int64_t i = block.row; i < block.row + block.rows; i++) {
        int64_t y = i * e->y.stride + block.column, saved = i * e->saved.stride + block.column;
        cpu_prefetch(e->y, i + ROWS_AHEAD, block.column, block.columns);
        cpu_prefetch(e->saved, i + ROWS_AHEAD, block.column, block.columns);
        for (int64_t j = 0; j < block.columns; j += VECTOR_LANES) {
            int64_t left = block.columns - j;
            vector d = vector_get(e->y.data, dtype, y + j, left);
            vector derivative = vector_get(e->saved.data, dtype, saved + j, left);
            vector_put(e->y.data, dtype, y + j, d * derivative, left);
        }
    }
}

static void multiply_by_saved(void *context, struct matmul_block block)
{
    const struct epilogue *e = context;
    if (e->y.dtype == DTYPE_F32) {
        multiply_rows(e, block, DTYPE_F32);
    } else {
        multiply_rows(e, block, DTYPE_BF16);
    }
}

status CPU(linear_forward)(struct kernels *k, struct tensor y, struct tensor saved, struct tensor x,
                           struct tensor w, struct tensor bias, enum activation act)
{
    struct epilogue epilogue = {y, saved, act};
    if (x.rows <= KERNELS_FEW_ROWS) {
        CPU(few_rows_gemm)(k, y, x, w, bias, false);
        if (act != ACTIVATION_NONE) {
            activate_block(&epilogue, (struct matmul_block){0, y.rows, 0, y.columns, 0});
        }
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = y,
                             .a = x,
                             .b = w,
                             .transpose_b = true,
                             .bias = bias,
                             .after = act == ACTIVATION_NONE ? NULL : activate_block,
                             .context = &epilogue,
                         });
}

status CPU(linear_add)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                       bool backward)
{
    if (!backward && x.rows <= KERNELS_FEW_ROWS) {
        CPU(few_rows_gemm)(k, y, x, w, tensor_absent(), true);
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = y, .a = x, .b = w, .transpose_b = !backward, .accumulate = true});
}

status CPU(activation_forward)(struct kernels *k, struct tensor y, struct tensor saved,
                               enum activation act)
{
    struct epilogue epilogue = {y, saved, act};
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        activate_block(&epilogue, (struct matmul_block){i, 1, 0, y.columns, 0});
    }
    return STATUS_OK;
}

status CPU(op_scale)(struct kernels *k, struct tensor x, float factor)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t j = 0; j < x.columns; j += VECTOR_LANES) {
            int64_t at = i * x.stride + j, left = x.columns - j;
            vector_put(x.data, x.dtype, at, factor * vector_get(x.data, x.dtype, at, left), left);
        }
    }
    return STATUS_OK;
}

status CPU(activation_backward)(struct kernels *k, struct tensor dx, struct tensor dy,
                                struct tensor saved, enum activation act)
{
    (void)act; /* the derivative was saved */
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < dx.rows; i++) {
        for (int64_t j = 0; j < dx.columns; j += VECTOR_LANES) {
            int64_t left = dx.columns - j;
            vector d = vector_get(dy.data, dy.dtype, i * dy.stride + j, left);
            vector derivative = vector_get(saved.data, saved.dtype, i * saved.stride + j, left);
            vector_put(dx.data, dx.dtype, i * dx.stride + j, d * derivative, left);
        }
    }
    return STATUS_OK;
}

status CPU(linear_backward_input)(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                                  struct tensor dy, struct tensor w, enum activation act,
                                  struct tensor saved)
{
    struct epilogue epilogue = {dx, saved, act};
    TRY(matmul_run(k, &(struct matmul_call){
                          .c = dx,
                          .a = dy,
                          .b = w,
                          .after = act == ACTIVATION_NONE ? NULL : multiply_by_saved,
                          .context = &epilogue,
                      }));
    return CPU(bias_gradient)(k, dbias, dx);
}

status CPU(linear_backward_weight)(struct kernels *k, struct tensor dw, struct tensor dbias,
                                   struct tensor dy, struct tensor x, bool overwrite)
{
    TRY(CPU(bias_gradient)(k, (struct bias_gradient){dbias, overwrite}, dy));
    if (dw.data == NULL) {
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = dw,
                             .a = dy,
                             .transpose_a = true,
                             .b = x,
                             .accumulate = !overwrite,
                         });
}
