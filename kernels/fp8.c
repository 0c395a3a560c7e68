/* Checks the shapes of FP8 linear layers, then calls the back-end. */
#include "kernels/fp8.h"

#include <math.h>

#include "base/number.h"
#include "kernels/checks.h"

float fp8_row_scale(uint32_t magnitude)
{
    /* 448 is 1.75 times 2^8. A subnormal magnitude has the largest scale. */
    const int bias = 127, greatest_exponent = 8;
    int exponent = bias + greatest_exponent - (int)(magnitude >> 23);
    exponent -= (magnitude & 0x7fffffu) > 0x600000u;
    exponent = (int)number_clamp(exponent, -FP8_EXPONENT_MAX, FP8_EXPONENT_MAX);
    return magnitude == 0 ? 1.0f : ldexpf(1.0f, exponent);
}

float fp8_scale(float amax, enum fp8_operand operand)
{
    if (!(amax > 0)) {
        return 1;
    }
    int exponent = ilogb((double)(operand == FP8_DY ? FP8_MAX_E5M2 : FP8_MAX_E4M3) / (double)amax);
    exponent = (int)number_clamp(exponent, -FP8_EXPONENT_MAX, FP8_EXPONENT_MAX);
    return ldexpf(1.0f, exponent);
}

status fp8_update_scales(struct kernels *k, struct tensor scales, struct tensor history,
                         struct tensor maxima, int64_t row, const struct update_control *control)
{
    SHAPE(scales, DTYPE_F32, history.columns, FP8_SCALES_STRIDE);
    SHAPE(history, DTYPE_F32, history.rows, scales.rows);
    SHAPE(maxima, DTYPE_F32, maxima.rows, history.columns);
    REQUIRE(row >= 0 && row < history.rows && maxima.rows > 0, STATUS_INTERNAL,
            "fp8_update_scales: row %" PRId64 " of %" PRId64 ", maxima of %" PRId64 " ranks", row,
            history.rows, maxima.rows);
    DISPATCH(k, fp8_update_scales, (double)(history.rows * history.columns),
             compute_tensor_bytes(history) + compute_tensor_bytes(maxima), k, scales, history,
             maxima, row, control);
}

static status check_fp8(const char *where, const struct kernels *k, struct tensor maxima,
                        struct tensor scales, int64_t rows, int64_t inner, int64_t outputs)
{
    int64_t widest = number_max(inner, outputs);
    REQUIRE(inner % FP8_MULTIPLE == 0 && outputs % FP8_MULTIPLE == 0 && rows <= k->limits.rows &&
                widest <= k->limits.fp8_columns && inner * outputs <= k->limits.fp8_weights,
            STATUS_INTERNAL,
            "%s: %" PRId64 " rows, w [%" PRId64 ", %" PRId64
            "]; the sizes of w must be multiples of %d, and the limits are %" PRId64
            " rows, %" PRId64 " columns and %" PRId64 " weights",
            where, rows, outputs, inner, (int)FP8_MULTIPLE, k->limits.rows, k->limits.fp8_columns,
            k->limits.fp8_weights);
    REQUIRE(!k->limits.fp8_rowwise || (scales.data == NULL && maxima.data == NULL), STATUS_INTERNAL,
            "%s: row-wise scales are computed from the operands, but scales or maxima are present",
            where);
    const size_t alignment = FP8_SCALES_STRIDE * sizeof(float);
    TRY(check_optional_shape(where, "maxima", maxima, DTYPE_F32, 1, FP8_OPERANDS));
    REQUIRE((uintptr_t)scales.data % alignment == 0 &&
                (scales.data == NULL || scales.stride % FP8_SCALES_STRIDE == 0),
            STATUS_INTERNAL, "%s: the rows of scales are not aligned to %d bytes", where,
            (int)alignment);
    return check_optional_shape(where, "scales", scales, DTYPE_F32, FP8_OPERANDS, 2);
}

status fp8_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                          struct tensor maxima, struct tensor x, struct tensor w,
                          struct tensor bias, struct tensor scales, enum activation act)
{
    TRY(check_linear_forward(__func__, k, y, saved, x, w, bias, act));
    TRY(check_fp8(__func__, k, maxima, scales, x.rows, w.columns, w.rows));
    DISPATCH(k, fp8_linear_forward, count_gemm_flops(x, w),
             compute_tensor_bytes(y) + compute_tensor_bytes(saved) + compute_tensor_bytes(x) +
                 compute_tensor_bytes(w),
             k, y, saved, maxima, x, w, bias, scales, act);
}

status fp8_linear_backward_input(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                                 struct tensor maxima, struct tensor dy, struct tensor w,
                                 struct tensor scales, enum activation act, struct tensor saved)
{
    TRY(check_linear_backward_input(__func__, k, dx, dbias, dy, w, act, saved));
    TRY(check_fp8(__func__, k, maxima, scales, dy.rows, w.columns, w.rows));
    DISPATCH(k, fp8_linear_backward_input, count_gemm_flops(dy, w),
             compute_tensor_bytes(dx) + compute_tensor_bytes(dy) + compute_tensor_bytes(w) +
                 compute_tensor_bytes(saved),
             k, dx, dbias, maxima, dy, w, scales, act, saved);
}

status fp8_linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                                  struct tensor maxima, struct tensor dy, struct tensor x,
                                  struct tensor scales, bool overwrite)
{
    TRY(check_linear_backward_weight(__func__, k, dw, dbias, dy, x));
    TRY(check_fp8(__func__, k, maxima, scales, x.rows, x.columns, dy.columns));
    if (dw.data == NULL && dbias.data == NULL) {
        return STATUS_OK;
    }
    DISPATCH(k, fp8_linear_backward_weight, dw.data != NULL ? count_gemm_flops(x, dw) : 0,
             (overwrite ? 1 : 2) * compute_tensor_bytes(dw) + compute_tensor_bytes(dy) +
                 compute_tensor_bytes(x),
             k, dw, dbias, maxima, dy, x, scales, overwrite);
}
