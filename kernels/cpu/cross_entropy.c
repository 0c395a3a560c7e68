/* The classifier: logits, cross-entropy and their gradients, a chunk of rows at a time.
 *
 *   z = x w^T,  loss = log(sum exp(z - max z)) - (z_target - max z),
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 *
 * Logits are f32 and live in the scratch arena for CHUNK rows; dz replaces them in place (f32), or
 * is written beside them in bf16 where the products read that. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

enum { CHUNK = 256 };

static int64_t chunk_rows(int64_t rows)
{
    return rows < CHUNK ? rows : CHUNK;
}

size_t CPU(classifier_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)threads;
    size_t count = (size_t)chunk_rows(limits->rows) * (size_t)limits->vocabulary;
    size_t bytes = cpu_scratch_rounded(count * sizeof(float));
    return dtype == DTYPE_F32 ? bytes : bytes + cpu_scratch_rounded(count * sizeof(bf16));
}

/* The largest of z and where it is first; NaN is found by the sum. */
static float row_largest(const float *z, int64_t count, int32_t *where)
{
    vector most = vector_set(-INFINITY);
    int64_t j = 0;
    for (; j + VECTOR_LANES <= count; j += VECTOR_LANES) {
        most = vector_max(most, vector_load(z + j));
    }
    float largest = vector_maximum(most);
    for (; j < count; j++) {
        largest = z[j] > largest ? z[j] : largest;
    }
    if (where != NULL) {
        int64_t at = 0;
        while (at < count - 1 && z[at] != largest) {
            at++;
        }
        *where = (int32_t)at;
    }
    return largest;
}

/* z = exp(z - largest); returns the sum. Lanes behind the end are left out of it. */
static float row_exponentials(float *z, int64_t count, float largest)
{
    vector sum = {0};
    int64_t j = 0;
    for (; j + VECTOR_LANES <= count; j += VECTOR_LANES) {
        vector e = math_exp(vector_load(z + j) - largest);
        vector_store(z + j, e);
        sum += e;
    }
    float total = vector_sum(sum);
    if (j < count) {
        vector e = math_exp(vector_load_part(z + j, (int)(count - j)) - largest);
        vector_store_part(z + j, e, (int)(count - j));
        for (int64_t i = j; i < count; i++) {
            total += z[i];
        }
    }
    return total;
}

static float row_sum(const float *z, int64_t count, float largest)
{
    vector sum = {0};
    int64_t j = 0;
    for (; j + VECTOR_LANES <= count; j += VECTOR_LANES) {
        sum += math_exp(vector_load(z + j) - largest);
    }
    float total = vector_sum(sum);
    if (j < count) {
        vector e = math_exp(vector_load_part(z + j, (int)(count - j)) - largest);
        for (int64_t i = 0; i < count - j; i++) {
            total += e[i];
        }
    }
    return total;
}

/* dz = (z * factor, minus scale at the target), and zero from `count` to the padded end. */
static void row_gradient(void *dz, enum dtype dtype, int64_t at, const float *z, int64_t count,
                         int64_t padded, float factor, int64_t target, float scale)
{
    for (int64_t j = 0; j < count; j += VECTOR_LANES) {
        int64_t left = count - j;
        vector_put(dz, dtype, at + j, vector_get(z, DTYPE_F32, j, left) * factor, left);
    }
    vector zero = {0};
    for (int64_t j = count; j < padded; j += VECTOR_LANES) {
        vector_put(dz, dtype, at + j, zero, padded - j);
    }
    if (target >= 0) {
        vector t = vector_get(dz, dtype, at + target, 1);
        vector_put(dz, dtype, at + target, t - scale, 1);
    }
}

struct row {
    float *z;
    struct tensor dz;
    int64_t index; /* in the chunk */
    int64_t target;
    float scale;
    bool counted;
};

