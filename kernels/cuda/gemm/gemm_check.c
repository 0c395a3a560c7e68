/* Comparison of the results of two plans of a GEMM, before the faster one may be chosen: some rows
 * of each output are read and compared element by element.
 *
 * Tolerance Plans add in different orders and round intermediate results to the type of the output.
 *           Therefore elements may differ by a fraction of the largest element of their tensor:
 *           2^-6 in bf16, for sums of bf16 results, and for FP8 operands (Hopper adds their
 *           products with about 14 bits). In all other cases, the fraction is 2^-10. Elements that
 *           are not finite in the expected results are not compared, because the last training step
 *           left arbitrary values in the operands
 * Operands  A bias of zeros, or a derivative at zeros, would hide a wrong epilogue. They are
 *           replaced by numbers of a fixed pattern */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "kernels/cuda/gemm/gemm.h"

enum { SAMPLED_ROWS = 8, OUTPUTS_MAX = 3 };

/* Lists the tensors that the GEMM and its epilogue write. */
static int list_outputs(const struct cuda_gemm *p, struct tensor outputs[OUTPUTS_MAX])
{
    int count = 0;
    outputs[count++] = p->c;
    if (p->act != ACTIVATION_NONE && !p->derivative && p->aux.data != NULL) {
        outputs[count++] = p->aux;
    }
    if (p->sums.sums.data != NULL) {
        outputs[count++] = p->sums.sums;
    }
    return count;
}

static bool has_fp8(const struct cuda_gemm *p)
{
    return dtype_bytes(p->a.dtype) == 1;
}

static int64_t count_rows(struct tensor t)
{
    return number_min(t.rows, SAMPLED_ROWS);
}

/* Returns the i-th of the sampled rows: the first, the last and rows between them. */
static struct tensor get_row(struct tensor t, int64_t i)
{
    int64_t rows = count_rows(t);
    return tensor_rows(t, rows > 1 ? i * (t.rows - 1) / (rows - 1) : 0, 1);
}

int64_t gemm_check_elems(const struct cuda_gemm *p)
{
    struct tensor outputs[OUTPUTS_MAX];
    int64_t elems = 0;
    for (int i = 0, count = list_outputs(p, outputs); i < count; i++) {
        elems += count_rows(outputs[i]) * outputs[i].columns;
    }
    return elems;
}

status gemm_check_clear(struct kernels *k, const struct cuda_gemm *p)
{
    struct tensor outputs[OUTPUTS_MAX];
    for (int i = 0, count = list_outputs(p, outputs); i < count; i++) {
        for (int64_t r = 0; r < count_rows(outputs[i]); r++) {
            TRY(device_zero(k->device, k->stream, get_row(outputs[i], r).data,
                            (size_t)outputs[i].columns * dtype_bytes(outputs[i].dtype)));
        }
    }
    return STATUS_OK;
}

/* Reads a row to the end of its place in `out` and widens it in place. */
static status read_row(struct kernels *k, struct tensor row, float *out)
{
    size_t bytes = (size_t)row.columns * dtype_bytes(row.dtype);
    char *end = (char *)(out + row.columns);
    TRY(device_read(k->device, k->stream, end - bytes, row.data, bytes));
    for (int64_t c = 0; row.dtype == DTYPE_BF16 && c < row.columns; c++) {
        out[c] = bf16_to_f32(((const bf16 *)(end - bytes))[c]);
    }
    return STATUS_OK;
}

status gemm_check_read(struct kernels *k, const struct cuda_gemm *p, float *out)
{
    struct tensor outputs[OUTPUTS_MAX];
    for (int i = 0, count = list_outputs(p, outputs); i < count; i++) {
        for (int64_t r = 0; r < count_rows(outputs[i]); r++) {
            TRY(read_row(k, get_row(outputs[i], r), out));
            out += outputs[i].columns;
        }
    }
    return STATUS_OK;
}

/* Returns the largest finite absolute value. */
static float find_largest(const float *elements, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) {
        float size = fabsf(elements[i]);
        largest = isfinite(size) && size > largest ? size : largest;
    }
    return largest;
}

