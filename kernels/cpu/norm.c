/* Residual addition and norm of each row in one pass, and the gradients.
 *
 * Forward   z = x + drop(delta),  h = (z - mean) r,  y = h gamma + beta, with r = 1 / sqrt(mean((z
 *           - mean)^2) + epsilon); RMS uses mean = 0, and an absent gamma is 1. The norm reads z
 *           after it is rounded to its dtype, so that the backward pass reads the same numbers.
 * Backward  g = dy gamma,  dz (+)= r (g - mean(g) - h mean(g h)), without mean(g) for RMS; dgamma
 *           += sum over rows of dy h,  dbeta += sum over rows of dy;  dbias (+)= column sums of
 *           drop'(dz), in a second pass.
 * Threads   A thread processes whole rows. The sums over rows are split into blocks that depend on
 *           N only (division.h). Each block has a partial sum; these are added in order. Therefore
 *           the bits do not depend on the number of threads. If there are few blocks for the
 *           threads, a first pass computes the partial sums by blocks and columns, and a second
 *           pass computes dz by rows.
 *
 * Source    Ba, Kiros, Hinton 2016, arXiv:1607.06450; Zhang, Sennrich 2019, arXiv:1910.07467 */
#include "base/number.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/vector.h"

enum { CHAINS = 4 };

struct forward {
    struct tensor z, y, statistics, x, delta, gamma, beta;
    enum norm_kind kind;
    float epsilon;
    struct dropout dropout;
};

struct backward {
    struct tensor dz, ddelta, dy, z, statistics, gamma;
    enum norm_kind kind;
    enum norm_residual residual;
    struct dropout dropout;
};

CPU_INLINE vector mask_tail(vector x, int64_t count)
{
    return count >= VECTOR_LANES ? x
                                 : vector_select(vector_index() < (int32_t)count, x, vector_set(0));
}

/* Multiplies x by gamma; NULL: 1. */
CPU_INLINE vector apply_gamma(vector x, const float *gamma, int64_t c, int64_t count)
{
    return gamma != NULL ? x * vector_get(gamma, DTYPE_F32, c, count) : x;
}

CPU_INLINE void add_residual(const struct forward *f, enum dtype dtype, int64_t n)
{
    int64_t columns = f->x.columns;
    struct dropout_row factors;
    dropout_begin(&factors, f->dropout, n * columns);
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        int64_t count = columns - c;
        vector delta = vector_get(f->delta.data, dtype, n * f->delta.stride + c, count);
        if (dropout_active(f->dropout)) {
            delta *= dropout_next(&factors);
        }
        vector x = vector_get(f->x.data, dtype, n * f->x.stride + c, count);
        vector_put(f->z.data, dtype, n * f->z.stride + c, x + delta, count);
    }
}

