/* Tests the classifier against the oracle: losses, argmax, gradients, entropies, mean logits. The
 * cases include a padded vocabulary, ignored targets, row weights, chunks of rows and vocabulary
 * shards. Results must not depend on the number of threads. */
#include "base/memory.h"
#include "kernels/cuda/cuda.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, width, vocabulary, padded; /* N, C, V, V with padding */
    double size;                             /* standard deviation of the logits */
    bool weighted, overwrite, biased;        /* weighted: with row_scale */
    float softcap, smoothing;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, false},
    {1, 5, 3, 16, 1, true},
    {7, 16, 17, 17, 1, false},
    {33, 24, 97, 128, 1, true},
    {130, 32, 257, 320, 3, true},
    {600, 16, 65, 96, 1, false, true, true},
    {40, 24, 200, 256, 40, false},
    {21, 16, 385, 385, 1, false},
    {600, 16, 65, 96, 1, false},
    {9, 16, 2, 2, 1, true, true, true},
    /* rows longer than a GPU block reads at a time, for blocks of few and of many threads */
    {5, 8, 3001, 3008, 3, true, false, true},
    {3, 8, 9001, 9008, 3, false, true, true},
    /* a row that is longer than the shared memory of 512 threads, and one for 1024 threads */
    {1, 8, 30001, 30008, 3, false},
    {1, 8, 33001, 33008, 3, true, false, true},
    {66, 16, 457, 480, 3, true, false, true},
    {33, 24, 77, 160, 4, true, true, false, 3},
    {35, 24, 500, 512, 40, true, false, true, 30},
    {5, 8, 3001, 3008, 3, false, true, true, 2},
    /* label smoothing */
    {35, 24, 97, 128, 3, true, false, true, 0, 0.1f},
    {600, 16, 385, 400, 1, false, true, false, 0, 0.3f},
    {5, 8, 3001, 3008, 3, true, false, true, 2, 0.1f},
    /* exp(z - max) is 0 for logits near minus the soft-cap */
    {35, 24, 97, 128, 60, true, true, true, 60, 0.1f},
    {21, 16, 385, 400, 60, false, false, false, 60, 0.3f},
};

/* FIRST_CAPPED: the first shape with a soft-cap; of its 4 shards, two contain only padding */
enum { SHAPES = COUNT(shapes), FIRST_CAPPED = 15, ROWS_MAX = 600, IGNORED = -100 };

/* Returns whether a shape has too many blocks for the thread sanitizer. */
static bool is_slow(const struct shape *s)
{
    return OPERATION_THREAD_SANITIZER && (s->rows > 130 || s->padded > 30000);
}

struct problem {
    struct tensor x, w, bias;
    int32_t targets[ROWS_MAX];
    float row_scale[ROWS_MAX];
    struct classifier c;
};

struct results {
    struct tensor losses, dx, dw, dbias;  /* losses [1, N] */
    struct tensor entropies, mean_logits; /* f32 [1, N] */
    int32_t argmax[ROWS_MAX];
};

/* Replaces the elements of t by multiples of unit, of up to limit * unit. */
static void round_elements(struct tensor t, double unit, double limit)
{
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            double multiple = fmax(-limit, fmin(limit, rint(oracle_get(t, r, c) / unit)));
            oracle_set(t, r, c, multiple * unit);
        }
    }
}

/* Replaces the operands by small multiples of a power of two. The logits are then multiples of at
 * most 2 * 40 + 64, so that a GPU, which rounds logits to bf16, has no rounding error. */
static void make_exact(struct problem *p, double weight_size)
{
    const double unit = ldexp(1, (int)rint(log2(weight_size)));
    round_elements(p->x, 1, 1);
    round_elements(p->w, unit, 2);
    round_elements(p->bias, unit, 64);
}

