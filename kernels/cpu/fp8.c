/* Linear layers with operands that are rounded to FP8.
 *
 *   u' = q(scale u) / scale;  the GEMM of linear.c then reads u' instead of u
 *
 * Row-wise, a row or a column of the operand is measured first and then rounded with its own scale.
 *
 * The numbers of E4M3 and E5M2 have at most 3 fraction bits and the scale is a power of two, so
 * bf16 and f32 represent u' exactly. The GEMMs have f32 sums, as on a GPU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* An FP8 type: its fraction bits, the exponent of its smallest normal number, and its
 * largest number. */
struct fp8_format {
    int fraction_bits, least_exponent;
    float largest;
};

static const struct fp8_format formats[FP8_OPERANDS] = {
    [FP8_X] = {3, -6, FP8_MAX_E4M3},
    [FP8_W] = {3, -6, FP8_MAX_E4M3},
    [FP8_DY] = {2, -14, FP8_MAX_E5M2},
};

/* Rounds to nearest even. Subnormal numbers are rounded by the addition of a number with their
 * distance as its last bit. */
CPU_INLINE vector round_to_format(vector x, const struct fp8_format *format)
{
    vector clamped =
        vector_max(vector_set(-format->largest), vector_min(vector_set(format->largest), x));
    vector_words bits = (vector_words)clamped, sign = bits & 0x80000000u;
    const int shift = 23 - format->fraction_bits;
    const uint32_t unit = 1u << shift;
    vector normal = (vector)((bits + (bits >> shift & 1u) + (unit / 2 - 1)) & ~(unit - 1));
    float anchor = ldexpf(1.5f, format->least_exponent - format->fraction_bits + 23);
    vector subnormal = (clamped + anchor) - anchor;
    vector_words magnitude = bits & 0x7fffffffu;
    vector_bits is_small = (vector)magnitude < ldexpf(1.0f, format->least_exponent);
    vector rounded = vector_select(is_small, subnormal, normal);
    rounded = (vector)(((vector_words)rounded & 0x7fffffffu) | sign);
    return vector_select(x != x, x, rounded);
}

/* Returns the larger of two vectors of magnitudes as integers: NaN is the largest. */
CPU_INLINE vector_bits select_larger(vector_bits a, vector_bits b)
{
    vector_bits mask = a > b;
    return (a & mask) | (b & ~mask);
}

/* Rounds the columns of a row if `to` is present. Returns the bits of the largest magnitude. */
CPU_INLINE int32_t round_row(struct tensor to, struct tensor from, int64_t row, enum dtype dtype,
                             const struct fp8_format *format, const float *scale)
{
    vector_bits largest = {0};
    for (int64_t c = 0; c < from.columns; c += VECTOR_LANES) {
        int64_t left = from.columns - c;
        vector x = vector_get(from.data, dtype, row * from.stride + c, left);
        largest = select_larger((vector_bits)x & 0x7fffffff, largest);
        if (to.data != NULL) {
            vector rest = x - x; /* NaN if x is not finite, else 0 */
            vector scaled = vector_select(rest == rest, x * scale[FP8_SCALE], rest);
            vector_put(to.data, dtype, row * to.stride + c,
                       round_to_format(scaled, format) * scale[FP8_RECIPROCAL], left);
        }
    }
    int32_t result = 0;
    for (int i = 0; i < VECTOR_LANES; i++) {
        result = largest[i] > result ? largest[i] : result;
    }
    return result;
}

static int32_t round_rows(int threads, struct tensor to, struct tensor from,
                          const struct fp8_format *format, const float *scale)
{
    int32_t largest = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : largest)
    for (int64_t row = 0; row < from.rows; row++) {
        int32_t bits = from.dtype == DTYPE_F32
                           ? round_row(to, from, row, DTYPE_F32, format, scale)
                           : round_row(to, from, row, DTYPE_BF16, format, scale);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* ---- row-wise scales ---- */

static void round_each_row(int threads, struct tensor to, struct tensor from)
{
    const struct fp8_format *format = &formats[FP8_X];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < from.rows; row++) {
        const bool wide = from.dtype == DTYPE_F32;
        int32_t largest = wide ? round_row(tensor_absent(), from, row, DTYPE_F32, format, NULL)
                               : round_row(tensor_absent(), from, row, DTYPE_BF16, format, NULL);
        float scale[2];
        scale[FP8_SCALE] = fp8_row_scale((uint32_t)largest);
        scale[FP8_RECIPROCAL] = 1 / scale[FP8_SCALE];
        (void)(wide ? round_row(to, from, row, DTYPE_F32, format, scale)
                    : round_row(to, from, row, DTYPE_BF16, format, scale));
    }
}