/* Computes the sum of (x - mean)^power over a row, in CHAINS independent chains of additions. */
CPU_INLINE float compute_row_moment(const void *data, enum dtype dtype, int64_t at, int64_t columns,
                                    float mean, int power)
{
    vector sums[CHAINS] = {{0}};
    int64_t c = 0;
    for (; c + CHAINS * VECTOR_LANES <= columns; c += CHAINS * VECTOR_LANES) {
        for (int i = 0; i < CHAINS; i++) {
            vector x = vector_get(data, dtype, at + c + i * VECTOR_LANES, VECTOR_LANES) - mean;
            sums[i] = power == 2 ? vector_fma(x, x, sums[i]) : sums[i] + x;
        }
    }
    for (; c < columns; c += VECTOR_LANES) {
        vector x = mask_tail(vector_get(data, dtype, at + c, columns - c) - mean, columns - c);
        sums[0] = power == 2 ? vector_fma(x, x, sums[0]) : sums[0] + x;
    }
    return vector_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

CPU_INLINE void normalize_row(const struct forward *f, enum dtype dtype, int64_t n, float mean,
                              float r)
{
    const struct tensor in = f->delta.data != NULL ? f->z : f->x;
    const float *gamma = f->gamma.data, *beta = f->beta.data;
    for (int64_t c = 0; c < in.columns; c += VECTOR_LANES) {
        int64_t count = in.columns - c;
        vector h = (vector_get(in.data, dtype, n * in.stride + c, count) - mean) * r;
        vector y = apply_gamma(h, gamma, c, count);
        if (beta != NULL) {
            y += vector_get(beta, DTYPE_F32, c, count);
        }
        vector_put(f->y.data, dtype, n * f->y.stride + c, y, count);
    }
}

CPU_INLINE void run_forward_row(const struct forward *f, enum dtype dtype, int64_t n)
{
    const struct tensor in = f->delta.data != NULL ? f->z : f->x;
    if (f->delta.data != NULL) {
        add_residual(f, dtype, n);
    }
    if (f->y.data == NULL) {
        return;
    }
    float width = (float)in.columns, mean = 0;
    if (f->kind == NORM_LAYER) {
        mean = compute_row_moment(in.data, dtype, n * in.stride, in.columns, 0, 1) / width;
    }
    float variance = compute_row_moment(in.data, dtype, n * in.stride, in.columns, mean, 2) / width;
    float r = 1.0f / sqrtf(variance + f->epsilon);
    float *statistics = (float *)f->statistics.data + n * f->statistics.stride;
    statistics[0] = mean;
    statistics[1] = r;
    normalize_row(f, dtype, n, mean, r);
}

status CPU(residual_norm_forward)(struct kernels *k, struct tensor z, struct tensor y,
                                  struct tensor statistics, struct tensor x, struct tensor delta,
                                  struct tensor gamma, struct tensor beta, enum norm_kind kind,
                                  float epsilon, struct dropout dropout)
{
    struct forward f = {z, y, statistics, x, delta, gamma, beta, kind, epsilon, dropout};
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        if (x.dtype == DTYPE_F32) {
            run_forward_row(&f, DTYPE_F32, n);
        } else {
            run_forward_row(&f, DTYPE_BF16, n);
        }
    }
    return STATUS_OK;
}

/* Loads the gradient of y. It includes the residual stream's gradient if the stream continues
 * from y. */
CPU_INLINE vector load_output_gradient(const struct backward *b, enum dtype dtype, int64_t n,
                                       int64_t c, int64_t count)
{
    vector dy = vector_get(b->dy.data, dtype, n * b->dy.stride + c, count);
    if (b->residual == NORM_RESIDUAL_POST) {
        dy += vector_get(b->dz.data, dtype, n * b->dz.stride + c, count);
    }
    return dy;
}

/* Adds a vector of the row's terms to dgamma and dbeta of the block. */
CPU_INLINE void add_row_terms(float *dgamma, float *dbeta, int64_t c, vector dy, vector h)
{
    vector_store(dgamma + c, vector_fma(dy, h, vector_load(dgamma + c)));
    vector_store(dbeta + c, dy + vector_load(dbeta + c));
}

/* Adds the row's terms to dgamma and dbeta of the block, if these are not NULL, and computes
 * mean(g) and mean(g h). */
CPU_INLINE void accumulate_row_sums(const struct backward *b, enum dtype dtype, int64_t n,
                                    float *dgamma, float *dbeta, float *mean_g, float *mean_gh)
{
    int64_t columns = b->dy.columns;
    const float *statistics = (const float *)b->statistics.data + n * b->statistics.stride;
    vector mean = vector_set(statistics[0]), r = vector_set(statistics[1]);
    const float *gamma = b->gamma.data;
    vector sum_g[2] = {{0}}, sum_gh[2] = {{0}};
    for (int64_t c = 0, chain = 0; c < columns; c += VECTOR_LANES, chain ^= 1) {
        int64_t count = columns - c;
        vector dy = load_output_gradient(b, dtype, n, c, count);
        vector h = (vector_get(b->z.data, dtype, n * b->z.stride + c, count) - mean) * r;
        vector g = apply_gamma(dy, gamma, c, count);
        sum_g[chain] += g;
        sum_gh[chain] = vector_fma(g, h, sum_gh[chain]);
        if (dgamma != NULL) {
            add_row_terms(dgamma, dbeta, c, dy, h);
        }
    }
    *mean_g = b->kind == NORM_LAYER ? vector_sum(sum_g[0] + sum_g[1]) / (float)columns : 0.0f;
    *mean_gh = vector_sum(sum_gh[0] + sum_gh[1]) / (float)columns;
}