static void make_random_problem(struct problem *p, enum dtype dtype, const struct shape *s)
{
    uint64_t key = random_key(11, RANDOM_TEST, 0, 0);
    p->x = operation_random(dtype, s->rows, s->width, 1, 1);
    p->w = operation_random(dtype, s->padded, s->width, 2, s->size / sqrt((double)s->width));
    for (int64_t i = 0; i < s->rows; i++) {
        bool ignored = s->rows > 1 && random_below(key, (uint64_t)i, 5) == 0;
        uint64_t target = random_below(key, (uint64_t)(1000 + i), (uint64_t)s->vocabulary);
        p->targets[i] = ignored ? IGNORED : (int32_t)target;
        double sign = i % 3 == 1 ? -1 : 1; /* dpo has weights of both signs */
        p->row_scale[i] = (float)(sign * random_uniform(key, (uint64_t)(2000 + i)));
    }
    p->bias = s->biased ? operation_random(DTYPE_F32, 1, s->padded, 4, 1) : tensor_absent();
    p->c = (struct classifier){.bias = p->bias,
                               .vocabulary = s->vocabulary,
                               .ignored = IGNORED,
                               .row_scale = s->weighted ? p->row_scale : NULL,
                               .gradient = true,
                               .overwrite = s->overwrite,
                               .softcap = s->softcap,
                               .label_smoothing = s->smoothing};
}

static void make_problem(struct problem *p, enum dtype dtype, const struct shape *s)
{
    make_random_problem(p, dtype, s);
    if (OPERATION_ON_GPU && dtype == DTYPE_BF16) {
        make_exact(p, s->size / sqrt((double)s->width));
    }
}

static void release_problem(struct problem *p)
{
    operation_release(&p->x);
    operation_release(&p->w);
    operation_release(&p->bias);
}

static void make_results(struct results *r, enum dtype dtype, enum dtype sums,
                         const struct shape *s)
{
    r->losses = operation_tensor(sums, 1, s->rows, s->rows);
    r->dx = operation_tensor(dtype, s->rows, s->width, s->width);
    r->dw = operation_random(sums, s->padded, s->width, 3, 0.5);
    r->dbias = s->biased ? operation_random(sums, 1, s->padded, 5, 0.5) : tensor_absent();
    r->entropies = operation_tensor(DTYPE_F32, 1, s->rows, s->rows);
    r->mean_logits = operation_tensor(DTYPE_F32, 1, s->rows, s->rows);
    operation_set(r->losses, NAN);
    operation_set(r->dx, NAN);
    operation_set(r->entropies, NAN);
    operation_set(r->mean_logits, NAN);
    memset(r->argmax, 0xff, sizeof r->argmax);
}

static void release_results(struct results *r)
{
    operation_release(&r->losses);
    operation_release(&r->dx);
    operation_release(&r->dw);
    operation_release(&r->dbias);
    operation_release(&r->entropies);
    operation_release(&r->mean_logits);
}

/* Returns the settings of the problem, with the outputs of r. */
static struct classifier make_settings(const struct results *r, const struct problem *p)
{
    struct classifier c = p->c;
    c.entropies = r->entropies.data;
    c.mean_logits = r->mean_logits.data;
    c.dbias = r->dbias;
    return c;
}

static void run_classifier(struct kernels *k, struct results *r, const struct problem *p)
{
    struct classifier c = make_settings(r, p);
    CHECK_OK(
        classifier_run(k, r->losses.data, r->argmax, r->dx, r->dw, p->x, p->w, p->targets, &c));
}

static void check_row_outputs(struct kernels *k, const struct results *got,
                              const struct results *exact)
{
    operation_check_error("entropies", k, operation_difference(got->entropies, exact->entropies),
                          6e-6);
    operation_check_error("mean logits", k,
                          operation_difference(got->mean_logits, exact->mean_logits), 6e-6);
}