static bool is_near(const float *expected, const float *got, int64_t count, float tolerance)
{
    float largest = find_largest(expected, count);
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(expected[i]) && !(fabsf(got[i] - expected[i]) <= tolerance * largest)) {
            return false;
        }
    }
    return true;
}

bool gemm_check_agrees(const struct cuda_gemm *p, const float *expected, const float *got)
{
    struct tensor outputs[OUTPUTS_MAX];
    bool agrees = true;
    for (int i = 0, count = list_outputs(p, outputs); i < count; i++) {
        int64_t elems = count_rows(outputs[i]) * outputs[i].columns;
        bool adds_rounded = i == count - 1 && p->sums.sums.data != NULL && !p->transpose_a;
        bool coarse = outputs[i].dtype == DTYPE_BF16 || has_fp8(p) ||
                      (adds_rounded && p->c.dtype == DTYPE_BF16);
        float tolerance = coarse ? 0x1p-6f : 0x1p-10f;
        agrees = agrees && is_near(expected, got, elems, tolerance);
        expected += elems;
        got += elems;
    }
    return agrees;
}

/* ---- operands that make every epilogue visible ---- */

/* Returns one of 16 numbers in [-1, 1] that are not zero. Neighbors differ. */
static float get_pattern(int64_t i)
{
    const uint32_t golden = 2654435761u; /* 2^32 divided by the golden ratio */
    return (2.0f * (float)((uint32_t)i * golden >> 28) - 15.0f) / 15.0f;
}

/* Writes the pattern, times `scale`, to a row. `buffer` has its size. */
static status write_pattern(struct kernels *k, struct tensor row, int64_t first, float scale,
                            void *buffer)
{
    for (int64_t c = 0; c < row.columns; c++) {
        float x = scale * get_pattern(first + c);
        if (row.dtype == DTYPE_BF16) {
            ((bf16 *)buffer)[c] = f32_to_bf16(x);
        } else {
            ((float *)buffer)[c] = x;
        }
    }
    return device_write(k->device, k->stream, row.data, buffer,
                        (size_t)row.columns * dtype_bytes(row.dtype));
}

/* Stores the sampled rows and fills them with the pattern. */
static status fill_rows(struct kernels *k, struct tensor t, float scale,
                        struct gemm_check_changes *changes)
{
    size_t bytes = (size_t)t.columns * dtype_bytes(t.dtype);
    int64_t rows = count_rows(t);
    char *previous = NULL;
    TRY(ALLOCATE(previous, (size_t)(rows + 1) * bytes, "tuning a GEMM")); /* and the new row */
    for (int64_t r = 0; r < rows; r++) {
        status result = device_read(k->device, k->stream, previous + (size_t)r * bytes,
                                    get_row(t, r).data, bytes);
        if (result != STATUS_OK) {
            free(previous);
            return result;
        }
    }
    changes->filled[changes->count].tensor = t;
    changes->filled[changes->count++].previous = previous;
    for (int64_t r = 0; r < rows; r++) {
        TRY(write_pattern(k, get_row(t, r), r * t.columns, scale, previous + (size_t)rows * bytes));
    }
    return STATUS_OK;
}

status gemm_check_fill_input(struct kernels *k, const struct cuda_gemm *p, const float *expected,
                             struct gemm_check_changes *changes, bool *filled)
{
    struct tensor outputs[OUTPUTS_MAX];
    *filled = false;
    for (int i = 0, count = list_outputs(p, outputs); i < count; i++) {
        int64_t elems = count_rows(outputs[i]) * outputs[i].columns;
        *filled = *filled || (!(find_largest(expected, elems) > 0) && !has_fp8(p));
        expected += elems;
    }
    return *filled ? fill_rows(k, p->a, 1, changes) : STATUS_OK;
}

/* Returns an FP8 number with a magnitude in [1/8, 2). */
static uint8_t get_fp8_pattern(uint32_t i, enum dtype dtype)
{
    uint32_t bits = i * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u >> 24;
    return (uint8_t)((bits & 0x80) |
                     (dtype == DTYPE_E4M3 ? 0x20 | (bits & 0x1f) : 0x30 | (bits & 0x0f)));
}