/* Rounds VECTOR_LANES columns from c on. */
CPU_INLINE void round_columns(struct tensor to, struct tensor from, int64_t c, enum dtype dtype)
{
    const int64_t left = from.columns - c;
    vector_bits largest = {0};
    for (int64_t row = 0; row < from.rows; row++) {
        vector x = vector_get(from.data, dtype, row * from.stride + c, left);
        largest = select_larger((vector_bits)x & 0x7fffffff, largest);
    }
    vector scale = {0}, reciprocal = {0};
    for (int i = 0; i < VECTOR_LANES; i++) {
        scale[i] = fp8_row_scale((uint32_t)largest[i]);
        reciprocal[i] = 1 / scale[i];
    }
    for (int64_t row = 0; row < from.rows; row++) {
        vector x = vector_get(from.data, dtype, row * from.stride + c, left);
        vector rest = x - x; /* NaN if x is not finite, else 0 */
        vector scaled = vector_select(rest == rest, x * scale, rest);
        vector_put(to.data, dtype, row * to.stride + c,
                   round_to_format(scaled, &formats[FP8_X]) * reciprocal, left);
    }
}

static void round_each_column(int threads, struct tensor to, struct tensor from)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < from.columns; c += VECTOR_LANES) {
        if (from.dtype == DTYPE_F32) {
            round_columns(to, from, c, DTYPE_F32);
        } else {
            round_columns(to, from, c, DTYPE_BF16);
        }
    }
}

/* ---- operands ---- */

static status allocate_operand(struct kernels *k, struct tensor *to, struct tensor from)
{
    void *memory = NULL;
    size_t bytes = (size_t)(from.rows * from.columns) * dtype_bytes(from.dtype);
    TRY(arena_take(&cpu_get_state(k)->scratch, bytes, &memory));
    *to = tensor_view(memory, from.dtype, from.rows, from.columns);
    return STATUS_OK;
}

/* The elements of an operand that are multiplied by one row of the other operand. */
enum direction { BY_ROWS, BY_COLUMNS };

/* Measures an operand of a GEMM. With scales, also rounds it into scratch memory and sets *to.
 * Row-wise, always rounds it; every row or column has a scale. */
static status prepare_operand(struct kernels *k, struct tensor *to, struct tensor maxima,
                              struct tensor from, struct tensor scales, enum fp8_operand operand,
                              enum direction direction)
{
    if (k->limits.fp8_rowwise) {
        TRY(allocate_operand(k, to, from));
        if (direction == BY_ROWS) {
            round_each_row(k->threads, *to, from);
        } else {
            round_each_column(k->threads, *to, from);
        }
        return STATUS_OK;
    }
    *to = from;
    if (scales.data == NULL && maxima.data == NULL) {
        return STATUS_OK;
    }
    struct tensor rounded = tensor_absent();
    if (scales.data != NULL) {
        TRY(allocate_operand(k, to, from));
        rounded = *to;
    }
    const float *scale =
        scales.data != NULL ? (const float *)scales.data + operand * scales.stride : NULL;
    int32_t largest = round_rows(k->threads, rounded, from, &formats[operand], scale);
    if (maxima.data != NULL) {
        int32_t before;
        memcpy(&before, (float *)maxima.data + operand, sizeof before);
        largest = before > largest ? before : largest;
        memcpy((float *)maxima.data + operand, &largest, sizeof largest);
    }
    return STATUS_OK;
}

size_t CPU(fp8_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    size_t rows = (size_t)(limits->rows * limits->fp8_columns) * dtype_bytes(dtype);
    size_t weights = (size_t)limits->fp8_weights * dtype_bytes(dtype);
    return cpu_scratch_align(rows) + cpu_scratch_align(weights > rows ? weights : rows) +
           CPU(column_sums_scratch)(dtype, threads, limits); /* of linear_backward_input */
}