static void check_equal(const struct results *a, const struct results *b, int64_t rows)
{
    CHECK(operation_equal(a->losses, b->losses));
    CHECK(operation_equal(a->dx, b->dx));
    CHECK(operation_equal(a->dw, b->dw));
    CHECK(a->dbias.data == NULL || operation_equal(a->dbias, b->dbias));
    CHECK(operation_equal(a->entropies, b->entropies));
    CHECK(operation_equal(a->mean_logits, b->mean_logits));
    CHECK(memcmp(a->argmax, b->argmax, (size_t)rows * sizeof *a->argmax) == 0);
}

/* Returns the tolerance of gradients. In bf16 it allows two roundings: of the gradients of the
 * logits, and of dx. In f32, f32_tolerance bounds the error of the sums over a row. */
static double get_tolerance(enum dtype dtype, double f32_tolerance)
{
    return dtype == DTYPE_BF16 ? 2 * 0x1p-8 : f32_tolerance;
}

/* Checks that losses and dx are the same if the matrix is frozen, so that dw is absent. */
static void check_frozen(struct kernels *k, const struct problem *p, const struct results *got,
                         struct results *r)
{
    struct classifier c = make_settings(r, p);
    operation_set(r->dx, NAN);
    c.dbias = tensor_absent();
    CHECK_OK(classifier_run(k, r->losses.data, r->argmax, r->dx, tensor_absent(), p->x, p->w,
                            p->targets, &c));
    CHECK(operation_equal(r->dx, got->dx) && operation_equal(r->losses, got->losses));
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    if (is_slow(s)) {
        return;
    }
    enum dtype dtype = kernels_dtype(k);
    struct problem p;
    struct results got, repeated, exact;
    make_problem(&p, dtype, s);
    make_results(&got, dtype, DTYPE_F32, s);
    make_results(&repeated, dtype, DTYPE_F32, s);
    make_results(&exact, ORACLE_F64, ORACLE_F64, s);
    oracle_cast(exact.dw, got.dw);
    if (s->biased) {
        oracle_cast(exact.dbias, got.dbias);
    }
    if (s->overwrite && s->biased) {
        operation_set(got.dbias, NAN);
        operation_set(repeated.dbias, NAN);
        operation_set(exact.dbias, 0);
    }
    if (s->overwrite) {
        operation_set(got.dw, NAN);
        operation_set(repeated.dw, NAN);
        operation_set(exact.dw, 0);
    }
    run_classifier(k, &got, &p);
    run_classifier(other, &repeated, &p);
    struct classifier c = make_settings(&exact, &p);
    oracle_classifier_run(exact.losses.data, exact.argmax, exact.dx, exact.dw, p.x, p.w, p.targets,
                          &c);
    check_row_outputs(k, &got, &exact);
    operation_check_error("losses", k, operation_difference(got.losses, exact.losses), 3e-6);
    double sum_error = 1e-9 * (double)s->padded; /* of a GEMM that adds in order */
    operation_check_error("dx", k, operation_difference(got.dx, exact.dx),
                          get_tolerance(dtype, 6e-6 + sum_error));
    operation_check_error("dw", k, operation_difference(got.dw, exact.dw),
                          get_tolerance(dtype, 6e-6));
    if (s->biased) {
        operation_check_error("dbias", k, operation_difference(got.dbias, exact.dbias),
                              2 * get_tolerance(dtype, 6e-6)); /* few terms of both signs */
    }
    for (int64_t i = 0; i < s->rows; i++) {
        CHECK_EQUAL(got.argmax[i], exact.argmax[i]);
    }
    check_equal(&got, &repeated, s->rows);
    check_frozen(other, &p, &got, &repeated);
    release_results(&got);
    release_results(&repeated);
    release_results(&exact);
    release_problem(&p);
}

/* Logits with rounding errors, which are at most 2^-9 of a logit in bf16. The loss of a row has at
 * most twice the largest error of its logits. Without a gradient, logits are f32. */
