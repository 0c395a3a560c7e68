/* Tests that the bits of a GEMM do not depend on the number of threads, at sizes at which oneDNN
 * selects other code for parts of a matrix than for the whole, and that the work is divided over up
 * to 64 threads. */
#include "base/memory.h"
#include "kernels/cpu/grid.h"
#include "kernels/cpu/matmul.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, inner, columns;
    bool transpose_a, transpose_b, accumulate;
};

/* The GEMMs of a block of GPT-2 124M with B = 4 and T = 256: forward, gradient of the input,
 * gradient of the weight. */
static const struct shape gpt2[] = {
    {1024, 768, 2304, false, true, false},  {1024, 768, 768, false, true, false},
    {1024, 768, 3072, false, true, false},  {1024, 3072, 768, false, true, false},
    {1024, 2304, 768, false, false, false}, {1024, 768, 768, false, false, false},
    {1024, 3072, 768, false, false, false}, {1024, 768, 3072, false, false, false},
    {2304, 1024, 768, true, false, true},   {768, 1024, 768, true, false, true},
    {3072, 1024, 768, true, false, true},   {768, 1024, 3072, true, false, true},
};

/* The shapes that run. The edges of the last ones are smaller than a unit. */
static const struct shape shapes[] = {
    {1024, 768, 768, false, true, false}, {1024, 768, 768, false, false, false},
    {768, 1024, 768, true, false, true},  {1000, 96, 800, false, true, false},
    {520, 131, 784, false, false, true},  {900, 64, 40, true, false, false},
};

static const int thread_counts[] = {3, 8, 64};

enum { GPT2_SHAPES = COUNT(gpt2), SHAPES = COUNT(shapes), COUNTS = COUNT(thread_counts) };

static struct matmul_call make_call(enum dtype dtype, const struct shape *s)
{
    return (struct matmul_call){
        .c = {NULL, dtype, s->rows, s->columns, s->columns},
        .a = {NULL, dtype, s->transpose_a ? s->inner : s->rows, s->transpose_a ? s->rows : s->inner,
              s->transpose_a ? s->rows : s->inner},
        .b = {NULL, dtype, s->transpose_b ? s->columns : s->inner,
              s->transpose_b ? s->inner : s->columns, s->transpose_b ? s->inner : s->columns},
        .transpose_a = s->transpose_a,
        .transpose_b = s->transpose_b,
        .accumulate = s->accumulate,
    };
}

/* Runs a GEMM three times: the second call may divide the units. */
static void run_three_times(struct kernels *k, struct matmul_call call, struct tensor *c,
                            const struct tensor *first)
{
    for (int i = 0; i < 3; i++) {
        operation_fill(*c, 3, 1.0);
        call.c = *c;
        CHECK_OK(matmul_run(k, &call));
        if (first != NULL) {
            CHECK(memcmp(c->data, first->data, padded_bytes(*c)) == 0);
        }
    }
}

static void check_shape(struct device *dev, enum dtype dtype, const struct shape *s)
{
    struct kernels_limits limits = operation_limits(s->rows);
    struct matmul_call call = make_call(dtype, s);
    call.a = operation_random(dtype, call.a.rows, call.a.columns, 1, 1.0);
    call.b = operation_random(dtype, call.b.rows, call.b.columns, 2, 1.0);
    struct tensor one = operation_tensor(dtype, s->rows, s->columns, s->columns);
    struct tensor many = operation_tensor(dtype, s->rows, s->columns, s->columns);
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &k));
    run_three_times(k, call, &one, NULL);
    CHECK_OK(kernels_destroy(&k));
    for (int i = 0; i < COUNTS; i++) {
        CHECK_OK(kernels_create(dev, dtype, thread_counts[i], &limits, &k));
        run_three_times(k, call, &many, &one);
        CHECK_OK(kernels_destroy(&k));
    }
    operation_release(&one);
    operation_release(&many);
    operation_release(&call.a);
    operation_release(&call.b);
}

/* Returns the share of the threads' time that is idle with the fastest division. */
static double compute_idle_share(const struct shape *s, int threads)
{
    struct matmul_call call = make_call(DTYPE_F32, s);
    struct grid base = grid_make(&call), pieces[GRID_REFINEMENTS];
    int count = grid_refine(&base, &call, threads, false, pieces);
    const struct grid *g = count > 0 ? pieces : &base;
    int64_t units = g->rows * g->columns, largest = (units + threads - 1) / threads;
    return 1.0 - (double)(s->rows * s->columns) /
                     (double)(largest * threads * g->unit_rows * g->unit_columns);
}

/* Prints the largest idle share of the GEMMs of GPT-2 124M and checks it. Pieces have equal
 * sizes that are multiples of 16, so some numbers of threads get unequal shares. */
static void check_idle_shares(void)
{
    for (int threads = 1; threads <= 64; threads++) {
        double worst = 0;
        for (int i = 0; i < GPT2_SHAPES; i++) {
            worst = fmax(worst, compute_idle_share(&gpt2[i], threads));
        }
        printf("%d threads: at most %.1f %% idle\n", threads, 100 * worst);
        CHECK(worst < 0.25);
        CHECK((threads & (threads - 1)) != 0 || worst == 0);
    }
}

int main(void)
{
    check_idle_shares();
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        if (!matmul_supports(dtypes[i])) {
            continue;
        }
        for (int j = 0; j < SHAPES; j++) {
            check_shape(dev, dtypes[i], &shapes[j]);
        }
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
