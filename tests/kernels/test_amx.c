/* Tests the bf16 GEMMs of panels.c against the oracle. The instructions of AMX are functions
 * (tile_model.h), so that the test needs AVX-512 BF16 only. */
#include "base/memory.h"
#include "kernels/cpu/gemm/panels.h"
#include "tests/kernels/operation.h"

/* A GEMM. The options of struct matmul_call follow the sizes. */
struct gemm {
    int64_t rows, inner, columns;
    bool transpose_a, transpose_b, accumulate, has_bias, is_f32;
};

/* Sizes below, at and above a block of the output (32), a block of the inner size (384), two blocks
 * of the inner size that are packed together, and the columns of a unit (768). */
static const struct gemm gemms[] = {
    {1, 1, 1},
    {31, 33, 30, false, true},
    {32, 32, 32, true, false, true},
    {33, 64, 95, true, true, false, true},
    {65, 384, 64, false, true, false, true},
    {70, 385, 70, false, false, true},
    {40, 769, 50, false, true, false, true},
    {40, 769, 50, false, true, true},
    {40, 769, 50, true, false, true, false, true},
    {34, 1600, 33, false, false, false, true},
    {34, 1600, 33, false, true, false, true, true},
    {64, 100, 800, true, true},
    {48, 90, 1570, false, false, false, true, true},
    {34, 1600, 800, false, true},
    {34, 1600, 800, true, false, true, false, true},
    {2050, 3, 33, false, true},
};

enum { GEMMS = COUNT(gemms), GAP = 3, THREADS_MAX = 7 };

static struct tensor make_operand(enum dtype dtype, int64_t rows, int64_t columns, uint64_t seed)
{
    struct tensor t = operation_tensor(dtype, rows, columns, columns + GAP);
    operation_fill(t, seed, 1.0);
    return t;
}

static struct matmul_call make_call(const struct gemm *g)
{
    struct tensor none = tensor_absent();
    int64_t m = g->rows, k = g->inner, n = g->columns;
    return (struct matmul_call){
        .c = make_operand(g->is_f32 ? DTYPE_F32 : DTYPE_BF16, m, n, 1),
        .a = make_operand(DTYPE_BF16, g->transpose_a ? k : m, g->transpose_a ? m : k, 2),
        .b = make_operand(DTYPE_BF16, g->transpose_b ? n : k, g->transpose_b ? k : n, 3),
        .bias = g->has_bias ? operation_random(DTYPE_F32, 1, n, 4, 1.0) : none,
        .transpose_a = g->transpose_a,
        .transpose_b = g->transpose_b,
        .accumulate = g->accumulate,
    };
}

