/* Column sums. Rows are added in two levels: first the rows of each block, then the sums of the
 * blocks in order. For N rows in blocks of R, the bound of the rounding error grows with R + N / R
 * instead of N.
 *
 * Columns   Consecutive rows are in different pages. The threads therefore split the columns, in
 *           units of several cache lines, unless this division is uneven (division_is_uneven).
 * Blocks    If it is uneven, the threads split the blocks of rows too. They store the sums of
 *           the blocks of a round in scratch memory, and then add them by columns. The order of the
 *           additions is the same, so the bits are the same too. */
#include "kernels/cpu/linear.h"

#include "base/number.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/vector.h"

enum { SUM_VECTORS = 8, SUM_COLUMNS = SUM_VECTORS * VECTOR_LANES, SUM_AHEAD = 8 };

/* Sets part to the sums of a block of `count` columns, held in `vectors` vectors. Rows of the next
 * block are prefetched too, except if this block is `alone`. */
CPU_INLINE void add_rows(vector *part, struct tensor dy, enum dtype dtype, int64_t block,
                         const bool alone, int64_t column, int64_t count, const int vectors)
{
    int64_t first = block * DIVISION_SUM_ROWS, last = first + DIVISION_SUM_ROWS;
    last = number_min(last, dy.rows);
    for (int j = 0; j < vectors; j++) {
        part[j] = vector_set(0);
    }
    for (int64_t i = first; i < last; i++) {
        int64_t at = i * dy.stride + column;
        if (!alone || i + SUM_AHEAD < last) {
            cpu_prefetch(dy, i + SUM_AHEAD, column, count);
        }
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            part[j] += vector_get(dy.data, dtype, at + j * VECTOR_LANES, count - j * VECTOR_LANES);
        }
    }
}

/* Adds `count` columns, held in `vectors` vectors. */
CPU_INLINE void add_column_block(float *sums, struct tensor dy, enum dtype dtype, int64_t column,
                                 int64_t count, const int vectors, bool overwrite)
{
    vector total[SUM_VECTORS] = {{0}}, part[SUM_VECTORS];
    for (int64_t block = 0; block * DIVISION_SUM_ROWS < dy.rows; block++) {
        add_rows(part, dy, dtype, block, false, column, count, vectors);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            total[j] += part[j];
        }
    }
    for (int j = 0; j < vectors; j++) {
        int64_t at = column + j * VECTOR_LANES, left = count - j * VECTOR_LANES;
        vector before = overwrite ? vector_set(0) : vector_get(sums, DTYPE_F32, at, left);
        vector_put(sums, DTYPE_F32, at, before + total[j], left);
    }
}

CPU_INLINE void column_sums_as(float *sums, struct tensor dy, enum dtype dtype,
                               struct cpu_range columns, bool overwrite)
{
    int64_t column = columns.first;
    for (; column + SUM_COLUMNS <= columns.last; column += SUM_COLUMNS) {
        add_column_block(sums, dy, dtype, column, SUM_COLUMNS, SUM_VECTORS, overwrite);
    }
    for (; column < columns.last; column += VECTOR_LANES) {
        add_column_block(sums, dy, dtype, column, columns.last - column, 1, overwrite);
    }
}

void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite)
{
    if (dy.dtype == DTYPE_F32) {
        column_sums_as(sums, dy, DTYPE_F32, columns, overwrite);
    } else {
        column_sums_as(sums, dy, DTYPE_BF16, columns, overwrite);
    }
}

/* ---- by blocks of rows ---- */

/* A round over the blocks [first, last) of rows. Row 0 of parts [1 + blocks, stride] is the sum of
 * all blocks of earlier rounds. Each further row has the sums of one block of this round. */
struct round {
    float *parts;
    int64_t stride;
    int64_t first, last;
};

/* Stores the sums of the columns of a block in `to`, in whole vectors. */
CPU_INLINE void store_block(float *to, struct tensor dy, enum dtype dtype, int64_t block,
                            struct cpu_range columns)
{
    int64_t column = columns.first;
    vector part[SUM_VECTORS];
    for (; column + SUM_COLUMNS <= columns.last; column += SUM_COLUMNS) {
        add_rows(part, dy, dtype, block, true, column, SUM_COLUMNS, SUM_VECTORS);
        for (int j = 0; j < SUM_VECTORS; j++) {
            vector_store(to + column + j * VECTOR_LANES, part[j]);
        }
    }
    for (; column < columns.last; column += VECTOR_LANES) {
        add_rows(part, dy, dtype, block, true, column, columns.last - column, 1);
        vector_store(to + column, part[0]);
    }
}