static void test_rounded_logits(struct kernels *k, const struct shape *s)
{
    struct problem p;
    struct results got, exact;
    make_random_problem(&p, kernels_dtype(k), s);
    make_results(&got, kernels_dtype(k), DTYPE_F32, s);
    make_results(&exact, ORACLE_F64, ORACLE_F64, s);
    struct tensor logits = operation_tensor(ORACLE_F64, s->rows, s->vocabulary, s->vocabulary);
    oracle_classifier_logits(logits, p.x, p.w, p.bias);
    run_classifier(k, &got, &p);
    struct classifier c = make_settings(&exact, &p);
    oracle_classifier_run(exact.losses.data, exact.argmax, exact.dx, exact.dw, p.x, p.w, p.targets,
                          &c);
    for (int64_t r = 0; r < s->rows; r++) {
        double largest = 0;
        for (int64_t v = 0; v < s->vocabulary; v++) {
            largest = fmax(largest, fabs(oracle_get(logits, r, v)));
        }
        double error = kernels_dtype(k) == DTYPE_BF16 ? 2 * 0x1p-9 * largest : 1e-5 * largest;
        CHECK_NEAR(oracle_get(got.losses, 0, r), oracle_get(exact.losses, 0, r), error);
    }
    p.c.gradient = false;
    CHECK_OK(classifier_run(k, got.losses.data, got.argmax, tensor_absent(), tensor_absent(), p.x,
                            p.w, p.targets, &p.c));
    operation_check_error("losses without a gradient", k,
                          operation_difference(got.losses, exact.losses), 3e-6);
    for (int64_t r = 0; r < s->rows; r++) {
        CHECK_EQUAL(got.argmax[r], exact.argmax[r]);
    }
    operation_release(&logits);
    release_results(&got);
    release_results(&exact);
    release_problem(&p);
}

/* ---- vocabulary shards ---- */

enum { SHARDS_MAX = 4 };

/* Emulates the all-gather of several ranks in one process. The data that a rank sends do not depend
 * on other ranks. Therefore a first run stores the data of all ranks, and a second run receives
 * them. */
struct rank_emulator {
    char stored[SHARDS_MAX][ROWS_MAX * 64];
    size_t used[SHARDS_MAX];
    int shards, index;
};

static status emulate_all_gather(void *context, void *all, const void *own, size_t bytes)
{
    struct rank_emulator *g = context;
    size_t at = g->used[g->index];
    CHECK(at + bytes <= sizeof g->stored[0]);
    memcpy(g->stored[g->index] + at, own, bytes);
    for (int p = 0; p < g->shards; p++) {
        memcpy((char *)all + (size_t)p * bytes, g->stored[p] + at, bytes);
    }
    g->used[g->index] += bytes;
    return STATUS_OK;
}

/* Runs the classifier on all shards, each with its rows of w and dw. */
static void run_shards(struct kernels *k, struct rank_emulator *g, struct results *each,
                       const struct problem *p)
{
    int64_t rows = p->w.rows / g->shards;
    struct classifier c;
    for (g->index = 0; g->index < g->shards; g->index++) {
        struct results *r = &each[g->index];
        g->used[g->index] = 0;
        c = make_settings(r, p);
        c.vocabulary_shard = (struct vocabulary_shard){g->shards, g->index, emulate_all_gather, g};
        if (p->bias.data != NULL) {
            c.bias = tensor_columns(p->bias, g->index * rows, rows);
            c.dbias = tensor_columns(r->dbias, g->index * rows, rows);
        }
        CHECK_OK(classifier_run(k, r->losses.data, r->argmax, r->dx,
                                tensor_rows(r->dw, g->index * rows, rows), p->x,
                                tensor_rows(p->w, g->index * rows, rows), p->targets, &c));
    }
}

/* Checks that losses and argmax are equal on all shards. The sum of dx over the shards, and dw of
 * all shards together, must match the oracle. */
