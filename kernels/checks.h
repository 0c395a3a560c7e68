/* Checks of the arguments of operations, and the call of the back-end. Only the files of this
 * folder that define operations include this header. */
#pragma once

#include <inttypes.h>

#include "base/clock.h"
#include "kernels/kernels_table.h"

/* DISPATCH - call the back-end's function `name`, profile it, and return its result. */
#define DISPATCH(k, name, flops, bytes, ...)                                                       \
    do {                                                                                           \
        REQUIRE((k)->table.name != NULL, STATUS_UNAVAILABLE,                                       \
                #name ": this back-end does not implement it");                                    \
        double dispatch_start = (k)->profiling ? clock_seconds() : 0;                              \
        status dispatch_result = (k)->table.name(__VA_ARGS__);                                     \
        return kernels_record((k), OPERATION_##name, dispatch_start, (flops), (bytes),             \
                              dispatch_result);                                                    \
    } while (0)

/* compute_tensor_bytes - return the bytes of all elements; 0 for an absent tensor. */
static inline double compute_tensor_bytes(struct tensor t)
{
    return t.data == NULL ? 0 : (double)t.rows * (double)t.columns * (double)dtype_bytes(t.dtype);
}

/* count_gemm_flops - return the FLOPs of x w^T. */
static inline double count_gemm_flops(struct tensor x, struct tensor w)
{
    return 2.0 * (double)x.rows * (double)w.rows * (double)w.columns;
}

/* check_shape - check the type and the shape of an argument. */
static inline status check_shape(const char *where, const char *what, struct tensor t,
                                 enum dtype dtype, int64_t rows, int64_t columns)
{
    REQUIRE(t.data != NULL && t.dtype == dtype && t.rows == rows && t.columns == columns &&
                t.stride >= t.columns,
            STATUS_INTERNAL,
            "%s: %s is %s [%" PRId64 ", %" PRId64 "] stride %" PRId64 " at %p, not %s [%" PRId64
            ", %" PRId64 "]",
            where, what, dtype_name(t.dtype), t.rows, t.columns, t.stride, t.data,
            dtype_name(dtype), rows, columns);
    return STATUS_OK;
}

/* check_optional_shape - check an argument that may be absent. */
static inline status check_optional_shape(const char *where, const char *what, struct tensor t,
                                          enum dtype dtype, int64_t rows, int64_t columns)
{
    return t.data == NULL ? STATUS_OK : check_shape(where, what, t, dtype, rows, columns);
}

/* SHAPE, SHAPE_OPTIONAL - check an argument and return from the calling function on error. */
#define SHAPE(t, dtype, rows, columns) TRY(check_shape(__func__, #t, t, dtype, rows, columns))
#define SHAPE_OPTIONAL(t, dtype, rows, columns)                                                    \
    TRY(check_optional_shape(__func__, #t, t, dtype, rows, columns))

/* choose_bias_dtype - return the dtype that the bias of a linear layer must have: bias.dtype if the
 * back-end reads this dtype, otherwise f32. */
static inline enum dtype choose_bias_dtype(const struct kernels *k, struct tensor bias)
{
    return bias.dtype == kernels_bias_dtype(k) ? bias.dtype : DTYPE_F32;
}

/* check_activation - check that act is a value of enum activation. */
static inline status check_activation(const char *where, enum activation act)
{
    REQUIRE((unsigned)act < ACTIVATIONS, STATUS_INTERNAL,
            "%s: activation %d does not exist; the values are 0 to %d", where, (int)act,
            (int)ACTIVATIONS - 1);
    return STATUS_OK;
}

/* check_linear_forward - check the arguments that linear_forward and fp8_linear_forward share. */
static inline status check_linear_forward(const char *where, const struct kernels *k,
                                          struct tensor y, struct tensor saved, struct tensor x,
                                          struct tensor w, struct tensor bias, enum activation act)
{
    TRY(check_shape(where, "x", x, k->dtype, y.rows, w.columns));
    TRY(check_shape(where, "w", w, k->dtype, y.columns, x.columns));
    TRY(check_shape(where, "y", y, k->dtype, x.rows, w.rows));
    TRY(check_optional_shape(where, "saved", saved, k->dtype, x.rows, w.rows));
    TRY(check_optional_shape(where, "bias", bias, choose_bias_dtype(k, bias), 1, w.rows));
    TRY(check_activation(where, act));
    REQUIRE(saved.data == NULL || act != ACTIVATION_NONE, STATUS_INTERNAL,
            "%s: saved without an activation", where);
    return STATUS_OK;
}

/* check_linear_backward_input - check the arguments that linear_backward_input and
 * fp8_linear_backward_input share. */
static inline status check_linear_backward_input(const char *where, const struct kernels *k,
                                                 struct tensor dx, struct bias_gradient dbias,
                                                 struct tensor dy, struct tensor w,
                                                 enum activation act, struct tensor saved)
{
    TRY(check_optional_shape(where, "dbias.sums", dbias.sums, DTYPE_F32, 1, w.columns));
    TRY(check_shape(where, "dy", dy, k->dtype, dx.rows, w.rows));
    TRY(check_shape(where, "w", w, k->dtype, dy.columns, dx.columns));
    TRY(check_shape(where, "dx", dx, k->dtype, dy.rows, w.columns));
    TRY(check_activation(where, act));
    return act == ACTIVATION_NONE
               ? STATUS_OK
               : check_shape(where, "saved", saved, k->dtype, dx.rows, dx.columns);
}

/* check_linear_backward_weight - check the arguments that linear_backward_weight and
 * fp8_linear_backward_weight share. */
static inline status check_linear_backward_weight(const char *where, const struct kernels *k,
                                                  struct tensor dw, struct tensor dbias,
                                                  struct tensor dy, struct tensor x)
{
    TRY(check_shape(where, "dy", dy, k->dtype, x.rows, dy.columns));
    TRY(check_shape(where, "x", x, k->dtype, dy.rows, x.columns));
    TRY(check_optional_shape(where, "dw", dw, DTYPE_F32, dy.columns, x.columns));
    return check_optional_shape(where, "dbias", dbias, DTYPE_F32, 1, dy.columns);
}

/* check_present - check that a pointer is not NULL. */
static inline status check_present(const char *where, const char *what, const void *pointer)
{
    REQUIRE(pointer != NULL, STATUS_INTERNAL, "%s: %s is missing", where, what);
    return STATUS_OK;
}

/* PRESENT - check a pointer and return from the calling function on error. */
#define PRESENT(pointer) TRY(check_present(__func__, #pointer, pointer))
