#include "kernels/cpu/grid.h"

/* Measured on two cores of Zen 5 with oneDNN 2.6.3, at GPT-2's shapes with 1,024 rows and one
 * thread per unit. Large units are 4 to 9 % faster than 512 x 384, because less is packed twice.
 * But if b is not transposed and the inner size is long, units wider than 384 read b with long
 * strides at two thirds of the speed. When oneDNN splits a GEMM between two threads, some shapes
 * run at half the speed. Packing b in advance gains nothing with these units. */
enum { UNIT_COLUMNS_NARROW = 384, UNIT_MULTIPLE = 64, UNITS_MIN = 4 };
enum { F32_INNER_LONG = 1024, BF16_INNER_LONG = 4096 };

/* Packing a row or a column of a unit takes as long as computing this many of its elements.
 * Measured on Zen 4 and oneDNN 2.6.3: 128 x 128 takes 1.0 to 1.34 times as long per element as
 * 1024 x 768, 256 x 256 1.0 to 1.16 times. */
enum { PACKING = 16 };

/* Pieces have at least this many rows and columns, and a multiple of it. */
enum { PIECE_MULTIPLE = 16 };

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the size of each of `parts` parts of `count` items: multiples of 64, except the last
 * part. */
static int64_t compute_split_size(int64_t count, int64_t parts)
{
    return divide_up(divide_up(count, parts), UNIT_MULTIPLE) * UNIT_MULTIPLE;
}

static int64_t get_max_unit_columns(const struct matmul_call *call)
{
    int64_t inner = matmul_inner_size(call);
    bool is_narrow = call->a.dtype == DTYPE_F32 ? !call->transpose_b && inner > F32_INNER_LONG
                                                : inner > BF16_INNER_LONG;
    return is_narrow ? UNIT_COLUMNS_NARROW : GRID_UNIT_COLUMNS;
}

/* Counts the parts of the rows: enough that units are small and at least UNITS_MIN exist. If
 * slightly more parts are equal in size and give an even number of units, it uses them, so that two
 * or more threads finish together. */
static int64_t count_row_units(int64_t rows, int64_t columns)
{
    int64_t parts = divide_up(rows, GRID_UNIT_ROWS);
    while (parts * columns < UNITS_MIN && parts * UNIT_MULTIPLE < rows) {
        parts++;
    }
    for (int64_t more = parts; more < parts + 4; more++) {
        if (compute_split_size(rows, more) * more == rows && more * columns % 2 == 0) {
            return more;
        }
    }
    return parts;
}

struct grid grid_divide(int64_t unit_rows, int64_t unit_columns, const struct tensor *c)
{
    return (struct grid){unit_rows, unit_columns, divide_up(c->rows, unit_rows),
                         divide_up(c->columns, unit_columns)};
}

struct grid grid_make(const struct matmul_call *call)
{
    int64_t unit_rows = call->unit_rows, unit_columns = call->unit_columns;
    if (unit_columns == 0) {
        unit_columns = compute_split_size(call->c.columns,
                                          divide_up(call->c.columns, get_max_unit_columns(call)));
    }
    if (unit_rows == 0) {
        int64_t columns = divide_up(call->c.columns, unit_columns);
        unit_rows = compute_split_size(call->c.rows, count_row_units(call->c.rows, columns));
    }
    return grid_divide(unit_rows, unit_columns, &call->c);
}

struct matmul_block grid_block(const struct grid *g, const struct tensor *c, int64_t index)
{
    int64_t row = index % g->rows * g->unit_rows, column = index / g->rows * g->unit_columns;
    int64_t rows = c->rows - row, columns = c->columns - column;
    return (struct matmul_block){row, rows < g->unit_rows ? rows : g->unit_rows, column,
                                 columns < g->unit_columns ? columns : g->unit_columns, 0};
}

double grid_estimate_time(const struct grid *g, int threads)
{
    double rows = (double)g->unit_rows, columns = (double)g->unit_columns;
    return (double)divide_up(g->rows * g->columns, threads) *
           (rows * columns + PACKING * (rows + columns));
}

/* Inserts a grid into a list that is sorted by time. Returns the new length. */
static int insert_grid(struct grid *list, int count, struct grid g, int threads)
{
    double time = grid_estimate_time(&g, threads);
    int at = count;
    while (at > 0 && time < grid_estimate_time(&list[at - 1], threads)) {
        at--;
    }
    if (at == GRID_REFINEMENTS) {
        return count;
    }
    count = count < GRID_REFINEMENTS ? count + 1 : count;
    for (int i = count - 1; i > at; i--) {
        list[i] = list[i - 1];
    }
    list[at] = g;
    return count;
}

static bool can_split(int64_t size, int64_t parts)
{
    return size % (parts * PIECE_MULTIPLE) == 0;
}

/* Pieces have to take less than this part of the time of the units: a smaller gain is within the
 * error of the estimate. */
static const double gain = 0.95;

bool grid_is_balanced(const struct grid *g, int threads)
{
    int64_t units = g->rows * g->columns;
    return (double)units > gain * (double)(divide_up(units, threads) * threads);
}

int grid_refine(const struct grid *base, const struct matmul_call *call, int threads,
                bool rows_only, struct grid out[GRID_REFINEMENTS])
{
    double limit = gain * grid_estimate_time(base, threads);
    int count = 0;
    if (grid_is_balanced(base, threads)) {
        return 0;
    }
    int64_t most_across = rows_only || call->keep_columns ? 1 : base->unit_columns / PIECE_MULTIPLE;
    for (int64_t down = 1; down * PIECE_MULTIPLE <= base->unit_rows; down++) {
        for (int64_t across = 1; can_split(base->unit_rows, down) && across <= most_across;
             across++) {
            bool can_split_columns = across == 1 || can_split(base->unit_columns, across);
            struct grid g =
                grid_divide(base->unit_rows / down, base->unit_columns / across, &call->c);
            if (can_split_columns && grid_estimate_time(&g, threads) < limit) {
                count = insert_grid(out, count, g, threads);
            }
        }
    }
    return count;
}