static void release_call(struct matmul_call *call)
{
    struct tensor *all[] = {&call->c, &call->a, &call->b, &call->bias};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* Returns the result of a GEMM in double precision. */
static struct tensor compute_exact(const struct matmul_call *call)
{
    struct tensor y = operation_copy(call->c, ORACLE_F64);
    for (int64_t i = 0; i < y.rows; i++) {
        for (int64_t j = 0; j < y.columns; j++) {
            double sum = call->accumulate ? oracle_get(y, i, j) : 0;
            sum += call->bias.data != NULL ? oracle_get(call->bias, 0, j) : 0;
            for (int64_t k = 0; k < matmul_inner_size(call); k++) {
                double a =
                    call->transpose_a ? oracle_get(call->a, k, i) : oracle_get(call->a, i, k);
                double b =
                    call->transpose_b ? oracle_get(call->b, j, k) : oracle_get(call->b, k, j);
                sum += a * b;
            }
            oracle_set(y, i, j, sum);
        }
    }
    return y;
}

/* Runs all units of a grid, one after the other. */
static void run_grid(const struct panels *p, const struct matmul_call *call, const struct grid *g)
{
    size_t bytes = p->bytes(call, g->unit_rows, g->unit_columns);
    char *memory = aligned_alloc(64, bytes + 64);
    CHECK(memory != NULL);
    memset(memory, UNTOUCHED, bytes + 64); /* NaN: each value must be written before it is read */
    for (int64_t i = 0; i < grid_units(g); i++) {
        struct matmul_block unit = grid_block(g, &call->c, i);
        unit.thread = (int)(i % 2);
        p->run(call, unit, memory);
    }
    for (size_t i = bytes; i < bytes + 64; i++) {
        CHECK((unsigned char)memory[i] == UNTOUCHED);
    }
    free(memory);
}

/* Checks a GEMM against the oracle, and the bits for several numbers of threads. */
static void check_gemm(const struct panels *p, const struct gemm *g)
{
    struct tensor one = tensor_absent();
    double tolerance = g->is_f32 ? 2e-6 : 5e-3;
    for (int threads = 1; threads <= THREADS_MAX; threads += 2) {
        struct matmul_call call = make_call(g);
        struct tensor exact = compute_exact(&call);
        if (threads == THREADS_MAX) { /* one unit, which may be wider than those of divide */
            call.keep_units = true;
            call.unit_rows = g->rows;
            call.unit_columns = g->columns;
        }
        struct grid units = p->divide(&call, threads);
        run_grid(p, &call, &units);
        CHECK_NEAR(operation_difference(call.c, exact), 0, tolerance);
        if (threads == 1) {
            one = operation_copy(call.c, call.c.dtype);
        } else {
            CHECK(operation_difference(call.c, one) == 0);
        }
        operation_release(&exact);
        release_call(&call);
    }
    operation_release(&one);
}

/* The calls of the callbacks. */
struct record {
    struct tensor counts; /* how often `after` has received each element */
    int before, after;
};

static void count_before(void *context, struct matmul_block block)
{
    (void)block;
    ((struct record *)context)->before++;
}

static void count_after(void *context, struct matmul_block block)
{
    struct tensor counts = ((struct record *)context)->counts;
    ((struct record *)context)->after++;
    for (int64_t i = block.row; i < block.row + block.rows; i++) {
        for (int64_t j = block.column; j < block.column + block.columns; j++) {
            oracle_set(counts, i, j, oracle_get(counts, i, j) + 1);
        }
    }
}

/* Checks that `after` receives each element once and that `before` is called once for each unit.
 * With keep_units, `after` is also called once for each unit. */
static void check_callbacks(const struct panels *p, bool keep_units)
{
    const struct gemm sizes = {70, 40, 1500, false, true};
    struct matmul_call call = make_call(&sizes);
    struct record record = {operation_tensor(DTYPE_F32, 70, 1500, 1500), 0, 0};
    operation_set(record.counts, 0);
    call.before = count_before;
    call.after = count_after;
    call.context = &record;
    call.keep_units = keep_units;
    call.unit_rows = keep_units ? 40 : 0;
    call.unit_columns = keep_units ? 500 : 0;
    struct grid units = p->divide(&call, 2);
    CHECK(!keep_units || grid_units(&units) == 6);
    run_grid(p, &call, &units);
    CHECK_EQUAL(record.before, grid_units(&units));
    CHECK(keep_units ? record.after == 6 : record.after > grid_units(&units));
    for (int64_t i = 0; i < 70 * 1500; i++) {
        CHECK(((float *)record.counts.data)[i] == 1);
    }
    operation_release(&record.counts);
    release_call(&call);
}

/* Copies a block of a private output to the whole one. */
static void copy_private(void *context, struct matmul_block block)
{
    const struct tensor *t = context; /* the private blocks of two threads, and the whole output */
    int64_t first = block.thread * (t[0].rows / 2);
    for (int64_t i = 0; i < block.rows; i++) {
        for (int64_t j = 0; j < block.columns; j++) {
            oracle_set(t[1], block.row + i, block.column + j, oracle_get(t[0], first + i, j));
        }
    }
}

/* A private output, as the classifier uses it, with one and with several blocks of the inner
 * size. */
static void check_private(const struct panels *p, int64_t inner)
{
    enum { ROWS = 80, COLUMNS = 200, UNIT_ROWS = 48, UNIT_COLUMNS = 96 };
    const struct gemm sizes = {ROWS, inner, COLUMNS, false, true, false, true, true};
    struct matmul_call call = make_call(&sizes);
    struct tensor exact = compute_exact(&call), whole = call.c;
    struct tensor t[] = {operation_tensor(DTYPE_F32, 2 * UNIT_ROWS, UNIT_COLUMNS, UNIT_COLUMNS),
                         whole};
    call.c = (struct tensor){t[0].data, DTYPE_F32, ROWS, COLUMNS, UNIT_COLUMNS};
    call.unit_rows = UNIT_ROWS;
    call.unit_columns = UNIT_COLUMNS;
    call.keep_columns = true;
    call.private_elements = UNIT_ROWS * UNIT_COLUMNS;
    call.after = copy_private;
    call.context = t;
    struct grid units = p->divide(&call, 2);
    CHECK_EQUAL(units.unit_columns, UNIT_COLUMNS);
    run_grid(p, &call, &units);
    CHECK_NEAR(operation_difference(whole, exact), 0, 2e-6);
    CHECK(tile_model.palette == 0); /* the tile registers are released */
    call.c = whole;
    operation_release(&t[0]);
    operation_release(&exact);
    release_call(&call);
}

/* The units of common GEMMs are almost equal: at most 20 % of the time is idle. */
static void check_idle_shares(const struct panels *p)
{
    static const int64_t sizes[][2] = {{768, 768}, {2304, 768}, {3072, 1024}, {11264, 2048}};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int threads = 1; threads <= 64; threads++) {
            struct matmul_call call = {.c = {NULL, DTYPE_BF16, 1024, sizes[i][0], sizes[i][0]},
                                       .a = {NULL, DTYPE_BF16, 1024, sizes[i][1], sizes[i][1]}};
            struct grid g = p->divide(&call, threads);
            double busiest = (double)(grid_busiest_elems(&g, &call.c, threads) * threads);
            CHECK(1 - 1024 * (double)sizes[i][0] / busiest <= 0.20);
        }
    }
}

/* The estimate covers a GEMM of each inner size with a bf16 output. */
static void check_library_bytes(const struct panels *p)
{
    static const int64_t inner[] = {1, 384, 385, 768, 769, 800, 1152, 1184, 50304};
    for (int i = 0; i < COUNT(inner); i++) {
        for (int64_t rows = 32; rows <= 4096; rows *= 2) {
            struct kernels_limits limits = {
                .rows = rows, .width = 768, .inner = 1152, .vocabulary = 50304};
            struct matmul_call call = {.c = {NULL, DTYPE_BF16, rows, 768, 768},
                                       .a = {NULL, DTYPE_BF16, rows, inner[i], inner[i]}};
            struct grid g = p->divide(&call, 1);
            CHECK(p->bytes(&call, g.unit_rows, g.unit_columns) <= panels_library_bytes(&limits));
        }
    }
}

int main(void)
{
    const struct panels *p = panels_find();
    if (p == NULL) {
        printf("skipped: this processor has no AVX-512 BF16\n");
        return CHECK_SKIPPED;
    }
    for (int i = 0; i < GEMMS; i++) {
        check_gemm(p, &gemms[i]);
    }
    check_callbacks(p, false);
    check_callbacks(p, true);
    check_private(p, 100);
    check_private(p, 800);
    check_idle_shares(p);
    check_library_bytes(p);
    return 0;
}
