/* The classifier against its formula in double precision: losses, best ids, both gradients; padded
 * vocabulary, entropies and mean logits, ignored targets, row weights, chunks of rows; and equality to
 * the last bit. */
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, width, vocabulary, padded;
    double size; /* of the logits */
    bool weighted, overwrite, biased;
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
    /* more than a GPU's block reads of a row at a time, by few threads and by many */
    {5, 8, 3001, 3008, 3, true, false, true},
    {3, 8, 9001, 9008, 3, false, true, true},
    {66, 16, 457, 480, 3, true, false, true},
};

enum { SHAPES = sizeof shapes / sizeof *shapes, ROWS_MAX = 600, IGNORED = -100 };

struct problem {
    struct tensor x, w, bias;
    int32_t targets[ROWS_MAX];
    float weights[ROWS_MAX];
    struct classifier c;
};

struct results {
    struct tensor losses, dx, dw, dbias;  /* losses [1, N] */
    struct tensor entropies, mean_logits; /* f32 [1, N] */
    int32_t best[ROWS_MAX];
};

static void problem_make(struct problem *p, enum dtype dtype, const struct shape *s)
{
    uint64_t key = random_key(11, RANDOM_TEST, 0, 0);
    p->x = operation_random(dtype, s->rows, s->width, 1, 1);
    p->w = operation_random(dtype, s->padded, s->width, 2, s->size / sqrt((double)s->width));
    for (int64_t i = 0; i < s->rows; i++) {
        bool ignored = s->rows > 1 && random_below(key, (uint64_t)i, 5) == 0;
        uint64_t target = random_below(key, (uint64_t)(1000 + i), (uint64_t)s->vocabulary);
        p->targets[i] = ignored ? IGNORED : (int32_t)target;
        p->weights[i] = random_uniform(key, (uint64_t)(2000 + i));
    }
    p->bias = s->biased ? operation_random(DTYPE_F32, 1, s->padded, 4, 1) : tensor_absent();
    p->c = (struct classifier){.bias = p->bias,
                               .vocabulary = s->vocabulary,
                               .ignored = IGNORED,
                               .row_scale = s->weighted ? p->weights : NULL,
                               .gradient = true,
                               .overwrite = s->overwrite};
}

static void problem_release(struct problem *p)
{
    operation_release(&p->x);
    operation_release(&p->w);
    operation_release(&p->bias);
}

static void results_make(struct results *r, enum dtype dtype, enum dtype sums,
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
    memset(r->best, 0xff, sizeof r->best);
}

static void results_release(struct results *r)
{
    operation_release(&r->losses);
    operation_release(&r->dx);
    operation_release(&r->dw);
    operation_release(&r->dbias);
    operation_release(&r->entropies);
    operation_release(&r->mean_logits);
}

/* The problem's settings, with what is told of each row. */
static struct classifier telling(const struct results *r, const struct problem *p)
{
    struct classifier c = p->c;
    c.entropies = r->entropies.data;
    c.mean_logits = r->mean_logits.data;
    c.dbias = r->dbias;
    return c;
}

static void run(struct kernels *k, struct results *r, const struct problem *p)
{
    struct classifier c = telling(r, p);
    CHECK_OK(classifier_run(k, r->losses.data, r->best, r->dx, r->dw, p->x, p->w, p->targets, &c));
}

static void check_told(struct kernels *k, const struct results *got, const struct results *exact)
{
    operation_within("entropies", k, operation_difference(got->entropies, exact->entropies), 6e-6);
    operation_within("mean logits", k, operation_difference(got->mean_logits, exact->mean_logits),
                     6e-6);
}

static void check_equal(const struct results *a, const struct results *b, int64_t rows)
{
    CHECK(operation_equal(a->losses, b->losses));
    CHECK(operation_equal(a->dx, b->dx));
    CHECK(operation_equal(a->dw, b->dw));
    CHECK(a->dbias.data == NULL || operation_equal(a->dbias, b->dbias));
    CHECK(operation_equal(a->entropies, b->entropies));
    CHECK(operation_equal(a->mean_logits, b->mean_logits));
    CHECK(memcmp(a->best, b->best, (size_t)rows * sizeof *a->best) == 0);
}

/* What a plain implementation in bf16 errs: the gradient of the logits is rounded once, and dx
 * again. In f32 the sums over a row have an error of their own. */
static double tolerance(enum dtype stored, double floats)
{
    return stored == DTYPE_BF16 ? 2 * 0x1p-8 : floats;
}

