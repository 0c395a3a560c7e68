/* GEMMs in units.
 *
 * The output is split into units by a rule that depends on the shape (grid.h). One thread computes
 * a unit with a plan for one thread (plans.h). The prologue and epilogue of the unit (an
 * activation, for example) find it in the cache of that core. */
#include "kernels/cpu/matmul.h"

#include "base/number.h"
#include "kernels/cpu/gemm/divisions.h"
#include "kernels/cpu/gemm/panels.h"
#include "kernels/cpu/gemm/plans.h"

#include <inttypes.h>
#include <omp.h>
#include <string.h>

/* The rows of a unit that is computed in blocks of the inner size are divided into parts. A part
 * has PART_ROWS rows, or PART_ROWS_TRANSPOSED if b is transposed. oneDNN would divide larger parts
 * itself, and would then add in another order in the last rows of each half. */
enum { PART_ROWS = 72, PART_ROWS_TRANSPOSED = 144, PART_ROWS_LAST = 4 };
enum { TRANSPOSED_BYTES = PART_ROWS_TRANSPOSED * MATMUL_INNER_BLOCK * sizeof(float) };

/* Returns whether a block of b is copied to memory. Otherwise each part would read rows that are
 * pages apart. Small gaps between the rows of the copy keep them in different sets of the cache. */
static bool copies_b(const struct matmul_call *call, struct matmul_block unit)
{
    return !call->transpose_b && unit.inner_block <= MATMUL_INNER_BLOCK;
}

static int64_t get_copy_stride(struct matmul_block unit)
{
    enum { GAP = 16 };
    return unit.columns + GAP;
}

enum { HUGE_PAGE_BYTES = 2 << 20 };

size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    /* Measured at widths of 128 to 768. A call packs panels for a block of 384 (bf16: 512) of the
     * inner size and some columns, and frees them afterwards. malloc retains about ten such buffers
     * per thread, between the allocations of the first step's GEMMs. */
    enum { COLUMNS = 160, DEPTH = 384, BF16_DEPTH = 512, BUFFERS = 10 };
    int64_t rows = number_min(limits->rows, GRID_UNIT_ROWS);
    int64_t depth = dtype == DTYPE_F32 ? DEPTH : BF16_DEPTH, inner = limits->width * 3 / 4;
    int64_t panels = (rows + COLUMNS) * number_min(inner, depth);
    size_t sums = dtype == DTYPE_F32 ? 0 : (size_t)(rows * GRID_UNIT_COLUMNS) * sizeof(float);
    int64_t longest = number_max(limits->inner, limits->width);
    size_t copies = (size_t)((rows + longest) * GRID_UNIT_COLUMNS) * dtype_bytes(dtype);
    copies = threads <= 2 ? 0 : copies < MATMUL_COPIES_BYTES ? copies : MATMUL_COPIES_BYTES;
    if (dtype == DTYPE_BF16) { /* also without AMX, because `plan` estimates other machines */
        int64_t unit = number_max((int64_t)panels_library_bytes(limits), HUGE_PAGE_BYTES);
        copies = (size_t)number_max((int64_t)copies, unit);
    }
    return (size_t)threads * (sums + copies + BUFFERS * (size_t)panels * dtype_bytes(dtype)) +
           divisions_bytes(threads, limits);
}

static void *get_element(struct tensor t, int64_t row, int64_t column, bool transposed)
{
    int64_t at = transposed ? column * t.stride + row : row * t.stride + column;
    return t.data == NULL ? NULL : (char *)t.data + (size_t)at * dtype_bytes(t.dtype);
}

static status find_block_plan(struct matmul *m, const struct matmul_call *call,
                              struct matmul_block block, int threads, struct plan **out)
{
    struct plan_key key = {
        .rows = block.rows,
        .inner = matmul_inner_size(call),
        .columns = block.columns,
        .stride_a = call->a.stride,
        .stride_b = call->b.stride,
        .stride_c = call->c.stride,
        .threads = threads,
        .type_ab = (uint8_t)call->a.dtype,
        .type_c = (uint8_t)call->c.dtype,
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .accumulate = call->accumulate,
        .bias = call->bias.data != NULL,
    };
    return plans_find(m, key, out);
}

