/* The division of the output of a GEMM into units.
 *
 *   unit    a rectangle of the output that one thread computes
 *   grid    all units of an output
 *   kind    the units of a grid that have the same size
 *   pieces  smaller units: each unit of grid_make is divided into equal parts
 *   strips  smaller units: the columns are divided into strips of different widths. Each strip is
 *           divided into as many units as it needs, so that each thread has one unit of almost the
 *           same size
 *
 * On some processors the order in which oneDNN adds depends on the size of a unit. Therefore the
 * units of grid_make depend on the shape only, not on the number of threads. If the threads would
 * get unequal numbers of units, divisions.h tries pieces and strips. It uses them only if they give
 * the same bits.
 *
 * Calls     grid_make; grid_refine or grid_make_strips for smaller units; grid_estimate_time
 *           compares them; matmul_run_grid */
#pragma once

#include "kernels/cpu/matmul.h"

/* The largest units of grid_make. */
enum { GRID_UNIT_ROWS = 1024, GRID_UNIT_COLUMNS = 768 };

enum { GRID_STRIPS = 32 };

/* A strip: columns of the output, divided into `units` units of unit_rows rows. The last unit may
 * have fewer rows. `first` is the index of the first unit. If inner_block > 0, a unit is computed
 * in blocks of this many elements of the inner size, one after the other (matmul_inner_block). */
struct grid_strip {
    int64_t column, columns, unit_rows, first, units, inner_block;
};

/* Without strips: the sizes of a unit, except at the lower and right edges, and the numbers of
 * units down (rows) and across (columns). If there are strips, only the strips define the units. If
 * is_dense, the operands of a unit are copied to memory without gaps (matmul_dense_bytes). If
 * group_unit_rows > 0, units begin and end where a group of six rows begins in the units of
 * grid_make, which have this many rows (grid_find_part). */
struct grid {
    int64_t unit_rows, unit_columns, rows, columns;
    int64_t group_unit_rows;
    bool is_dense;
    int strips;
    struct grid_strip strip[GRID_STRIPS];
};

/* grid_units - return the number of units. */
int64_t grid_units(const struct grid *g);

/* Units of the same kind have the same size. Without strips there are four kinds: inside, at the
 * lower edge, at the right edge, and in the lower right corner. With strips, each strip has two:
 * its last unit, and the others. If group_unit_rows > 0, each unit is a kind. A kind has up to 12
 * plans, and plans.c keeps 1,024. */
enum { GRID_KINDS_MAX = 80 };

/* grid_kinds - return the number of kinds. */
int grid_kinds(const struct grid *g);

/* grid_kind - return the kind of unit `index`. */
int grid_kind(const struct grid *g, int64_t index);

/* grid_find_unit - return the index of one unit of this kind. */
int64_t grid_find_unit(const struct grid *g, int kind);

/* grid_make - choose the units from the shape of a GEMM. */
struct grid grid_make(const struct matmul_call *call);

/* grid_divide - divide the output c into units of these sizes. */
struct grid grid_divide(int64_t unit_rows, int64_t unit_columns, const struct tensor *c);

/* grid_block - return unit `index`. Units are numbered down the columns, so that neighbors share
 * their part of b. */
struct matmul_block grid_block(const struct grid *g, const struct tensor *c, int64_t index);

/* Packing a row or a column of a unit takes as long as computing GRID_PACKING of its elements.
 * Measured on Zen 4 and oneDNN 2.6.3: 128 x 128 takes 1.0 to 1.34 times as long per element as
 * 1024 x 768; 256 x 256 takes 1.0 to 1.16 times as long. Units that are smaller than in grid_make
 * have a multiple of GRID_PIECE_MULTIPLE rows and columns. */
enum { GRID_PACKING = 16, GRID_PIECE_MULTIPLE = 16 };

/* grid_unit_time - estimate the time of a unit, as grid_estimate_time does. */
static inline double grid_unit_time(int64_t rows, int64_t columns)
{
    return (double)rows * (double)columns + (double)(GRID_PACKING * (rows + columns));
}

/* grid_busiest_elems - return the number of output elements that the thread with the most work
 * computes. Each thread has a contiguous range of units, as with schedule(static). */
int64_t grid_busiest_elems(const struct grid *g, const struct tensor *c, int threads);

/* grid_estimate_time - estimate the time of a GEMM with these units.
 *
 * Units     the time in which one thread computes one element of a large unit */
double grid_estimate_time(const struct grid *g, int threads);

/* Rows [first, last) of the output. */
struct grid_rows {
    int64_t first, last;
};

/* grid_find_part - return the part of a unit of grid_make that contains a row of the output.
 *
 * With AVX2 and if b is transposed, oneDNN divides the rows of a unit that it does not pack into
 * parts of GRID_PART_ROWS rows. If more than 1.5 parts are left, the last two parts are equal. It
 * divides a part into groups of six rows. If one to three rows are left, it adds in another order
 * (matmul_inner_block). */
struct grid_rows grid_find_part(int64_t unit_rows, int64_t rows, int64_t row);

enum { GRID_PART_ROWS = 96, GRID_GROUP_ROWS = 6 };

/* grid_max_unit_columns - return the number of columns above which units of this GEMM are slow. */
int64_t grid_max_unit_columns(const struct matmul_call *call);

/* matmul_run_grid - run a GEMM with these units. */
status matmul_run_grid(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                       int threads);

/* grid_is_balanced - return true if the threads have almost equal numbers of units, so that smaller
 * pieces are not faster. */
bool grid_is_balanced(const struct grid *g, int threads);

/* The largest output that is divided into strips, in elements. The comparison of the bits holds two
 * of them. */
enum { GRID_STRIPS_ELEMS = 24 << 20 };

/* The sizes of strips: a unit has a multiple of row_multiple rows, except the last unit, and at
 * most unit_rows_max. No strip contains both sides of column `border`; 0: there is no border.
 * group_unit_rows is as in struct grid. */
struct grid_strip_rule {
    int64_t row_multiple, unit_rows_max, border, group_unit_rows;
};

/* grid_make_strips - divide the output into strips (strips.c).
 *
 * Returns   false if the output or the number of strips is too large, or if the call sets the
 *           sizes of its units */
bool grid_make_strips(const struct matmul_call *call, int threads,
                      const struct grid_strip_rule *rule, struct grid *out);

enum { GRID_REFINEMENTS = 6 };

/* grid_refine - list divisions of the units of `base` into equal pieces that are faster than `base`
 * with this number of threads. The fastest comes first. With rows_only, the pieces have all columns
 * of the unit.
 *
 * Returns   the number of divisions in out; 0: none is faster */
int grid_refine(const struct grid *base, const struct matmul_call *call, int threads,
                bool rows_only, struct grid out[GRID_REFINEMENTS]);
