#include "kernels/cpu/gemm/divisions.h"

#include "base/memory.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* The largest operands of a comparison, and the size of a page of memory. In GPT-2 with 1,024 rows,
 * the GEMM of the classifier that computes the gradient of the hidden states has operands of
 * 344 MiB. */
enum { OPERANDS_BYTES = 384 << 20, PAGE_BYTES = 4096 };

static size_t count_operand_bytes(int64_t rows, int64_t columns, int64_t inner, enum dtype dtype)
{
    return (size_t)((rows + columns) * inner) * dtype_bytes(dtype);
}

size_t divisions_bytes(int threads, const struct kernels_limits *limits)
{
    int64_t size = number_max(limits->inner, limits->width);
    size = number_max(size, limits->rows);
    int64_t rows = number_min(size, GRID_UNIT_ROWS);
    int64_t columns = number_min(size, GRID_UNIT_COLUMNS);
    int64_t elements = rows * columns;
    size_t operands = count_operand_bytes(rows, columns, size, DTYPE_F32);
    if (threads > 2) { /* strips */
        int64_t whole = size > GRID_STRIPS_ELEMS / size ? GRID_STRIPS_ELEMS : size * size;
        elements = number_max(elements, whole);
        int64_t longest = number_max(size, limits->vocabulary);
        operands = count_operand_bytes(limits->rows, size, longest, DTYPE_F32);
    }
    operands = operands < OPERANDS_BYTES ? operands : OPERANDS_BYTES;
    return threads == 1 ? 0 : operands + 2 * (size_t)elements * sizeof(float);
}

/* Returns the memory that the rows of a matrix use: a row with a gap after it uses about one page
 * more than its elements. */
static size_t count_used_bytes(struct tensor t)
{
    size_t size = dtype_bytes(t.dtype), row = (size_t)t.columns * size + PAGE_BYTES;
    size_t pitch = (size_t)t.stride * size;
    return (size_t)t.rows * (row < pitch ? row : pitch);
}

/* Allocates a matrix and fills it with numbers from -1 to 1; data is NULL if there is no memory.
 * calloc does not touch long gaps between rows. */