static void check_shards(struct kernels *k, const struct results *each, int shards,
                         const struct problem *p, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct results exact, sum;
    make_results(&exact, ORACLE_F64, ORACLE_F64, s);
    make_results(&sum, ORACLE_F64, ORACLE_F64, s);
    if (s->overwrite) {
        operation_set(exact.dw, 0);
    } else {
        oracle_cast(exact.dw, each[shards].dw);
    }
    if (s->biased && s->overwrite) {
        operation_set(exact.dbias, 0);
    } else if (s->biased) {
        oracle_cast(exact.dbias, each[shards].dbias);
    }
    struct classifier settings = make_settings(&exact, p);
    oracle_classifier_run(exact.losses.data, exact.argmax, exact.dx, exact.dw, p->x, p->w,
                          p->targets, &settings);
    check_row_outputs(k, &each[0], &exact);
    operation_set(sum.dx, 0);
    int64_t rows = p->w.rows / shards;
    for (int i = 0; i < shards; i++) {
        CHECK(operation_equal(each[i].losses, each[0].losses));
        CHECK(operation_equal(each[i].entropies, each[0].entropies));
        CHECK(operation_equal(each[i].mean_logits, each[0].mean_logits));
        CHECK(memcmp(each[i].argmax, exact.argmax, (size_t)s->rows * sizeof *exact.argmax) == 0);
        for (int64_t c = 0; c < s->width; c++) {
            for (int64_t r = i * rows; r < (i + 1) * rows; r++) {
                if (s->biased) {
                    oracle_set(sum.dbias, 0, r, oracle_get(each[i].dbias, 0, r));
                }
                oracle_set(sum.dw, r, c, oracle_get(each[i].dw, r, c));
            }
            for (int64_t r = 0; r < s->rows; r++) {
                oracle_set(sum.dx, r, c, oracle_get(sum.dx, r, c) + oracle_get(each[i].dx, r, c));
            }
        }
    }
    operation_check_error("losses of shards", k, operation_difference(each[0].losses, exact.losses),
                          3e-6);
    operation_check_error("dx of shards", k, operation_difference(sum.dx, exact.dx),
                          get_tolerance(dtype, 6e-6));
    operation_check_error("dw of shards", k, operation_difference(sum.dw, exact.dw),
                          get_tolerance(dtype, 6e-6));
    if (s->biased) {
        operation_check_error("dbias of shards", k, operation_difference(sum.dbias, exact.dbias),
                              get_tolerance(dtype, 6e-6));
    }
    release_results(&exact);
    release_results(&sum);
}

static void test_shards(struct kernels *k, const struct shape *s, int shards)
{
    if (is_slow(s)) {
        return;
    }
    struct problem p;
    struct results first[SHARDS_MAX + 1], each[SHARDS_MAX + 1]; /* [shards]: initial values */
    struct rank_emulator *g = calloc(1, sizeof *g);
    CHECK(g != NULL && s->padded % shards == 0);
    g->shards = shards;
    make_problem(&p, kernels_dtype(k), s);
    for (int i = 0; i <= shards; i++) {
        make_results(&first[i], kernels_dtype(k), DTYPE_F32, s);
        make_results(&each[i], kernels_dtype(k), DTYPE_F32, s);
    }
    run_shards(k, g, first, &p);
    run_shards(k, g, each, &p);
    check_shards(k, each, shards, &p, s);
    for (int i = 0; i <= shards; i++) {
        release_results(&first[i]);
        release_results(&each[i]);
    }
    release_problem(&p);
    free(g);
}