/* A unit that is computed in blocks of the inner size is divided into parts of the rows of at most
 * PART_KINDS different sizes. A part has up to three kinds of blocks of the inner size: the first
 * block, further blocks of the same size, and a smaller last block. */
enum { PART_KINDS = 4 };
enum inner_position { INNER_FIRST, INNER_NEXT, INNER_LAST, INNER_POSITIONS };

/* The plans of a kind of units (grid.h): of the whole unit, or of its parts. */
struct kind_plans {
    struct plan *whole, *part[PART_KINDS][INNER_POSITIONS];
    int64_t part_rows[PART_KINDS]; /* 0: there are no more kinds */
};

struct plans {
    struct kind_plans kind[GRID_KINDS_MAX];
};

/* Returns the rows of the part of a unit that begins at `row`. oneDNN divides a part into groups of
 * GRID_GROUP_ROWS rows. It adds one to three rows after the last group in another order
 * (matmul_inner_block). The sizes of parts avoid such rows, unless the unit is too small. If units
 * begin at a group and the inner size is one block, a part ends where it ends in the units of
 * grid_make. */
static int64_t get_part_rows(const struct matmul_call *call, const struct grid *g,
                             struct matmul_block unit, int64_t row)
{
    int64_t left = unit.row + unit.rows - row;
    if (g->group_unit_rows > 0 && unit.inner_block == matmul_inner_size(call)) {
        int64_t part = grid_find_part(g->group_unit_rows, call->c.rows, row).last - row;
        return number_min(part, left);
    }
    int64_t full = call->transpose_b ? PART_ROWS_TRANSPOSED : PART_ROWS;
    int64_t after = left % GRID_GROUP_ROWS;
    int64_t last = after == 0 || after > 3 ? 0 : after > 1 ? PART_ROWS_LAST : 2 * PART_ROWS_LAST;
    if (left >= full) {
        return full;
    }
    return left > last ? left - last : number_min(left, PART_ROWS_LAST);
}

/* Returns the index of a size of parts, or of the place for a new size; PART_KINDS: there is no
 * place. */
static int find_part_kind(const struct kind_plans *plans, int64_t rows)
{
    int i = 0;
    while (i < PART_KINDS && plans->part_rows[i] != rows && plans->part_rows[i] != 0) {
        i++;
    }
    return i;
}

bool matmul_has_few_parts(const struct matmul_call *call, const struct grid *g)
{
    for (int i = 0; i < grid_kinds(g); i++) {
        struct matmul_block unit = grid_block(g, &call->c, grid_find_unit(g, i));
        struct kind_plans sizes = {0};
        int64_t rows = 0;
        for (int64_t row = unit.row; row < unit.row + unit.rows; row += rows) {
            rows = get_part_rows(call, g, unit, row);
            int kind = find_part_kind(&sizes, rows);
            if (kind == PART_KINDS) {
                return false;
            }
            sizes.part_rows[kind] = rows;
        }
        if (unit.rows <= 0) {
            return false;
        }
    }
    return true;
}

static enum inner_position get_inner_position(int64_t first, int64_t size, int64_t inner_block)
{
    return size < inner_block ? INNER_LAST : first == 0 ? INNER_FIRST : INNER_NEXT;
}

/* Finds the plan for the rows of a part and `size` elements of the inner size. The plan has no
 * bias; run_parts adds it. */
static status find_part_plan(struct matmul *m, const struct matmul_call *call,
                             struct matmul_block block, int64_t size, bool accumulate,
                             struct plan **out)
{
    struct matmul_call part = *call;
    part.transpose_a = false;
    part.a.columns = size;
    part.a.stride = call->transpose_a ? size : call->a.stride;
    part.b.stride = copies_b(call, block) ? get_copy_stride(block) : call->b.stride;
    part.accumulate = accumulate;
    part.bias = tensor_absent();
    return find_block_plan(m, &part, block, 1, out);
}