/* Stores the sums of the units [units.first, units.last) of a round. A block has stride /
 * DIVISION_SUM_UNIT units. */
static void store_units(const struct round *r, struct tensor dy, struct cpu_range units)
{
    int64_t width = r->stride / DIVISION_SUM_UNIT;
    for (int64_t unit = units.first; unit < units.last;) {
        int64_t row = unit / width, first = unit % width, left = units.last - unit;
        int64_t last = number_min(first + left, width);
        int64_t end = last * DIVISION_SUM_UNIT;
        struct cpu_range columns = {first * DIVISION_SUM_UNIT, number_min(end, dy.columns)};
        float *to = r->parts + (1 + row) * r->stride;
        if (dy.dtype == DTYPE_F32) {
            store_block(to, dy, DTYPE_F32, r->first + row, columns);
        } else {
            store_block(to, dy, DTYPE_BF16, r->first + row, columns);
        }
        unit += last - first;
    }
}

/* Adds the sums of the blocks of a round in order. After the last round, also adds them to sums. */
static void add_blocks(const struct round *r, float *sums, struct cpu_range columns, bool is_last,
                       bool overwrite)
{
    for (int64_t c = columns.first; c < columns.last; c += VECTOR_LANES) {
        vector total = r->first == 0 ? vector_set(0) : vector_load(r->parts + c);
        for (int64_t i = 1; i <= r->last - r->first; i++) {
            total += vector_load(r->parts + i * r->stride + c);
        }
        if (is_last) {
            vector before =
                overwrite ? vector_set(0) : vector_get(sums, DTYPE_F32, c, columns.last - c);
            vector_put(sums, DTYPE_F32, c, before + total, columns.last - c);
        } else {
            vector_store(r->parts + c, total);
        }
    }
}

/* Runs one round. Call it in a parallel region. */
static void run_round(const struct round *r, struct bias_gradient dbias, struct tensor dy,
                      int threads)
{
    int64_t units = (r->last - r->first) * (r->stride / DIVISION_SUM_UNIT);
    bool is_last = r->last * DIVISION_SUM_ROWS >= dy.rows;
#pragma omp for schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        store_units(r, dy, cpu_thread_range(units, 1, thread, threads));
    }
#pragma omp for schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        add_blocks(r, dbias.sums.data,
                   cpu_thread_range(dy.columns, DIVISION_SUM_UNIT, thread, threads), is_last,
                   dbias.overwrite);
    }
}

static status add_by_blocks(struct kernels *k, struct bias_gradient dbias, struct tensor dy)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t blocks = number_divide_up(dy.rows, DIVISION_SUM_ROWS);
    int64_t most = division_sum_blocks(dy.columns);
    void *parts;
    TRY(arena_take(scratch, DIVISION_SUM_FLOATS * sizeof(float), &parts));
#pragma omp parallel num_threads(k->threads)
    for (int64_t first = 0; first < blocks; first += most) {
        int64_t last = number_min(first + most, blocks);
        struct round r = {parts, division_sum_stride(dy.columns), first, last};
        run_round(&r, dbias, dy, k->threads);
    }
    arena_release(scratch, mark);
    return STATUS_OK;
}

size_t CPU(column_sums_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)dtype;
    return limits->training && threads > 1 ? DIVISION_SUM_FLOATS * sizeof(float) : 0;
}

status CPU(bias_gradient)(struct kernels *k, struct bias_gradient dbias, struct tensor dy)
{
    int threads = k->threads;
    if (dbias.sums.data == NULL) {
        return STATUS_OK;
    }
    if (division_splits_sums(dy.rows, dy.columns, SUM_COLUMNS, threads)) {
        return add_by_blocks(k, dbias, dy);
    }
    int64_t unit = division_columns(dy.columns, SUM_COLUMNS, VECTOR_LANES, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        struct cpu_range columns = cpu_thread_range(dy.columns, unit, thread, threads);
        CPU(column_sums)(dbias.sums.data, dy, columns, dbias.overwrite);
    }
    return STATUS_OK;
}