/* Loss and dx of ignored rows are exactly 0, and the rows of dw in the padding are unchanged. */
static void test_ignored(struct kernels *k)
{
    const struct shape *s = &shapes[3];
    struct problem p;
    struct results r, before;
    make_problem(&p, kernels_dtype(k), s);
    make_results(&r, kernels_dtype(k), DTYPE_F32, s);
    make_results(&before, kernels_dtype(k), DTYPE_F32, s);
    run_classifier(k, &r, &p);
    int ignored = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        bool is_ignored = p.targets[i] == IGNORED;
        ignored += is_ignored;
        CHECK((oracle_get(r.losses, 0, i) == 0) == is_ignored);
        for (int64_t j = 0; j < s->width && is_ignored; j++) {
            CHECK(oracle_get(r.dx, i, j) == 0);
        }
    }
    CHECK(ignored > 0);
    for (int64_t i = s->vocabulary; i < s->padded; i++) {
        for (int64_t j = 0; j < s->width; j++) {
            CHECK(oracle_get(r.dw, i, j) == oracle_get(before.dw, i, j));
        }
    }
    release_results(&r);
    release_results(&before);
    release_problem(&p);
}

/* Without a gradient the losses are the same, and nothing else is written. */
static void test_without_gradient(struct kernels *k)
{
    const struct shape *s = &shapes[4];
    struct problem p;
    struct results with, without;
    make_problem(&p, kernels_dtype(k), s);
    make_results(&with, kernels_dtype(k), DTYPE_F32, s);
    make_results(&without, kernels_dtype(k), DTYPE_F32, s);
    run_classifier(k, &with, &p);
    p.c.gradient = false;
    CHECK_OK(classifier_run(k, without.losses.data, NULL, tensor_absent(), tensor_absent(), p.x,
                            p.w, p.targets, &p.c));
    /* In bf16, a GPU has f32 logits without a gradient, and adds in another order. */
    double tolerance = OPERATION_ON_GPU && kernels_dtype(k) == DTYPE_BF16 ? 1e-6 : 0;
    CHECK(operation_difference(with.losses, without.losses) <= tolerance);
    for (int64_t i = 0; i < s->rows; i++) {
        CHECK(isnan(oracle_get(without.entropies, 0, i)));
    }
    release_results(&with);
    release_results(&without);
    release_problem(&p);
}

/* NaN in a row of x makes the loss of that row NaN; other losses are not affected. */
static void test_nan(struct kernels *k)
{
    const struct shape *s = &shapes[2];
    struct problem p;
    struct results r;
    make_problem(&p, kernels_dtype(k), s);
    make_results(&r, kernels_dtype(k), DTYPE_F32, s);
    p.targets[3] = 1;
    oracle_set(p.x, 3, 2, NAN);
    run_classifier(k, &r, &p);
    for (int64_t i = 0; i < s->rows; i++) {
        CHECK(isnan(oracle_get(r.losses, 0, i)) == (i == 3));
    }
    CHECK(isnan(oracle_get(r.dx, 3, 0)) && isnan(oracle_get(r.dw, 0, 0)));
    release_results(&r);
    release_problem(&p);
}

static void test_logits(struct kernels *k, int64_t rows)
{
    const int64_t width = 40, vocabulary = 77, padded = 80;
    struct tensor x = operation_random(kernels_dtype(k), rows, width, 1, 1);
    struct tensor w = operation_random(kernels_dtype(k), padded, width, 2, 1);
    struct tensor logits = operation_tensor(DTYPE_F32, rows, vocabulary, vocabulary + 3);
    struct tensor exact = operation_tensor(ORACLE_F64, rows, vocabulary, vocabulary);
    CHECK_OK(classifier_logits(k, logits, x, w, tensor_absent()));
    oracle_classifier_logits(exact, x, w, tensor_absent());
    operation_check_error("logits", k, operation_difference(logits, exact), 3e-6);
    struct tensor bias = operation_random(DTYPE_F32, 1, padded, 3, 1);
    CHECK_OK(classifier_logits(k, logits, x, w, bias));
    oracle_classifier_logits(exact, x, w, bias);
    operation_check_error("logits with a bias", k, operation_difference(logits, exact), 3e-6);
    CHECK_OK(op_softcap(k, logits, 4));
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t v = 0; v < vocabulary; v++) {
            oracle_set(exact, n, v, 4 * tanh(oracle_get(exact, n, v) / 4));
        }
    }
    operation_check_error("capped logits", k, operation_difference(logits, exact), 3e-6);
    operation_release(&bias);
    operation_release(&x);
    operation_release(&w);
    operation_release(&logits);
    operation_release(&exact);
}