static status find_part_plans(struct matmul *m, const struct matmul_call *call,
                              const struct grid *g, struct matmul_block unit,
                              struct kind_plans *out)
{
    int64_t inner = matmul_inner_size(call);
    struct matmul_block part = unit;
    for (; part.row < unit.row + unit.rows; part.row += part.rows) {
        part.rows = get_part_rows(call, g, unit, part.row);
        int kind = find_part_kind(out, part.rows);
        REQUIRE(kind < PART_KINDS, STATUS_INTERNAL,
                "a unit of %" PRId64 " rows of a GEMM has more than %d kinds of parts", unit.rows,
                (int)PART_KINDS);
        out->part_rows[kind] = part.rows;
        for (int64_t first = 0; first < inner; first += unit.inner_block) {
            int64_t rest = inner - first, size = number_min(rest, unit.inner_block);
            struct plan **plan =
                &out->part[kind][get_inner_position(first, size, unit.inner_block)];
            bool accumulate = call->accumulate || first > 0;
            TRY(*plan == NULL ? find_part_plan(m, call, part, size, accumulate, plan) : STATUS_OK);
        }
    }
    return STATUS_OK;
}

/* The operands of a unit that is computed densely. An operand without gaps between its rows is used
 * in place. The others are copied: the bytes of each copy. */
struct dense_bytes {
    size_t a, b, c;
};

static struct dense_bytes get_dense_bytes(const struct matmul_call *call, int64_t rows,
                                          int64_t columns)
{
    int64_t inner = matmul_inner_size(call);
    int64_t row_a = call->transpose_a ? rows : inner, row_b = call->transpose_b ? inner : columns;
    struct dense_bytes n = {
        .a = call->a.stride == row_a ? 0 : (size_t)(rows * inner) * dtype_bytes(call->a.dtype),
        .b = call->b.stride == row_b ? 0 : (size_t)(inner * columns) * dtype_bytes(call->b.dtype),
        .c = call->c.stride == columns ? 0 : (size_t)(rows * columns) * dtype_bytes(call->c.dtype),
    };
    return (struct dense_bytes){cpu_scratch_align(n.a), cpu_scratch_align(n.b),
                                cpu_scratch_align(n.c)};
}

size_t matmul_dense_bytes(const struct matmul_call *call, int64_t rows, int64_t columns)
{
    struct dense_bytes n = get_dense_bytes(call, rows, columns);
    return n.a + n.b + n.c;
}

static status find_dense_plan(struct matmul *m, const struct matmul_call *call,
                              struct matmul_block unit, struct plan **out)
{
    struct matmul_call dense = *call;
    dense.a.stride = call->transpose_a ? unit.rows : matmul_inner_size(call);
    dense.b.stride = call->transpose_b ? matmul_inner_size(call) : unit.columns;
    dense.c.stride = unit.columns;
    TRY(plans_reserve_copies(m, matmul_dense_bytes(call, unit.rows, unit.columns)));
    return find_block_plan(m, &dense, unit, 1, out);
}

static status find_kind_plans(struct matmul *m, const struct matmul_call *call,
                              const struct grid *g, struct matmul_block unit,
                              struct kind_plans *out)
{
    *out = (struct kind_plans){0};
    if (g->is_dense) {
        return find_dense_plan(m, call, unit, &out->whole);
    }
    return unit.inner_block > 0 ? find_part_plans(m, call, g, unit, out)
                                : find_block_plan(m, call, unit, 1, &out->whole);
}

static status find_grid_plans(struct matmul *m, const struct matmul_call *call,
                              const struct grid *g, struct plans *out)
{
    for (int i = 0; i < grid_kinds(g); i++) {
        struct matmul_block unit = grid_block(g, &call->c, grid_find_unit(g, i));
        if (unit.inner_block > 0) {
            size_t b_bytes = (size_t)(MATMUL_INNER_BLOCK * get_copy_stride(unit)) * sizeof(float);
            TRY(plans_reserve_copies(m, TRANSPOSED_BYTES + b_bytes));
        }
        TRY(find_kind_plans(m, call, g, unit, &out->kind[i]));
    }
    return STATUS_OK;
}

/* Copies a matrix; strides in elements. */
static void copy_rows(char *to, int64_t to_stride, const char *from, int64_t from_stride,
                      int64_t rows, int64_t columns, size_t size)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + (size_t)(i * to_stride) * size, from + (size_t)(i * from_stride) * size,
               (size_t)columns * size);
    }
}

/* Returns a matrix without gaps between its rows: the matrix, or a copy at *memory. */
static void *make_dense(char **memory, size_t bytes, void *from, struct tensor t, int64_t rows,
                        int64_t columns)
{
    char *to = *memory;
    if (bytes == 0) {
        return from;
    }
    copy_rows(to, columns, from, t.stride, rows, columns, dtype_bytes(t.dtype));
    *memory += bytes;
    return to;
}