static void row_run(const struct classifier *c, const struct row *r, float *loss, int32_t *best,
                    int64_t padded)
{
    float largest = row_largest(r->z, c->vocabulary, best);
    float at_target = r->counted ? r->z[r->target] : 0;
    float sum = c->gradient ? row_exponentials(r->z, c->vocabulary, largest)
                            : row_sum(r->z, c->vocabulary, largest);
    *loss = r->counted ? logf(sum) - (at_target - largest) : 0;
    if (c->gradient) {
        float factor = r->counted ? r->scale / sum : 0;
        row_gradient(r->dz.data, r->dz.dtype, r->index * r->dz.stride, r->z, c->vocabulary, padded,
                     factor, r->counted ? r->target : -1, r->scale);
    }
}

struct chunk {
    struct tensor logits, dz;
    int64_t first; /* its first row among all */
};

static void chunk_run(int threads, const struct classifier *c, const struct chunk *chunk,
                      float *losses, int32_t *best, const int32_t *targets)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < chunk->logits.rows; i++) {
        int64_t n = chunk->first + i;
        struct row r = {
            .z = (float *)chunk->logits.data + i * chunk->logits.stride,
            .dz = chunk->dz,
            .index = i,
            .target = targets[n],
            .scale = c->row_scale == NULL ? 1.0f : c->row_scale[n],
            .counted = targets[n] != c->ignored,
        };
        row_run(c, &r, &losses[n], best == NULL ? NULL : &best[n], chunk->logits.columns);
    }
}

static status chunk_take(struct kernels *k, struct chunk *chunk, int64_t rows, int64_t vocabulary,
                         bool gradient)
{
    struct arena *scratch = &cpu_of(k)->scratch;
    size_t count = (size_t)rows * (size_t)vocabulary;
    void *logits = NULL;
    TRY(arena_take(scratch, count * sizeof(float), &logits));
    chunk->logits = tensor_view(logits, DTYPE_F32, rows, vocabulary);
    chunk->dz = chunk->logits;
    if (gradient && k->dtype != DTYPE_F32) {
        void *dz = NULL;
        TRY(arena_take(scratch, count * dtype_bytes(k->dtype), &dz));
        chunk->dz = tensor_view(dz, k->dtype, rows, vocabulary);
    }
    return STATUS_OK;
}

status CPU(classifier_run)(struct kernels *k, float *losses, int32_t *best, struct tensor dx,
                           struct tensor dw, struct tensor x, struct tensor w,
                           const int32_t *targets, const struct classifier *c)
{
    struct arena *scratch = &cpu_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t rows = chunk_rows(x.rows);
    struct chunk all;
    status result = STATUS_OK;
    TRY_GOTO(result, done, chunk_take(k, &all, rows, w.rows, c->gradient));
    for (int64_t first = 0; first < x.rows; first += rows) {
        int64_t count = x.rows - first < rows ? x.rows - first : rows;
        struct chunk part = {tensor_rows(all.logits, 0, count), tensor_rows(all.dz, 0, count),
                             first};
        struct tensor x_part = tensor_rows(x, first, count);
        TRY_GOTO(
            result, done,
            matmul_product(k, &(struct matmul_call){
                                  .c = part.logits, .a = x_part, .b = w, .transpose_b = true}));
        chunk_run(k->threads, c, &part, losses, best, targets);
        if (c->gradient) {
            TRY_GOTO(result, done,
                     matmul_product(k, &(struct matmul_call){.c = tensor_rows(dx, first, count),
                                                             .a = part.dz,
                                                             .b = w}));
            TRY_GOTO(result, done,
                     matmul_product(k, &(struct matmul_call){.c = dw,
                                                             .a = part.dz,
                                                             .transpose_a = true,
                                                             .b = x_part,
                                                             .accumulate = true}));
        }
    }
done:
    arena_release(scratch, mark);
    return result;
}

status CPU(classifier_logits)(struct kernels *k, struct tensor logits, struct tensor x,
                              struct tensor w)
{
    struct tensor part = tensor_rows(w, 0, logits.columns);
    return matmul_product(
        k, &(struct matmul_call){.c = logits, .a = x, .b = part, .transpose_b = true});
}