/* Where the matrix is frozen. */
static void check_frozen(struct kernels *k, const struct problem *p, const struct results *got,
                         struct results *r)
{
    struct classifier c = telling(r, p);
    operation_set(r->dx, NAN);
    c.dbias = tensor_absent();
    CHECK_OK(classifier_run(k, r->losses.data, r->best, r->dx, tensor_absent(), p->x, p->w,
                            p->targets, &c));
    CHECK(operation_equal(r->dx, got->dx) && operation_equal(r->losses, got->losses));
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct problem p;
    struct results got, again, threads, exact;
    problem_make(&p, dtype, s);
    results_make(&got, dtype, DTYPE_F32, s);
    results_make(&again, dtype, DTYPE_F32, s);
    results_make(&threads, dtype, DTYPE_F32, s);
    results_make(&exact, REFERENCE_F64, REFERENCE_F64, s);
    reference_convert(exact.dw, got.dw);
    if (s->biased) {
        reference_convert(exact.dbias, got.dbias);
    }
    if (s->overwrite && s->biased) {
        operation_set(got.dbias, NAN);
        operation_set(again.dbias, NAN);
        operation_set(threads.dbias, NAN);
        operation_set(exact.dbias, 0);
    }
    if (s->overwrite) {
        operation_set(got.dw, NAN);
        operation_set(again.dw, NAN);
        operation_set(threads.dw, NAN);
        operation_set(exact.dw, 0);
    }
    run(k, &got, &p);
    run(k, &again, &p);
    run(other, &threads, &p);
    struct classifier c = telling(&exact, &p);
    reference_classifier_run(exact.losses.data, exact.best, exact.dx, exact.dw, p.x, p.w, p.targets,
                             &c);
    check_told(k, &got, &exact);
    operation_within("losses", k, operation_difference(got.losses, exact.losses), 3e-6);
    operation_within("dx", k, operation_difference(got.dx, exact.dx), tolerance(dtype, 6e-6));
    operation_within("dw", k, operation_difference(got.dw, exact.dw), tolerance(dtype, 6e-6));
    if (s->biased) {
        operation_within("dbias", k, operation_difference(got.dbias, exact.dbias),
                         2 * tolerance(dtype, 6e-6)); /* few terms of both signs */
    }
    for (int64_t i = 0; i < s->rows; i++) {
        CHECK_EQUAL(got.best[i], exact.best[i]);
    }
    check_equal(&got, &again, s->rows);
    check_equal(&got, &threads, s->rows);
    check_frozen(k, &p, &got, &again);
    check_frozen(other, &p, &got, &threads);
    results_release(&got);
    results_release(&again);
    results_release(&threads);
    results_release(&exact);
    problem_release(&p);
}

/* ---- a vocabulary that is shared out ---- */

enum { PARTS_MAX = 4 };

/* Stands for the ranks: what a part tells does not depend on what it hears, so that a first round
 * collects what all tell, and the second hears it. */
struct gathering {
    char told[PARTS_MAX][ROWS_MAX * 64];
    size_t used[PARTS_MAX];
    int parts, index;
};

static status gather(void *context, void *all, const void *mine, size_t bytes)
{
    struct gathering *g = context;
    size_t at = g->used[g->index];
    CHECK(at + bytes <= sizeof g->told[0]);
    memcpy(g->told[g->index] + at, mine, bytes);
    for (int p = 0; p < g->parts; p++) {
        memcpy((char *)all + (size_t)p * bytes, g->told[p] + at, bytes);
    }
    g->used[g->index] += bytes;
    return STATUS_OK;
}

/* All parts, with their own rows of w and dw. */
static void run_parts(struct kernels *k, struct gathering *g, struct results *each,
                      const struct problem *p)
{
    int64_t rows = p->w.rows / g->parts;
    struct classifier c;
    for (g->index = 0; g->index < g->parts; g->index++) {
        struct results *r = &each[g->index];
        g->used[g->index] = 0;
        c = telling(r, p);
        c.parts = (struct classifier_parts){g->parts, g->index, gather, g};
        if (p->bias.data != NULL) {
            c.bias = tensor_columns(p->bias, g->index * rows, rows);
            c.dbias = tensor_columns(r->dbias, g->index * rows, rows);
        }
        CHECK_OK(classifier_run(k, r->losses.data, r->best, r->dx,
                                tensor_rows(r->dw, g->index * rows, rows), p->x,
                                tensor_rows(p->w, g->index * rows, rows), p->targets, &c));
    }
}