status CPU(fp8_linear_forward)(struct kernels *k, struct tensor y, struct tensor saved,
                               struct tensor maxima, struct tensor x, struct tensor w,
                               struct tensor bias, struct tensor scales, enum activation act)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    struct tensor operands[2];
    TRY(prepare_operand(k, &operands[0], maxima, x, scales, FP8_X, BY_ROWS));
    TRY(prepare_operand(k, &operands[1], maxima, w, scales, FP8_W, BY_ROWS));
    status result = CPU(linear_forward)(k, y, saved, operands[0], operands[1], bias, act);
    arena_release(scratch, mark);
    return result;
}

status CPU(fp8_linear_backward_input)(struct kernels *k, struct tensor dx,
                                      struct bias_gradient dbias, struct tensor maxima,
                                      struct tensor dy, struct tensor w, struct tensor scales,
                                      enum activation act, struct tensor saved)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    struct tensor operands[2];
    TRY(prepare_operand(k, &operands[0], maxima, dy, scales, FP8_DY, BY_ROWS));
    TRY(prepare_operand(k, &operands[1], tensor_absent(), w, scales, FP8_W, BY_COLUMNS));
    status result = CPU(linear_backward_input)(k, dx, dbias, operands[0], operands[1], act, saved);
    arena_release(scratch, mark);
    return result;
}

status CPU(fp8_linear_backward_weight)(struct kernels *k, struct tensor dw, struct tensor dbias,
                                       struct tensor maxima, struct tensor dy, struct tensor x,
                                       struct tensor scales, bool overwrite)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    struct tensor operands[2], none = tensor_absent();
    TRY(CPU(linear_backward_weight)(k, none, dbias, dy, x, overwrite));
    if (dw.data == NULL) {
        return k->limits.fp8_rowwise
                   ? STATUS_OK
                   : prepare_operand(k, &operands[0], maxima, dy, none, FP8_DY, BY_COLUMNS);
    }
    TRY(prepare_operand(k, &operands[0], maxima, dy, scales, FP8_DY, BY_COLUMNS));
    TRY(prepare_operand(k, &operands[1], none, x, scales, FP8_X, BY_COLUMNS));
    status result = CPU(linear_backward_weight)(k, dw, none, operands[0], operands[1], overwrite);
    arena_release(scratch, mark);
    return result;
}

/* Moves the rows of a ring by one, so that the newest row moves to row `row`. */
static void rotate_rows(struct tensor history, int64_t row)
{
    for (int64_t i = 0; i < history.columns; i++) {
        float *column = (float *)history.data + i, oldest = column[row * history.stride];
        int64_t r = row;
        for (int64_t n = 1; n < history.rows; n++) {
            int64_t next = (r + 1) % history.rows;
            column[r * history.stride] = column[next * history.stride];
            r = next;
        }
        column[r * history.stride] = oldest;
    }
}

status CPU(fp8_update_scales)(struct kernels *k, struct tensor scales, struct tensor history,
                              struct tensor maxima, int64_t row,
                              const struct update_control *control)
{
    (void)k;
    if (control != NULL && control->skip != 0) {
        rotate_rows(history, row);
        return STATUS_OK;
    }
    for (int64_t i = 0; i < history.columns; i++) {
        float newest = 0;
        for (int64_t r = 0; r < maxima.rows; r++) {
            float x = ((const float *)maxima.data)[r * maxima.stride + i];
            newest = isfinite(x) && x > newest ? x : newest;
        }
        float *column = (float *)history.data + i, amax = newest;
        column[row * history.stride] = newest;
        for (int64_t r = 0; r < history.rows; r++) {
            amax = column[r * history.stride] > amax ? column[r * history.stride] : amax;
        }
        float scale = fp8_scale(amax, (enum fp8_operand)(i % FP8_OPERANDS));
        float *to = (float *)scales.data + i * scales.stride;
        to[FP8_RECIPROCAL] = 1 / scale;
        to[FP8_SCALE] = scale;
    }
    return STATUS_OK;
}