CPU_INLINE void run_backward_row(const struct backward *b, enum dtype dtype, int64_t n,
                                 float *dgamma, float *dbeta)
{
    float mean_g, mean_gh;
    accumulate_row_sums(b, dtype, n, dgamma, dbeta, &mean_g, &mean_gh);
    int64_t columns = b->dy.columns;
    const float *statistics = (const float *)b->statistics.data + n * b->statistics.stride;
    vector mean = vector_set(statistics[0]), r = vector_set(statistics[1]);
    struct dropout_row factors;
    dropout_begin(&factors, b->dropout, n * columns);
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        int64_t count = columns - c;
        vector dy = load_output_gradient(b, dtype, n, c, count);
        vector h = (vector_get(b->z.data, dtype, n * b->z.stride + c, count) - mean) * r;
        vector g = apply_gamma(dy, b->gamma.data, c, count);
        vector dz = r * (g - mean_g - h * mean_gh);
        if (b->residual == NORM_RESIDUAL_PRE) {
            dz += vector_get(b->dz.data, dtype, n * b->dz.stride + c, count);
        }
        vector_put(b->dz.data, dtype, n * b->dz.stride + c, dz, count);
        if (b->ddelta.data != NULL) {
            if (dropout_active(b->dropout)) {
                dz *= dropout_next(&factors);
            }
            vector_put(b->ddelta.data, dtype, n * b->ddelta.stride + c, dz, count);
        }
    }
}

/* Floats of a partial sum: whole vectors of the widest instruction set, so that no tail
 * is needed. */
static int64_t get_partial_floats(int64_t columns)
{
    return number_round_up(columns, 16);
}

size_t CPU(norm_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)dtype;
    (void)threads;
    return DIVISION_NORM_BLOCKS * 2 * (size_t)get_partial_floats(limits->width) * sizeof(float);
}

/* Returns the columns of a strip; the last one ends with the last vector of a partial sum. */
static struct cpu_range get_strip(int64_t strip, int64_t columns)
{
    int64_t first = strip * DIVISION_NORM_COLUMNS, last = first + DIVISION_NORM_COLUMNS;
    int64_t floats = get_partial_floats(columns);
    return (struct cpu_range){first, number_min(last, floats)};
}

static void clear_partial(float *partial, int64_t floats, struct cpu_range columns)
{
    size_t bytes = (size_t)(columns.last - columns.first) * sizeof *partial;
    memset(partial + columns.first, 0, bytes);
    memset(partial + floats + columns.first, 0, bytes);
}

static void run_backward_block(const struct backward *b, int64_t first, int64_t last,
                               float *partial)
{
    int64_t floats = get_partial_floats(b->dy.columns);
    memset(partial, 0, 2 * (size_t)floats * sizeof *partial);
    for (int64_t n = first; n < last; n++) {
        if (b->dy.dtype == DTYPE_F32) {
            run_backward_row(b, DTYPE_F32, n, partial, partial + floats);
        } else {
            run_backward_row(b, DTYPE_BF16, n, partial, partial + floats);
        }
    }
}

/* Computes the partial sums and dz of all blocks. Call it in a parallel region. */
static void run_backward_blocks(const struct backward *b, int64_t size, int64_t blocks,
                                float *partials)
{
    int64_t step = 2 * get_partial_floats(b->dy.columns), rows = b->dy.rows;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t last = number_min((i + 1) * size, rows);
        run_backward_block(b, i * size, last, partials + i * step);
    }
}