/* Losses and best ids are the same on all parts; dx adds up; dw lies side by side. */
static void check_parts(struct kernels *k, const struct results *each, int parts,
                        const struct problem *p, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct results exact, sum;
    results_make(&exact, REFERENCE_F64, REFERENCE_F64, s);
    results_make(&sum, REFERENCE_F64, REFERENCE_F64, s);
    if (s->overwrite) {
        operation_set(exact.dw, 0);
    } else {
        reference_convert(exact.dw, each[parts].dw);
    }
    if (s->biased && s->overwrite) {
        operation_set(exact.dbias, 0);
    } else if (s->biased) {
        reference_convert(exact.dbias, each[parts].dbias);
    }
    struct classifier settings = telling(&exact, p);
    reference_classifier_run(exact.losses.data, exact.best, exact.dx, exact.dw, p->x, p->w,
                             p->targets, &settings);
    check_told(k, &each[0], &exact);
    operation_set(sum.dx, 0);
    int64_t rows = p->w.rows / parts;
    for (int i = 0; i < parts; i++) {
        CHECK(operation_equal(each[i].losses, each[0].losses));
        CHECK(operation_equal(each[i].entropies, each[0].entropies));
        CHECK(operation_equal(each[i].mean_logits, each[0].mean_logits));
        CHECK(memcmp(each[i].best, exact.best, (size_t)s->rows * sizeof *exact.best) == 0);
        for (int64_t c = 0; c < s->width; c++) {
            for (int64_t r = i * rows; r < (i + 1) * rows; r++) {
                if (s->biased) {
                    reference_set(sum.dbias, 0, r, reference_get(each[i].dbias, 0, r));
                }
                reference_set(sum.dw, r, c, reference_get(each[i].dw, r, c));
            }
            for (int64_t r = 0; r < s->rows; r++) {
                reference_set(sum.dx, r, c,
                              reference_get(sum.dx, r, c) + reference_get(each[i].dx, r, c));
            }
        }
    }
    operation_within("losses of parts", k, operation_difference(each[0].losses, exact.losses),
                     3e-6);
    operation_within("dx of parts", k, operation_difference(sum.dx, exact.dx),
                     tolerance(dtype, 6e-6));
    operation_within("dw of parts", k, operation_difference(sum.dw, exact.dw),
                     tolerance(dtype, 6e-6));
    if (s->biased) {
        operation_within("dbias of parts", k, operation_difference(sum.dbias, exact.dbias),
                         tolerance(dtype, 6e-6));
    }
    results_release(&exact);
    results_release(&sum);
}

static void test_parts(struct kernels *k, const struct shape *s, int parts)
{
    struct problem p;
    struct results first[PARTS_MAX + 1], each[PARTS_MAX + 1]; /* and the gradients before */
    struct gathering *g = calloc(1, sizeof *g);
    CHECK(g != NULL && s->padded % parts == 0);
    g->parts = parts;
    problem_make(&p, kernels_dtype(k), s);
    for (int i = 0; i <= parts; i++) {
        results_make(&first[i], kernels_dtype(k), DTYPE_F32, s);
        results_make(&each[i], kernels_dtype(k), DTYPE_F32, s);
    }
    run_parts(k, g, first, &p);
    run_parts(k, g, each, &p);
    check_parts(k, each, parts, &p, s);
    for (int i = 0; i <= parts; i++) {
        results_release(&first[i]);
        results_release(&each[i]);
    }
    problem_release(&p);
    free(g);
}

/* Ignored rows: loss and dx are exactly 0; padded columns: dw is exactly what it was. */
static void test_zeros(struct kernels *k)
{
    const struct shape *s = &shapes[3];
    struct problem p;
    struct results r, before;
    problem_make(&p, kernels_dtype(k), s);
    results_make(&r, kernels_dtype(k), DTYPE_F32, s);
    results_make(&before, kernels_dtype(k), DTYPE_F32, s);
    run(k, &r, &p);
    int ignored = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        bool counted = p.targets[i] != IGNORED;
        ignored += !counted;
        CHECK((reference_get(r.losses, 0, i) == 0) == !counted);
        for (int64_t j = 0; j < s->width && !counted; j++) {
            CHECK(reference_get(r.dx, i, j) == 0);
        }
    }
    CHECK(ignored > 0);
    for (int64_t i = s->vocabulary; i < s->padded; i++) {
        for (int64_t j = 0; j < s->width; j++) {
            CHECK(reference_get(r.dw, i, j) == reference_get(before.dw, i, j));
        }
    }
    results_release(&r);
    results_release(&before);
    problem_release(&p);
}