static void test_errors(struct kernels *k)
{
    const struct shape *s = &shapes[2];
    struct problem p;
    struct results r;
    make_problem(&p, kernels_dtype(k), s);
    make_results(&r, kernels_dtype(k), DTYPE_F32, s);
    if (OPERATION_HOST) { /* targets in GPU memory are not checked */
        p.targets[5] = (int32_t)s->vocabulary;
        CHECK_FAILS(
            classifier_run(k, r.losses.data, r.argmax, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
            STATUS_INTERNAL, "target 17 of row 5");
    }
    p.c.entropies = r.entropies.data;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.argmax, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "entropies without mean_logits");
    p.c.entropies = NULL;
    p.c.softcap = -1;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.argmax, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "softcap -1");
    p.c.softcap = 0;
    p.c.dbias = r.dw;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.argmax, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "dbias");
    release_results(&r);
    release_problem(&p);
}

/* The rows of a chunk of logits on a GPU. */
static void test_chunk_rows(void)
{
    static const struct {
        int64_t rows, vocabulary;
        bool training;
        int64_t f32, bf16;
    } cases[] = {
        {65536, 50304, true, 4096, 8192},  /* the most rows */
        {16384, 50304, true, 2048, 2432},  /* an eighth; 256 MiB */
        {32768, 128256, true, 2048, 4096}, /* 1 GiB of logits; an eighth */
        {8192, 50304, true, 1280, 2048},   /* 256 MiB */
        {16384, 50304, false, 1280, 2432}, {18432, 32000, true, 2304, 3712},
        {20000, 32000, true, 2304, 4096},  {1024, 1000000, true, 128, 128},
        {100, 50304, true, 100, 100},      {1, 1, true, 1, 1},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const struct kernels_limits limits = {.rows = cases[i].rows,
                                              .vocabulary = cases[i].vocabulary,
                                              .training = cases[i].training};
        CHECK_EQUAL(cuda_classifier_rows(DTYPE_F32, &limits), cases[i].f32);
        CHECK_EQUAL(cuda_classifier_rows(DTYPE_BF16, &limits), cases[i].bf16);
        /* a pass without gradients has f32 logits in the same memory */
        CHECK(cuda_logits_bytes(DTYPE_F32, cuda_f32_rows(cases[i].bf16), cases[i].vocabulary) <=
              cuda_scratch_bytes(DTYPE_BF16, cases[i].bf16, &limits));
    }
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < SHAPES; i++) {
        test_shape(k, other, &shapes[i]);
    }
    test_shards(k, &shapes[3], 2);
    test_shards(k, &shapes[4], 4);
    test_shards(k, &shapes[5], 2);
    for (int i = FIRST_CAPPED; i < SHAPES; i++) {
        test_shards(k, &shapes[i], 2);
    }
    test_shards(k, &shapes[6], 4);
    test_shards(k, &shapes[FIRST_CAPPED], 4);
    test_rounded_logits(k, &shapes[4]);
    test_ignored(k);
    test_without_gradient(k);
    test_nan(k);
    test_logits(k, 1);
    test_logits(k, 3);
    test_logits(k, 9);
    test_errors(k);
}

int main(void)
{
    const struct kernels_limits limits = {.rows = ROWS_MAX,
                                          .width = 64,
                                          .inner = 64,
                                          .heads = 1,
                                          .head_width = 64,
                                          .sequence = 64,
                                          .vocabulary = 33008,
                                          .training = true,
                                          .vocabulary_shards = SHARDS_MAX};
    test_chunk_rows();
    operation_run_all(&limits, test_all);
    return 0;
}
