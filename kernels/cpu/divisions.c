#include "kernels/cpu/divisions.h"

#include <stdlib.h>
#include <string.h>

/* Units with larger operands are not divided. */
enum { COMPARISON_BYTES = 256 << 20 };

/* Allocates a matrix with the stride of `like`, filled with numbers from -1 to 1; NULL if it would
 * be too large or there is no memory. */
static struct tensor make_random(const struct tensor *like, int64_t rows, int64_t columns)
{
    struct tensor t = {NULL, like->dtype, rows, columns, like->stride};
    size_t count = (size_t)((rows - 1) * like->stride + columns);
    t.data = count * sizeof(float) > COMPARISON_BYTES ? NULL : calloc(count, dtype_bytes(t.dtype));
    uint32_t state = 1;
    for (int64_t i = 0; t.data != NULL && i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            state = state * 1664525U + 1013904223U; /* the generator of Numerical Recipes */
            float value = (float)(int32_t)state * 0x1p-31f;
            if (t.dtype == DTYPE_F32) {
                ((float *)t.data)[i * t.stride + j] = value;
            } else {
                ((uint16_t *)t.data)[i * t.stride + j] = f32_to_bf16(value);
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

/* Computes one unit of `call` as a whole and in pieces, with random operands. */
static status compare_unit(struct matmul *m, const struct matmul_call *call,
                           struct matmul_block unit, const struct grid *pieces, int threads,
                           bool *equal)
{
    int64_t inner = matmul_inner_size(call);
    struct matmul_call whole = {
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .accumulate = call->accumulate,
        .c = make_random(&call->c, unit.rows, unit.columns),
        .a = make_random(&call->a, call->transpose_a ? inner : unit.rows,
                         call->transpose_a ? unit.rows : inner),
        .b = make_random(&call->b, call->transpose_b ? unit.columns : inner,
                         call->transpose_b ? inner : unit.columns),
        .bias =
            call->bias.data == NULL ? tensor_absent() : make_random(&call->bias, 1, unit.columns),
    };
    struct matmul_call split = whole;
    split.c = make_random(&call->c, unit.rows, unit.columns);
    status result = STATUS_OK;
    *equal = whole.c.data != NULL && whole.a.data != NULL && whole.b.data != NULL &&
             split.c.data != NULL && (call->bias.data == NULL || whole.bias.data != NULL);
    if (*equal) {
        struct grid one = {unit.rows, unit.columns, 1, 1};
        struct grid g = grid_divide(pieces->unit_rows, pieces->unit_columns, &whole.c);
        TRY_GOTO(result, done, matmul_run_grid(m, &whole, &one, 1));
        TRY_GOTO(result, done, matmul_run_grid(m, &split, &g, threads));
        *equal = equal_rows(whole.c, split.c);
    }
done:
    free(whole.a.data);
    free(whole.b.data);
    free(whole.bias.data);
    free(whole.c.data);
    free(split.c.data);
    return result;
}

/* Compares an inner unit and the units at the lower and right edges. */
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
        call->unit_rows,   call->keep_columns,
    };
    memcpy(out, fields, sizeof fields);
}

/* Returns the entry of a call; *is_new if it was just added. */
static struct division *find_entry(struct divisions *d, const struct matmul_call *call,
                                   const struct grid *base, bool *is_new)
{
    struct division made = {.grid = *base}, *oldest = d->list;
    describe_call(call, made.call);
    *is_new = false;
    for (int i = 0; i < d->count; i++) {
        struct division *entry = &d->list[i];
        if (memcmp(entry->call, made.call, sizeof made.call) == 0) {
            return entry;
        }
        oldest = entry->used < oldest->used ? entry : oldest;
    }
    *is_new = true;
    struct division *added = d->count < DIVISIONS ? &d->list[d->count++] : oldest;
    *added = made;
    return added;
}

status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out)
{
    struct grid pieces[GRID_REFINEMENTS];
    *out = grid_make(call);
    if (call->keep_units || grid_refine(out, call, threads, false, pieces) == 0) {
        return STATUS_OK;
    }
    bool is_new;
    struct division *entry = find_entry(d, call, out, &is_new);
    entry->used = ++d->clock;
    if (!is_new && !entry->is_compared) {
        TRY(choose_division(m, call, threads, &entry->grid));
        entry->is_compared = true;
    }
    *out = entry->grid;
    return STATUS_OK;
}
