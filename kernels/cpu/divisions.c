#include "kernels/cpu/divisions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t divisions_bytes(int threads, const struct kernels_limits *limits)
{
    int64_t size = limits->inner > limits->width ? limits->inner : limits->width;
    size = size > limits->rows ? size : limits->rows;
    int64_t rows = size < GRID_UNIT_ROWS ? size : GRID_UNIT_ROWS;
    int64_t columns = size < GRID_UNIT_COLUMNS ? size : GRID_UNIT_COLUMNS;
    return threads == 1 ? 0 : 2 * (size_t)(rows * columns) * sizeof(float);
}

static float get_element(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride + column;
    return t.dtype == DTYPE_F32 ? ((const float *)t.data)[at]
                                : bf16_to_f32(((const bf16 *)t.data)[at]);
}

/* Samples a matrix. Returns whether more than half of the samples are finite and not 0. With other
 * matrices, different orders of additions may give equal bits by chance. */
static bool is_general(struct tensor t)
{
    enum { SAMPLES = 64 };
    int64_t general = 0, count = 0;
    for (int64_t i = 0; i < SAMPLES && i < t.rows; i++) {
        for (int64_t j = 0; j < SAMPLES && j < t.columns; j++) {
            int64_t row = t.rows <= SAMPLES ? i : i * t.rows / SAMPLES;
            int64_t column = t.columns <= SAMPLES ? j : j * t.columns / SAMPLES;
            float x = get_element(t, row, column);
            general += isfinite(x) && x != 0;
            count++;
        }
    }
    return 2 * general > count;
}

/* Allocates an output with the stride of c, filled with numbers from -1 to 1; NULL if there is no
 * memory. calloc does not touch long gaps between rows. */
static struct tensor make_output(const struct tensor *c, int64_t rows, int64_t columns)
{
    struct tensor t = {NULL, c->dtype, rows, columns, c->stride};
    t.data = calloc((size_t)((rows - 1) * t.stride + columns), dtype_bytes(t.dtype));
    uint32_t state = 1;
    for (int64_t i = 0; t.data != NULL && i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            state = state * 1664525U + 1013904223U; /* the generator of Numerical Recipes */
            float value = (float)(int32_t)state * 0x1p-31f;
            if (t.dtype == DTYPE_F32) {
                ((float *)t.data)[i * t.stride + j] = value;
            } else {
                ((bf16 *)t.data)[i * t.stride + j] = f32_to_bf16(value);
            }
        }
    }
    return t;
}

static bool equal_rows(struct tensor x, struct tensor y)
{
    size_t size = dtype_bytes(x.dtype);
    for (int64_t i = 0; i < x.rows; i++) {
        size_t at = (size_t)(i * x.stride) * size;
        if (memcmp((char *)x.data + at, (char *)y.data + at, (size_t)x.columns * size) != 0) {
            return false;
        }
    }
    return true;
}

/* Computes one unit of `call` as a whole and in pieces. */
static status compare_unit(struct matmul *m, const struct matmul_call *call,
                           struct matmul_block unit, const struct grid *pieces, int threads,
                           bool *equal)
{
    struct matmul_call whole = {
        .c = make_output(&call->c, unit.rows, unit.columns),
        .a = call->transpose_a ? tensor_columns(call->a, unit.row, unit.rows)
                               : tensor_rows(call->a, unit.row, unit.rows),
        .b = call->transpose_b ? tensor_rows(call->b, unit.column, unit.columns)
                               : tensor_columns(call->b, unit.column, unit.columns),
        .bias = call->bias.data == NULL ? call->bias
                                        : tensor_columns(call->bias, unit.column, unit.columns),
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .accumulate = call->accumulate,
    };
    struct matmul_call split = whole;
    split.c = make_output(&call->c, unit.rows, unit.columns);
    status result = STATUS_OK;
    *equal = whole.c.data != NULL && split.c.data != NULL;
    if (*equal) {
        struct grid one = {unit.rows, unit.columns, 1, 1};
        struct grid g = grid_divide(pieces->unit_rows, pieces->unit_columns, &whole.c);
        TRY_GOTO(result, done, matmul_run_grid(m, &whole, &one, 1));
        TRY_GOTO(result, done, matmul_run_grid(m, &split, &g, threads));
        *equal = equal_rows(whole.c, split.c);
    }
done:
    free(whole.c.data);
    free(split.c.data);
    return result;
}

/* Compares the four corner units. Skips a unit that has the size of the one before it. */
static status compare_units(struct matmul *m, const struct matmul_call *call,
                            const struct grid *base, const struct grid *pieces, int threads,
                            bool *equal)
{
    int64_t last_column = (base->columns - 1) * base->rows, last_row = base->rows - 1;
    int64_t units[] = {0, last_row, last_column, last_column + last_row};
    int64_t compared_rows = 0, compared_columns = 0;
    *equal = true;
    for (int i = 0; i < 4 && *equal; i++) {
        struct matmul_block unit = grid_block(base, &call->c, units[i]);
        if (unit.rows != compared_rows || unit.columns != compared_columns) {
            TRY(compare_unit(m, call, unit, pieces, threads, equal));
        }
        compared_rows = unit.rows;
        compared_columns = unit.columns;
    }
    return STATUS_OK;
}

/* Replaces *g by the fastest division of its units that has the same bits. Pieces with all columns
 * are tried last: some processors add in another order if the output has gaps between its rows. */
static status choose_division(struct matmul *m, const struct matmul_call *call, int threads,
                              struct grid *g)
{
    struct grid pieces[GRID_REFINEMENTS];
    for (int rows_only = 0; rows_only < 2; rows_only++) {
        int count = grid_refine(g, call, threads, rows_only == 1, pieces);
        for (int i = 0; i < count; i++) {
            bool equal;
            TRY(compare_units(m, call, g, &pieces[i], threads, &equal));
            if (equal) {
                *g = pieces[i];
                return STATUS_OK;
            }
        }
    }
    return STATUS_OK;
}

static void describe_call(const struct matmul_call *call, int64_t out[DIVISION_FIELDS])
{
    const int64_t fields[DIVISION_FIELDS] = {
        call->c.rows,      call->c.columns,    matmul_inner_size(call), call->c.stride,
        call->a.stride,    call->b.stride,     call->c.dtype,           call->a.dtype,
        call->transpose_a, call->transpose_b,  call->accumulate,        call->bias.data != NULL,
        call->unit_rows,   call->unit_columns, call->keep_columns,      call->private_elements,
    };
    memcpy(out, fields, sizeof fields);
}

/* Returns the entry of a call, or NULL. */
static struct division *find_entry(struct divisions *d, const int64_t call[DIVISION_FIELDS])
{
    for (int i = 0; i < d->count; i++) {
        if (memcmp(d->list[i].call, call, sizeof d->list[i].call) == 0) {
            return &d->list[i];
        }
    }
    return NULL;
}

status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out)
{
    *out = grid_make(call);
    if (call->keep_units || grid_is_balanced(out, threads)) {
        return STATUS_OK;
    }
    struct division made = {.grid = *out};
    describe_call(call, made.call);
    struct division *entry = find_entry(d, made.call);
    if (entry == NULL && d->count < DIVISIONS) {
        d->list[d->count++] = made;
    } else if (entry != NULL && !entry->is_compared && is_general(call->a) && is_general(call->b)) {
        TRY(choose_division(m, call, threads, &entry->grid));
        entry->is_compared = true;
    }
    *out = entry != NULL ? entry->grid : *out;
    return STATUS_OK;
}