/* Runs a unit with operands that have no gaps between their rows. */
static int run_dense(struct matmul *m, const struct matmul_call *call, const struct plan *plan,
                     struct matmul_block unit, struct plan_operands o)
{
    int64_t inner = matmul_inner_size(call);
    struct dense_bytes n = get_dense_bytes(call, unit.rows, unit.columns);
    char *memory = plans_copy_memory(m, unit.thread);
    void *c = o.c;
    o.a = call->transpose_a ? make_dense(&memory, n.a, o.a, call->a, inner, unit.rows)
                            : make_dense(&memory, n.a, o.a, call->a, unit.rows, inner);
    o.b = call->transpose_b ? make_dense(&memory, n.b, o.b, call->b, unit.columns, inner)
                            : make_dense(&memory, n.b, o.b, call->b, inner, unit.columns);
    if (n.c > 0) {
        o.c = memory;
        if (call->accumulate) {
            (void)make_dense(&memory, n.c, c, call->c, unit.rows, unit.columns);
        }
    }
    int result = plans_run(m, plan, unit.thread, &o);
    if (n.c > 0) {
        copy_rows(c, o.stride_c, o.c, unit.columns, unit.rows, unit.columns,
                  dtype_bytes(call->c.dtype));
    }
    return result;
}

static void add_bias(float *c, int64_t stride, const float *bias, struct matmul_block block)
{
    for (int64_t i = 0; i < block.rows; i++) {
        for (int64_t j = 0; j < block.columns; j++) {
            c[i * stride + j] += bias[j];
        }
    }
}

/* Runs a part of a unit for `size` elements of the inner size, from element `first` on. */
static int run_part(struct matmul *m, const struct matmul_call *call, const struct plan *plan,
                    struct matmul_block part, int64_t first, int64_t size, struct plan_operands o)
{
    o.c = get_element(call->c, part.row, part.column, false);
    o.a = get_element(call->a, part.row, first, call->transpose_a);
    if (call->transpose_a) {
        float *transposed = plans_copy_memory(m, part.thread);
        cpu_transpose(transposed, o.a, call->a.stride, part.rows, size);
        o.a = transposed;
        o.stride_a = size;
    }
    return plans_run(m, plan, part.thread, &o);
}

/* Runs a unit in blocks of the inner size and parts of the rows (matmul_inner_block). All parts
 * read a block of b while it is in the cache. */
static int run_parts(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                     const struct kind_plans *plans, struct matmul_block unit,
                     struct plan_operands o)
{
    int64_t inner = matmul_inner_size(call), inner_block = unit.inner_block;
    for (int64_t first = 0; first < inner; first += inner_block) {
        int64_t left = inner - first, size = number_min(left, inner_block);
        enum inner_position position = get_inner_position(first, size, inner_block);
        o.b = get_element(call->b, first, unit.column, call->transpose_b);
        if (copies_b(call, unit)) {
            char *copy = (char *)plans_copy_memory(m, unit.thread) + TRANSPOSED_BYTES;
            copy_rows(copy, get_copy_stride(unit), o.b, call->b.stride, size, unit.columns,
                      sizeof(float));
            o.b = copy;
            o.stride_b = get_copy_stride(unit);
        }
        struct matmul_block part = unit;
        for (; part.row < unit.row + unit.rows; part.row += part.rows) {
            part.rows = get_part_rows(call, g, unit, part.row);
            const struct plan *plan = plans->part[find_part_kind(plans, part.rows)][position];
            int result = run_part(m, call, plan, part, first, size, o);
            if (result != 0) {
                return result;
            }
        }
    }
    if (call->bias.data != NULL) {
        add_bias(o.c, o.stride_c, o.bias, unit);
    }
    return 0;
}