/* Losses without a gradient are the same losses: nothing else is touched. */
static void test_without_gradient(struct kernels *k)
{
    const struct shape *s = &shapes[4];
    struct problem p;
    struct results with, without;
    problem_make(&p, kernels_dtype(k), s);
    results_make(&with, kernels_dtype(k), DTYPE_F32, s);
    results_make(&without, kernels_dtype(k), DTYPE_F32, s);
    run(k, &with, &p);
    p.c.gradient = false;
    CHECK_OK(classifier_run(k, without.losses.data, NULL, tensor_absent(), tensor_absent(), p.x,
                            p.w, p.targets, &p.c));
    CHECK(operation_equal(with.losses, without.losses));
    for (int64_t i = 0; i < s->rows; i++) { /* nobody asked */
        CHECK(isnan(reference_get(without.entropies, 0, i)));
    }
    results_release(&with);
    results_release(&without);
    problem_release(&p);
}

/* One NaN in a row of x makes that row's loss NaN and leaves the other losses alone. */
static void test_nan(struct kernels *k)
{
    const struct shape *s = &shapes[2];
    struct problem p;
    struct results r;
    problem_make(&p, kernels_dtype(k), s);
    results_make(&r, kernels_dtype(k), DTYPE_F32, s);
    p.targets[3] = 1;
    reference_set(p.x, 3, 2, NAN);
    run(k, &r, &p);
    for (int64_t i = 0; i < s->rows; i++) {
        CHECK(isnan(reference_get(r.losses, 0, i)) == (i == 3));
    }
    CHECK(isnan(reference_get(r.dx, 3, 0)) && isnan(reference_get(r.dw, 0, 0)));
    results_release(&r);
    problem_release(&p);
}

static void test_logits(struct kernels *k, int64_t rows)
{
    const int64_t width = 40, vocabulary = 77, padded = 80;
    struct tensor x = operation_random(kernels_dtype(k), rows, width, 1, 1);
    struct tensor w = operation_random(kernels_dtype(k), padded, width, 2, 1);
    struct tensor logits = operation_tensor(DTYPE_F32, rows, vocabulary, vocabulary + 3);
    struct tensor exact = operation_tensor(REFERENCE_F64, rows, vocabulary, vocabulary);
    CHECK_OK(classifier_logits(k, logits, x, w, tensor_absent()));
    reference_classifier_logits(exact, x, w, tensor_absent());
    operation_within("logits", k, operation_difference(logits, exact), 3e-6);
    struct tensor bias = operation_random(DTYPE_F32, 1, padded, 3, 1);
    CHECK_OK(classifier_logits(k, logits, x, w, bias));
    reference_classifier_logits(exact, x, w, bias);
    operation_within("logits with a bias", k, operation_difference(logits, exact), 3e-6);
    operation_release(&bias);
    operation_release(&x);
    operation_release(&w);
    operation_release(&logits);
    operation_release(&exact);
}

static void test_refusals(struct kernels *k)
{
    const struct shape *s = &shapes[2];
    struct problem p;
    struct results r;
    problem_make(&p, kernels_dtype(k), s);
    results_make(&r, kernels_dtype(k), DTYPE_F32, s);
    p.targets[5] = (int32_t)s->vocabulary;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.best, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "target 17 of row 5");
    p.c.entropies = r.entropies.data;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.best, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "entropies without mean_logits");
    p.c.entropies = NULL;
    p.c.dbias = r.dw;
    CHECK_FAILS(classifier_run(k, r.losses.data, r.best, r.dx, r.dw, p.x, p.w, p.targets, &p.c),
                STATUS_INTERNAL, "dbias");
    results_release(&r);
    problem_release(&p);
}

static void test_context(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < SHAPES; i++) {
        test_shape(k, other, &shapes[i]);
    }
    test_parts(k, &shapes[3], 2);
    test_parts(k, &shapes[4], 4);
    test_parts(k, &shapes[5], 2);
    test_parts(k, &shapes[SHAPES - 1], 2);
    test_parts(k, &shapes[SHAPES - 2], 2);
    test_parts(k, &shapes[6], 4); /* the last part is padding alone */
    test_zeros(k);
    test_without_gradient(k);
    test_nan(k);
    test_logits(k, 1);
    test_logits(k, 3);
    test_logits(k, 9);
    test_refusals(k);
}

int main(void)
{
    const struct kernels_limits limits = {.rows = ROWS_MAX,
                                          .width = 64,
                                          .inner = 64,
                                          .heads = 1,
                                          .head_width = 64,
                                          .sequence = 64,
                                          .vocabulary = 9008,
                                          .training = true,
                                          .parts = PARTS_MAX};
    operation_each(&limits, test_context);
    return 0;
}