static struct tensor make_random(enum dtype dtype, int64_t rows, int64_t columns, int64_t stride,
                                 uint32_t seed)
{
    struct tensor t = {NULL, dtype, rows, columns, stride};
    t.data = calloc((size_t)((rows - 1) * stride + columns), dtype_bytes(dtype));
    uint32_t state = seed;
    for (int64_t i = 0; t.data != NULL && i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            state = state * 1664525U + 1013904223U; /* the generator of Numerical Recipes */
            float value = (float)(int32_t)state * 0x1p-31f;
            if (dtype == DTYPE_F32) {
                ((float *)t.data)[i * stride + j] = value;
            } else {
                ((bf16 *)t.data)[i * stride + j] = f32_to_bf16(value);
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

/* Runs a call with two divisions and compares the bits of the outputs. The operands are random
 * numbers, not the operands of the call. With the operands of the call, other orders of additions
 * may give equal bits by chance. This occurs if the products are small compared with the output to
 * which they are added. */
static status compare_outputs(struct matmul *m, const struct matmul_call *call,
                              const struct grid *base, const struct grid *g, int threads,
                              bool *equal)
{
    const struct tensor *a = &call->a, *b = &call->b, *c = &call->c;
    bool has_bias = call->bias.columns > 0;
    *equal = false;
    if (count_used_bytes(*a) + count_used_bytes(*b) > OPERANDS_BYTES ||
        count_used_bytes(*c) > GRID_STRIPS_ELEMS * sizeof(float)) {
        return STATUS_OK;
    }
    struct matmul_call first = {
        .c = make_random(c->dtype, c->rows, c->columns, c->stride, 1),
        .a = make_random(a->dtype, a->rows, a->columns, a->stride, 2),
        .b = make_random(b->dtype, b->rows, b->columns, b->stride, 3),
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .accumulate = call->accumulate,
    };
    if (has_bias) {
        first.bias = make_random(DTYPE_F32, 1, c->columns, c->columns, 4);
    }
    struct matmul_call second = first;
    second.c = make_random(c->dtype, c->rows, c->columns, c->stride, 1);
    status result = STATUS_OK;
    if (first.c.data != NULL && first.a.data != NULL && first.b.data != NULL &&
        second.c.data != NULL && (first.bias.data != NULL || !has_bias)) {
        TRY_GOTO(result, done, matmul_run_grid(m, &first, base, threads));
        TRY_GOTO(result, done, matmul_run_grid(m, &second, g, threads));
        *equal = equal_rows(first.c, second.c);
    }
done:
    free(first.a.data);
    free(first.b.data);
    free(first.bias.data);
    free(first.c.data);
    free(second.c.data);
    return result;
}

/* Computes one unit of `call` as a whole and in pieces. */
static status compare_unit(struct matmul *m, const struct matmul_call *call,
                           struct matmul_block unit, const struct grid *pieces, int threads,
                           bool *equal)
{
    const struct matmul_call part = {
        .c = {NULL, call->c.dtype, unit.rows, unit.columns, call->c.stride},
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
    struct grid one = grid_divide(unit.rows, unit.columns, &part.c);
    struct grid g = grid_divide(pieces->unit_rows, pieces->unit_columns, &part.c);
    return compare_outputs(m, &part, &one, &g, threads, equal);
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

/* How the units of strips are computed: at once, at once with copies of their operands, or in
 * blocks of the inner size. */
enum unit_method { METHOD_PLAIN, METHOD_DENSE, METHOD_BLOCKS };

/* How an output is divided into strips. */
struct strip_kind {
    enum unit_method method;
    struct grid_strip_rule rule;
    double share; /* strips must take less than this share of the time of the other division */
};

static const struct strip_kind plain_strips = {
    METHOD_PLAIN, {GRID_PIECE_MULTIPLE, GRID_UNIT_ROWS, 0, 0}, 1};

/* Returns whether the operands of the units of grid_make have no gaps between their rows. */
static bool is_dense(const struct matmul_call *call)
{
    struct grid g = grid_make(call);
    struct matmul_block unit = grid_block(&g, &call->c, 0);
    return matmul_dense_bytes(call, unit.rows, unit.columns) == 0;
}

/* Returns whether the copies of all units have the allowed size. */
static bool can_be_dense(const struct matmul_call *call, const struct grid *g)
{
    size_t most = 0;
    for (int i = 0; i < grid_kinds(g); i++) {
        struct matmul_block unit = grid_block(g, &call->c, grid_find_unit(g, i));
        size_t bytes = matmul_dense_bytes(call, unit.rows, unit.columns);
        most = bytes > most ? bytes : most;
    }
    return most <= MATMUL_COPIES_BYTES;
}

/* Returns the first column of the units at the right edge of grid_make if oneDNN adds in another
 * order there than in the other units; 0: it does not. */
static int64_t find_border(const struct matmul_call *call)
{
    struct grid g = grid_make(call);
    int64_t column = (g.columns - 1) * g.unit_columns, last = call->c.columns - column;
    bool is_border = matmul_inner_block(call, g.unit_rows, last) !=
                     matmul_inner_block(call, g.unit_rows, g.unit_columns);
    return is_border ? column : 0;
}

/* Returns whether units of some columns may begin only where a group of rows begins
 * (grid_find_part). */
static bool has_groups(const struct matmul_call *call)
{
    struct grid g = grid_make(call);
    int64_t last = call->c.columns - (g.columns - 1) * g.unit_columns;
    int64_t inner = matmul_inner_size(call);
    return call->transpose_b && (matmul_inner_block(call, g.unit_rows, g.unit_columns) == inner ||
                                 matmul_inner_block(call, g.unit_rows, last) == inner);
}

/* Sets the inner block of each strip. Returns whether the order of additions is known. */
static bool set_inner_blocks(const struct matmul_call *call, struct grid *strips)
{
    struct grid g = grid_make(call);
    bool is_known = true;
    for (int i = 0; i < strips->strips; i++) {
        struct grid_strip *s = &strips->strip[i];
        struct matmul_block unit = grid_block(&g, &call->c, s->column / g.unit_columns * g.rows);
        s->inner_block = matmul_inner_block(call, unit.rows, unit.columns);
        is_known = is_known && s->inner_block > 0;
    }
    return is_known;
}

/* Prepares strips for a method. Returns whether the method can be used. */
static bool set_method(const struct matmul_call *call, enum unit_method method, struct grid *strips)
{
    switch (method) {
    case METHOD_DENSE:
        strips->is_dense = true;
        return is_dense(call) && can_be_dense(call, strips);
    case METHOD_BLOCKS:
        return set_inner_blocks(call, strips) && matmul_has_few_parts(call, strips);
    case METHOD_PLAIN:
        break;
    }
    return true;
}

/* Replaces *g by strips with this number of units if these are faster and have the same bits.
 * *equal is set to whether this was done. */
static status try_strips(struct matmul *m, const struct matmul_call *call, int units, int threads,
                         const struct strip_kind *kind, struct grid *g, bool *equal)
{
    struct grid strips;
    *equal = grid_make_strips(call, units, &kind->rule, &strips) &&
             grid_estimate_time(&strips, threads) < kind->share * grid_estimate_time(g, threads) &&
             set_method(call, kind->method, &strips);
    if (*equal) {
        TRY(compare_outputs(m, call, g, &strips, threads, equal));
    }
    *g = *equal ? strips : *g;
    return STATUS_OK;
}

/* Tries other kinds of strips if oneDNN adds in another order in small units. The kinds are:
 *
 *   dense units (matmul_dense_bytes)
 *   units with the rows of the units of grid_make
 *   units that are computed in blocks of the inner size (matmul_inner_block)
 *   the same blocks, in units that begin at a group of rows
 *
 * Copies and blocks take some time, so each kind must be faster by 5 %. */
static status try_other_strips(struct matmul *m, const struct matmul_call *call, int threads,
                               struct grid *g, bool *equal)
{
    enum { DENSE_ROWS = 4, BLOCK_ROWS = 12, BLOCK_ROWS_MAX = 1032 };
    const double share = 0.95;
    const int64_t rows = grid_make(call).unit_rows, border = find_border(call);
    const struct strip_kind kinds[] = {
        {METHOD_DENSE, {DENSE_ROWS, GRID_UNIT_ROWS, 0, 0}, share},
        {METHOD_PLAIN, {rows, rows, 0, 0}, share},
        {METHOD_BLOCKS, {BLOCK_ROWS, BLOCK_ROWS_MAX, border, 0}, share},
        {METHOD_BLOCKS, {1, GRID_UNIT_ROWS, border, rows}, share},
    };
    int count = has_groups(call) ? COUNT(kinds) : COUNT(kinds) - 1;
    for (int i = 0; i < count; i++) {
        bool is_used;
        TRY(try_strips(m, call, threads, threads, &kinds[i], g, &is_used));
        *equal = *equal || is_used;
    }
    return STATUS_OK;
}

/* Replaces *g by the fastest division of its units into equal pieces that has the same bits. Pieces
 * with all columns are tried last: some processors add in another order if the output has gaps
 * between its rows. */
static status try_pieces(struct matmul *m, const struct matmul_call *call, int threads,
                         struct grid *g, bool *equal)
{
    struct grid pieces[GRID_REFINEMENTS];
    for (int rows_only = 0; rows_only < 2; rows_only++) {
        int count = grid_refine(g, call, threads, rows_only == 1, pieces);
        for (int i = 0; i < count; i++) {
            TRY(compare_units(m, call, g, &pieces[i], threads, equal));
            if (*equal) {
                *g = pieces[i];
                return STATUS_OK;
            }
        }
    }
    return STATUS_OK;
}

/* Replaces *g by the first of these divisions that has the same bits:
 *
 *   1. strips for all threads, unless equal pieces are as fast
 *   2. equal pieces
 *   3. on some processors, other strips that are faster than the pieces
 *   4. strips with fewer units
 *
 * Two threads have no strips. */
static status choose_division(struct matmul *m, const struct matmul_call *call, int threads,
                              struct grid *g)
{
    struct grid pieces[GRID_REFINEMENTS], strips;
    bool equal = false;
    bool has_strips = threads > 2 && grid_make_strips(call, threads, &plain_strips.rule, &strips);
    bool has_pieces = grid_refine(g, call, threads, false, pieces) > 0;
    if (has_strips && (!has_pieces || grid_estimate_time(&strips, threads) <
                                          grid_estimate_time(&pieces[0], threads))) {
        TRY(try_strips(m, call, threads, threads, &plain_strips, g, &equal));
    }
    if (equal) {
        return STATUS_OK;
    }
    TRY(try_pieces(m, call, threads, g, &equal));
    TRY(has_strips ? try_other_strips(m, call, threads, g, &equal) : STATUS_OK);
    for (int units = threads * 5 / 6; !equal && units > grid_units(g); units = units * 5 / 6) {
        TRY(try_strips(m, call, units, threads, &plain_strips, g, &equal));
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
static const struct division *find_entry(const struct divisions *d,
                                         const int64_t call[DIVISION_FIELDS])
{
    for (int i = 0; i < d->count; i++) {
        if (memcmp(d->list[i].call, call, sizeof d->list[i].call) == 0) {
            return &d->list[i];
        }
    }
    return NULL;
}

/* Returns whether a GEMM takes only some microseconds. Its division would save no time, and its few
 * outputs may have equal bits in another order of additions by chance. */
static bool is_small(const struct matmul_call *call)
{
    static const int64_t products = INT64_C(1) << 17;
    return call->c.rows * call->c.columns * matmul_inner_size(call) < products;
}

status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out)
{
    *out = grid_make(call);
    if (call->keep_units || is_small(call) || grid_is_balanced(out, threads)) {
        return STATUS_OK;
    }
    struct division made = {.grid = *out};
    describe_call(call, made.call);
    const struct division *entry = find_entry(d, made.call);
    if (entry == NULL && d->count < DIVISIONS) {
        TRY(choose_division(m, call, threads, &made.grid));
        entry = &d->list[d->count];
        d->list[d->count++] = made;
    }
    *out = entry != NULL ? entry->grid : *out;
    return STATUS_OK;
}