static int run_block(struct matmul *m, const struct matmul_call *call,
                     const struct kind_plans *plans, const struct grid *g,
                     struct matmul_block block)
{
    if (call->before != NULL) {
        call->before(call->context, block);
    }
    bool private = call->private_elements > 0;
    struct plan_operands o = {
        .c = private ? get_element(call->c, 0, block.thread * call->private_elements, false)
                     : get_element(call->c, block.row, block.column, false),
        .a = get_element(call->a, block.row, 0, call->transpose_a),
        .b = get_element(call->b, 0, block.column, call->transpose_b),
        .bias = get_element(call->bias, 0, block.column, false),
        .stride_a = call->a.stride,
        .stride_b = call->b.stride,
        .stride_c = call->c.stride,
    };
    int result = g->is_dense             ? run_dense(m, call, plans->whole, block, o)
                 : block.inner_block > 0 ? run_parts(m, call, g, plans, block, o)
                                         : plans_run(m, plans->whole, block.thread, &o);
    if (call->after != NULL) {
        call->after(call->context, block);
    }
    return result;
}

/* Runs a GEMM with AMX. Memory of at least one huge page has fewer misses of the TLB. */
static status run_panels(struct matmul *m, const struct panels *panels,
                         const struct matmul_call *call, const struct grid *g, int threads)
{
    size_t bytes = panels->bytes(call, g->unit_rows, g->unit_columns);
    TRY(plans_reserve_copies(m, bytes < HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : bytes));
    int64_t units = grid_units(g);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < units; i++) {
        struct matmul_block unit = grid_block(g, &call->c, i);
        unit.thread = omp_get_thread_num();
        panels->run(call, unit, plans_copy_memory(m, unit.thread));
    }
    return STATUS_OK;
}

status matmul_run_grid(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                       int threads)
{
    struct plans plans;
    TRY(find_grid_plans(m, call, g, &plans));
    int64_t units = grid_units(g);
    int failure = 0;
    omp_set_num_threads(1); /* oneDNN reads it in a team of one thread */
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : failure)
    for (int64_t i = 0; i < units; i++) {
        const struct kind_plans *kind = &plans.kind[grid_kind(g, i)];
        struct matmul_block block = grid_block(g, &call->c, i);
        block.thread = omp_get_thread_num();
        int result = run_block(m, call, kind, g, block);
        failure = result > failure ? result : failure;
    }
    REQUIRE(failure == 0, STATUS_INTERNAL,
            "oneDNN failed in a GEMM of %" PRId64 " x %" PRId64 " x %" PRId64 " (dnnl status %d)",
            call->c.rows, matmul_inner_size(call), call->c.columns, failure);
    return STATUS_OK;
}

/* Adds the work of a GEMM to the profile. */
static void record_work(struct kernels *k, const struct matmul_call *call, const struct grid *g)
{
    double inner = (double)matmul_inner_size(call);
    int64_t busiest = grid_busiest_elems(g, &call->c, k->threads);
    k->gemm_work.done += inner * (double)call->c.rows * (double)call->c.columns;
    k->gemm_work.possible += inner * (double)busiest * (double)k->threads;
}

status matmul_run(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_get_state(k)->matmul;
    if (call->c.rows == 0 || call->c.columns == 0 || matmul_inner_size(call) == 0) {
        return STATUS_OK;
    }
    const struct panels *panels = call->a.dtype == DTYPE_BF16 ? plans_panels(m) : NULL;
    struct grid g;
    if (panels != NULL) {
        g = panels->divide(call, k->threads);
    } else {
        TRY(divisions_choose(plans_divisions(m), m, call, k->threads, &g));
    }
    if (k->profiling) {
        record_work(k, call, &g);
    }
    return panels != NULL ? run_panels(m, panels, call, &g, k->threads)
                          : matmul_run_grid(m, call, &g, k->threads);
}

status matmul_run_unsplit(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_get_state(k)->matmul;
    struct matmul_block block = {0, call->c.rows, 0, call->c.columns, 0};
    struct kind_plans plans = {0};
    TRY(find_block_plan(m, call, block, k->threads, &plans.whole));
    omp_set_num_threads(k->threads);
    struct grid whole = grid_divide(call->c.rows, call->c.columns, &call->c);
    int result = run_block(m, call, &plans, &whole, block);
    REQUIRE(result == 0, STATUS_INTERNAL,
            "oneDNN failed in a GEMM of %" PRId64 " x %" PRId64 " x %" PRId64 " (dnnl status %d)",
            call->c.rows, matmul_inner_size(call), call->c.columns, result);
    return STATUS_OK;
}