/* Adds the terms of the rows [first, last) to a partial sum, for some columns. */
CPU_INLINE void add_block_terms(const struct backward *b, enum dtype dtype, int64_t first,
                                int64_t last, struct cpu_range columns, float *partial)
{
    int64_t floats = get_partial_floats(b->dy.columns);
    int64_t end = number_min(columns.last, b->dy.columns);
    for (int64_t n = first; n < last; n++) {
        const float *statistics = (const float *)b->statistics.data + n * b->statistics.stride;
        vector mean = vector_set(statistics[0]), r = vector_set(statistics[1]);
        for (int64_t c = columns.first; c < end; c += VECTOR_LANES) {
            int64_t count = b->dy.columns - c;
            vector dy = load_output_gradient(b, dtype, n, c, count);
            vector h = (vector_get(b->z.data, dtype, n * b->z.stride + c, count) - mean) * r;
            add_row_terms(partial, partial + floats, c, dy, h);
        }
    }
}

/* Computes the partial sums by blocks and columns, then dz by rows. Call it in a parallel
 * region. */
static void run_backward_split(const struct backward *b, int64_t size, int64_t blocks,
                               float *partials)
{
    int64_t step = 2 * get_partial_floats(b->dy.columns), rows = b->dy.rows;
    int64_t strips = number_divide_up(b->dy.columns, DIVISION_NORM_COLUMNS);
    bool is_f32 = b->dy.dtype == DTYPE_F32;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < blocks * strips; i++) {
        int64_t first = i / strips * size, last = number_min(first + size, rows);
        struct cpu_range columns = get_strip(i % strips, b->dy.columns);
        float *partial = partials + i / strips * step;
        clear_partial(partial, step / 2, columns);
        if (is_f32) {
            add_block_terms(b, DTYPE_F32, first, last, columns, partial);
        } else {
            add_block_terms(b, DTYPE_BF16, first, last, columns, partial);
        }
    }
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        if (is_f32) {
            run_backward_row(b, DTYPE_F32, n, NULL, NULL);
        } else {
            run_backward_row(b, DTYPE_BF16, n, NULL, NULL);
        }
    }
}

/* Adds the partial sums of the blocks to sums[c], in the order of the blocks. */
static void add_partials(float *sums, const float *partials, int64_t blocks, int64_t step,
                         struct cpu_range columns)
{
    for (int64_t c = columns.first; c < columns.last; c++) {
        float sum = 0;
        for (int64_t i = 0; i < blocks; i++) {
            sum += partials[i * step + c];
        }
        sums[c] += sum;
    }
}

status CPU(residual_norm_backward)(struct kernels *k, struct tensor dz, struct tensor ddelta,
                                   struct tensor dgamma, struct tensor dbeta,
                                   struct bias_gradient dbias, struct tensor dy, struct tensor z,
                                   struct tensor statistics, struct tensor gamma,
                                   enum norm_kind kind, enum norm_residual residual,
                                   struct dropout dropout)
{
    struct backward b = {dz, ddelta, dy, z, statistics, gamma, kind, residual, dropout};
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t size = division_norm_rows(dy.rows), blocks = number_divide_up(dy.rows, size);
    int64_t floats = get_partial_floats(dy.columns), step = 2 * floats;
    void *memory;
    TRY(arena_take(scratch, (size_t)(blocks * step) * sizeof(float), &memory));
    float *partials = memory;
    bool split = division_splits_norm(dy.rows, k->threads);
#pragma omp parallel num_threads(k->threads)
    {
        if (split) {
            run_backward_split(&b, size, blocks, partials);
        } else {
            run_backward_blocks(&b, size, blocks, partials);
        }
#pragma omp for schedule(static)
        for (int64_t first = 0; first < dy.columns; first += 64) {
            int64_t last = number_min(first + 64, dy.columns);
            struct cpu_range columns = {first, last};
            if (dgamma.data != NULL) {
                add_partials(dgamma.data, partials, blocks, step, columns);
            }
            if (dbeta.data != NULL) {
                add_partials(dbeta.data, partials + floats, blocks, step, columns);
            }
        }
    }
    arena_release(scratch, mark);
    return CPU(bias_gradient)(k, dbias, ddelta.data != NULL ? ddelta : dz);
}
