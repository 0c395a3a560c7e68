#include "kernels/cpu/gemm/grid.h"

#include "base/number.h"

/* Measured on two cores of Zen 5 with oneDNN 2.6.3, at GPT-2's shapes with 1,024 rows and one
 * thread per unit. Large units are 4 to 9 % faster than 512 x 384, because less is packed twice.
 * But if b is not transposed and the inner size is long, units wider than 384 read b with long
 * strides at two thirds of the speed. When oneDNN splits a GEMM between two threads, some shapes
 * run at half the speed. Packing b in advance gains nothing with these units. */
enum { UNIT_COLUMNS_NARROW = 384, UNIT_MULTIPLE = 64, UNITS_MIN = 4 };
enum { F32_INNER_LONG = 1024, BF16_INNER_LONG = 4096 };

/* Returns the size of each of `parts` parts of `count` items: multiples of 64, except the
 * last part. */
static int64_t compute_split_size(int64_t count, int64_t parts)
{
    return number_round_up(number_divide_up(count, parts), UNIT_MULTIPLE);
}

int64_t grid_max_unit_columns(const struct matmul_call *call)
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
    int64_t parts = number_divide_up(rows, GRID_UNIT_ROWS);
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
    return (struct grid){.unit_rows = unit_rows,
                         .unit_columns = unit_columns,
                         .rows = number_divide_up(c->rows, unit_rows),
                         .columns = number_divide_up(c->columns, unit_columns)};
}

int64_t grid_units(const struct grid *g)
{
    if (g->strips > 0) {
        const struct grid_strip *last = &g->strip[g->strips - 1];
        return last->first + last->units;
    }
    return g->rows * g->columns;
}

/* Returns the strip of a unit. */
static int find_strip(const struct grid *g, int64_t index)
{
    int i = 0;
    while (index >= g->strip[i].first + g->strip[i].units) {
        i++;
    }
    return i;
}

struct grid_rows grid_find_part(int64_t unit_rows, int64_t rows, int64_t row)
{
    int64_t first = row / unit_rows * unit_rows, size = 0;
    int64_t end = number_min(first + unit_rows, rows);
    do {
        first += size;
        int64_t left = end - first;
        size = left >= 2 * GRID_PART_ROWS                   ? GRID_PART_ROWS
               : left > GRID_PART_ROWS + GRID_PART_ROWS / 2 ? (left + 1) / 2
                                                            : left;
    } while (row >= first + size);
    return (struct grid_rows){first, first + size};
}

/* Returns the last row up to `row` at which a unit may begin. */
static int64_t find_unit_begin(const struct grid *g, int64_t rows, int64_t row)
{
    if (row >= rows || g->group_unit_rows == 0) {
        return number_min(row, rows);
    }
    int64_t first = grid_find_part(g->group_unit_rows, rows, row).first;
    return first + (row - first) / GRID_GROUP_ROWS * GRID_GROUP_ROWS;
}

int grid_kinds(const struct grid *g)
{
    if (g->group_unit_rows > 0) {
        return (int)grid_units(g);
    }
    return g->strips > 0 ? 2 * g->strips : 4;
}

int grid_kind(const struct grid *g, int64_t index)
{
    if (g->group_unit_rows > 0) {
        return (int)index;
    }
    if (g->strips > 0) {
        int i = find_strip(g, index);
        return 2 * i + (index == g->strip[i].first + g->strip[i].units - 1);
    }
    return 2 * (index / g->rows == g->columns - 1) + (index % g->rows == g->rows - 1);
}

int64_t grid_find_unit(const struct grid *g, int kind)
{
    bool is_last = kind % 2 == 1;
    if (g->group_unit_rows > 0) {
        return kind;
    }
    if (g->strips > 0) {
        const struct grid_strip *s = &g->strip[kind / 2];
        return s->first + (is_last ? s->units - 1 : 0);
    }
    return (kind / 2 == 1 ? (g->columns - 1) * g->rows : 0) + (is_last ? g->rows - 1 : 0);
}

struct grid grid_make(const struct matmul_call *call)
{
    int64_t unit_rows = call->unit_rows, unit_columns = call->unit_columns;
    if (unit_columns == 0) {
        unit_columns = compute_split_size(
            call->c.columns, number_divide_up(call->c.columns, grid_max_unit_columns(call)));
    }
    if (unit_rows == 0) {
        int64_t columns = number_divide_up(call->c.columns, unit_columns);
        unit_rows = compute_split_size(call->c.rows, count_row_units(call->c.rows, columns));
    }
    return grid_divide(unit_rows, unit_columns, &call->c);
}

struct matmul_block grid_block(const struct grid *g, const struct tensor *c, int64_t index)
{
    if (g->strips > 0) {
        const struct grid_strip *s = &g->strip[find_strip(g, index)];
        int64_t row = (index - s->first) * s->unit_rows;
        int64_t first = find_unit_begin(g, c->rows, row);
        return (struct matmul_block){.row = first,
                                     .rows =
                                         find_unit_begin(g, c->rows, row + s->unit_rows) - first,
                                     .column = s->column,
                                     .columns = s->columns,
                                     .inner_block = s->inner_block};
    }
    int64_t row = index % g->rows * g->unit_rows, column = index / g->rows * g->unit_columns;
    int64_t rows = c->rows - row, columns = c->columns - column;
    return (struct matmul_block){.row = row,
                                 .rows = number_min(rows, g->unit_rows),
                                 .column = column,
                                 .columns = number_min(columns, g->unit_columns)};
}

int64_t grid_busiest_elems(const struct grid *g, const struct tensor *c, int threads)
{
    int64_t units = grid_units(g), next = 0, most = 0;
    for (int64_t thread = 0; thread < threads; thread++) {
        int64_t end = next + units / threads + (thread < units % threads), elements = 0;
        for (; next < end; next++) {
            struct matmul_block block = grid_block(g, c, next);
            elements += block.rows * block.columns;
        }
        most = number_max(most, elements);
    }
    return most;
}

double grid_estimate_time(const struct grid *g, int threads)
{
    double largest = grid_unit_time(g->unit_rows, g->unit_columns);
    for (int i = 0; i < g->strips; i++) {
        double time = grid_unit_time(g->strip[i].unit_rows, g->strip[i].columns);
        largest = i == 0 || time > largest ? time : largest;
    }
    return (double)number_divide_up(grid_units(g), threads) * largest;
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
    return size % (parts * GRID_PIECE_MULTIPLE) == 0;
}

/* Pieces have to take less than this part of the time of the units: a smaller gain is within the
 * error of the estimate. */
static const double gain = 0.97;

bool grid_is_balanced(const struct grid *g, int threads)
{
    int64_t units = grid_units(g);
    return (double)units > gain * (double)number_round_up(units, threads);
}

int grid_refine(const struct grid *base, const struct matmul_call *call, int threads,
                bool rows_only, struct grid out[GRID_REFINEMENTS])
{
    double limit = gain * grid_estimate_time(base, threads);
    int count = 0;
    if (grid_is_balanced(base, threads)) {
        return 0;
    }
    int64_t most_across =
        rows_only || call->keep_columns ? 1 : base->unit_columns / GRID_PIECE_MULTIPLE;
    for (int64_t down = 1; down * GRID_PIECE_MULTIPLE <= base->unit_rows; down++) {
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
