/* Comparison of the results of two plans of a GEMM, before the faster one may be chosen: some rows
 * of each output are read and compared element by element.
 *
 * Tolerance Plans add in different orders and round intermediate results to the type of the output.
 *           So elements may differ by a fraction of the largest element of their tensor: 2^-6 in
 *           bf16 and 2^-10 in f32. Elements that are not finite in the expected results are not
 *           compared, because the operands are what the last step left */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/gemm.h"

enum { SAMPLED_ROWS = 8, OUTPUTS_MAX = 3 };

/* Lists the tensors that the GEMM and its epilogue write. */
static int list_outputs(const struct cuda_gemm *p, struct tensor outputs[OUTPUTS_MAX])
{
    int count = 0;
    outputs[count++] = p->c;
    if (p->act != ACTIVATION_NONE && !p->derivative && p->aux.data != NULL) {
        outputs[count++] = p->aux;
    }
    if (p->sums.data != NULL) {
        outputs[count++] = p->sums;
    }
    return count;
}

static int64_t count_rows(struct tensor t)
{
    return t.rows < SAMPLED_ROWS ? t.rows : SAMPLED_ROWS;
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

static bool is_near(const float *expected, const float *got, int64_t count, float tolerance)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) {
        float size = fabsf(expected[i]);
        largest = isfinite(size) && size > largest ? size : largest;
    }
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
        float tolerance = outputs[i].dtype == DTYPE_BF16 ? 0x1p-6f : 0x1p-10f;
        agrees = agrees && is_near(expected, got, elems, tolerance);
        expected += elems;
        got += elems;
    }
    return agrees;
}