/* Writes one period of the pattern and copies it on the device. The period is a prime number, so
 * that rows differ. */
static status fill_fp8(struct kernels *k, struct tensor t)
{
    enum { PERIOD = 4099 };
    uint8_t pattern[PERIOD], *data = t.data;
    size_t bytes = (size_t)(t.rows * t.stride), filled = bytes < PERIOD ? bytes : PERIOD;
    for (uint32_t i = 0; i < PERIOD; i++) {
        pattern[i] = get_fp8_pattern(i, t.dtype);
    }
    TRY(device_write(k->device, k->stream, data, pattern, filled));
    while (filled < bytes) {
        size_t part = bytes - filled < filled ? bytes - filled : filled;
        TRY(device_copy(k->device, k->stream, data + filled, data, part));
        filled += part;
    }
    return STATUS_OK;
}

/* Sets row-wise factors to powers of two, so that adjacent factors differ. */
static status fill_factors(struct kernels *k, const float *factors, int64_t count)
{
    size_t bytes = (size_t)count * sizeof *factors;
    float *buffer = NULL;
    TRY(ALLOCATE(buffer, count, "tuning a GEMM"));
    for (int64_t i = 0; i < count; i++) {
        buffer[i] = ldexpf(1, -(int)(i % 3));
    }
    status result = device_write(k->device, k->stream, (void *)(uintptr_t)factors, buffer, bytes);
    free(buffer);
    return result;
}

status gemm_check_fill_fp8(struct kernels *k, const struct cuda_gemm *p)
{
    TRY(fill_fp8(k, p->a));
    TRY(fill_fp8(k, p->b));
    if (!p->scales_rows) {
        return STATUS_OK;
    }
    TRY(fill_factors(k, p->scale_a, p->c.rows));
    return fill_factors(k, p->scale_b, p->c.columns);
}

/* Sets the bias to another vector with the same alignment. */
static status replace_bias(struct kernels *k, struct cuda_gemm *p, float scale,
                           struct gemm_check_changes *changes)
{
    enum { ALIGNMENT = 256 };
    size_t bytes = (size_t)p->bias.columns * sizeof(float);
    struct tensor bias = p->bias;
    if (device_allocate(k->device, bytes + ALIGNMENT, "another bias", &changes->bias) !=
        STATUS_OK) {
        changes->bias = NULL;
        status_clear();
        return STATUS_OK;
    }
    changes->bias_bytes = bytes + ALIGNMENT;
    bias.data = (char *)changes->bias + (uintptr_t)p->bias.data % ALIGNMENT;
    float *buffer = NULL;
    TRY(ALLOCATE(buffer, p->bias.columns, "tuning a GEMM"));
    status result = write_pattern(k, bias, 0, scale, buffer);
    free(buffer);
    p->bias = bias;
    return result;
}

status gemm_check_fill_epilogue(struct kernels *k, struct cuda_gemm *p, const float *expected,
                                struct gemm_check_changes *changes)
{
    const float slope_changes = 3; /* GELU bends in [-3, 3] */
    float largest = find_largest(expected, gemm_check_elems(p));
    if (p->bias.data != NULL) {
        TRY(replace_bias(k, p, largest > 0 ? largest : 1, changes));
    }
    return p->derivative ? fill_rows(k, p->aux, slope_changes, changes) : STATUS_OK;
}

status gemm_check_restore(struct kernels *k, struct gemm_check_changes *changes)
{
    status result = STATUS_OK;
    for (int i = 0; i < changes->count; i++) {
        struct tensor t = changes->filled[i].tensor;
        size_t bytes = (size_t)t.columns * dtype_bytes(t.dtype);
        const char *previous = changes->filled[i].previous;
        for (int64_t r = 0; r < count_rows(t) && result == STATUS_OK; r++) {
            result = device_write(k->device, k->stream, get_row(t, r).data,
                                  previous + (size_t)r * bytes, bytes);
        }
        free(changes->filled[i].previous);
    }
    device_release(k->device, changes->bias, changes->bias_bytes);
    *changes = (struct gemm_check_changes){0};
    return result;
}
