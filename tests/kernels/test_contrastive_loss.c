/* Tests the contrastive loss against its definition, and its gradients against finite differences
 * of the definition. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

#include "kernels/contrastive_loss.h"

enum { SIZE_MAX_PAIRS = 80, ROWS_MAX = 1200, ELEMENTS_MAX = 160000, PROBES = 12 };

/* A global batch that is added in two micro-batches, with its operands. */
struct pairs_case {
    int64_t size, count, width, rows; /* S, pairs that exist, C, N */
    int32_t cu_rows[TEXTS_PER_PAIR * SIZE_MAX_PAIRS + 1];
};

/* The arrays of struct contrastive_pairs, each between guard bytes. */
struct arrays {
    struct tensor units, lengths, gradients, results, scores;
};

static struct pairs_case test; /* too large for the stack */

/* ---- the definition ---- */

static void compute_unit(double *unit, const double *x, int64_t text)
{
    int64_t width = test.width, first = test.cu_rows[text], end = test.cu_rows[text + 1];
    double squares = 0;
    for (int64_t c = 0; c < width; c++) {
        unit[c] = 0;
        for (int64_t i = first; i < end; i++) {
            unit[c] += x[i * width + c] / (double)(end - first);
        }
        squares += unit[c] * unit[c];
    }
    for (int64_t c = 0; c < width; c++) {
        unit[c] /= fmax(sqrt(squares), 1e-12);
    }
}

static double compute_score(const double *units, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t c = 0; c < test.width; c++) {
        sum += units[2 * i * test.width + c] * units[(2 * j + 1) * test.width + c];
    }
    return 20 * sum;
}

/* Returns the loss of pair i. */
static double compute_loss(const double *units, int64_t i, bool *correct)
{
    double sum = 0, own = compute_score(units, i, i);
    *correct = true;
    for (int64_t j = 0; j < test.count; j++) {
        double score = compute_score(units, i, j);
        sum += exp(score - own);
        *correct = *correct && (j == i || score < own);
    }
    return log(sum);
}

/* Computes the sums over pairs [first, end) for rows x. */
static void compute_sums(double sums[CONTRASTIVE_SUMS], const double *x, int64_t first, int64_t end)
{
    static double units[ELEMENTS_MAX];
    memset(sums, 0, CONTRASTIVE_SUMS * sizeof *sums);
    for (int64_t text = 0; text < TEXTS_PER_PAIR * test.count; text++) {
        compute_unit(units + text * test.width, x, text);
    }
    for (int64_t i = first; i < end; i++) {
        bool correct = false;
        sums[CONTRASTIVE_SUM_LOSS] += compute_loss(units, i, &correct);
        sums[CONTRASTIVE_SUM_PAIRS] += 1;
        sums[CONTRASTIVE_SUM_CORRECT] += correct;
    }
}

/* ---- comparisons ---- */

static struct arrays allocate_arrays(int64_t score_rows)
{
    int64_t texts = TEXTS_PER_PAIR * test.size;
    return (struct arrays){
        operation_tensor(ORACLE_F64, texts, test.width, test.width),
        operation_tensor(ORACLE_F64, texts, 1, 1),
        operation_tensor(ORACLE_F64, texts, test.width, test.width),
        operation_tensor(ORACLE_F64, test.size, CONTRASTIVE_RESULTS, CONTRASTIVE_RESULTS),
        operation_tensor(ORACLE_F64, score_rows, test.size, test.size)};
}

static void release_arrays(struct arrays *a)
{
    operation_release(&a->units);
    operation_release(&a->lengths);
    operation_release(&a->gradients);
    operation_release(&a->results);
    operation_release(&a->scores);
}

static struct contrastive_pairs view_arrays(const struct arrays *a)
{
    return (struct contrastive_pairs){.size = test.size,
                                      .width = test.width,
                                      .units = a->units.data,
                                      .lengths = a->lengths.data,
                                      .gradients = a->gradients.data,
                                      .results = a->results.data,
                                      .scores = a->scores.data,
                                      .score_rows = a->scores.rows};
}

/* Pools the pairs in two micro-batches and computes their loss. */
static void run_loss(struct kernels *k, const struct contrastive_pairs *b, struct tensor rows)
{
    int64_t first = test.count / 3;
    const struct contrastive_texts texts[2] = {
        {first, 0, test.cu_rows}, {test.count - first, first, test.cu_rows + 2 * first}};
    CHECK_OK(contrastive_loss_pool(k, b, rows, &texts[1]));
    CHECK_OK(contrastive_loss_pool(k, b, rows, &texts[0]));
    CHECK_OK(contrastive_loss_run(k, b, test.count));
}

/* Compares the gradients of about PROBES elements with central differences of the losses. */
static void check_gradients(struct tensor gradients, double *x)
{
    const int64_t elements = test.rows * test.width;
    const double step = 1e-5;
    double largest = 0;
    for (int64_t i = 0; i < elements; i++) {
        largest = fmax(largest, fabs((double)((float *)gradients.data)[i]));
    }
    for (int64_t i = 0; i < elements; i += 1 + elements / PROBES) {
        double above[CONTRASTIVE_SUMS], below[CONTRASTIVE_SUMS], before = x[i];
        x[i] = before + step;
        compute_sums(above, x, 0, test.count);
        x[i] = before - step;
        compute_sums(below, x, 0, test.count);
        x[i] = before;
        double expected = (above[CONTRASTIVE_SUM_LOSS] - below[CONTRASTIVE_SUM_LOSS]) / (2 * step);
        CHECK_NEAR((double)((float *)gradients.data)[i], expected, 1e-6 * (1 + largest));
    }
}

/* Checks the sums of all pairs, and of the second micro-batch. */
static void check_sums(struct kernels *k, const struct contrastive_pairs *b, const double *x)
{
    const int64_t firsts[2] = {0, test.count / 3};
    for (int i = 0; i < 2; i++) {
        double sums[CONTRASTIVE_SUMS], expected[CONTRASTIVE_SUMS];
        CHECK_OK(contrastive_loss_sum(k, sums, b, firsts[i], test.count - firsts[i]));
        compute_sums(expected, x, firsts[i], test.count);
        for (int s = 0; s < CONTRASTIVE_SUMS; s++) {
            CHECK_NEAR(sums[s], expected[s], 1e-10 * (1 + fabs(expected[CONTRASTIVE_SUM_LOSS])));
        }
    }
}

/* Checks the results. Both contexts give the same bits, with any number of rows of scores. */
static void check_case(struct kernels *k, struct kernels *other, int64_t score_rows)
{
    static double x[ELEMENTS_MAX];
    struct arrays a = allocate_arrays(score_rows), again = allocate_arrays(test.size);
    struct tensor rows = operation_random(DTYPE_F32, test.rows, test.width, 1, 0.3);
    struct tensor gradients = operation_tensor(DTYPE_F32, test.rows, test.width, test.width);
    struct tensor others = operation_tensor(DTYPE_F32, test.rows, test.width, test.width);
    const struct contrastive_pairs b = view_arrays(&a), c = view_arrays(&again);
    const struct contrastive_texts all = {test.count, 0, test.cu_rows};
    CHECK(test.rows * test.width <= ELEMENTS_MAX && test.rows <= ROWS_MAX);
    for (int64_t i = 0; i < test.rows * test.width; i++) {
        x[i] = (double)((float *)rows.data)[i];
    }
    run_loss(k, &b, rows);
    run_loss(other, &c, rows);
    check_sums(k, &b, x);
    CHECK_OK(contrastive_loss_backward(k, gradients, &b, &all));
    CHECK_OK(contrastive_loss_backward(other, others, &c, &all));
    CHECK(operation_equal(gradients, others));
    check_gradients(gradients, x);
    ((float *)rows.data)[0] = NAN; /* a row of the first text of pair 0 */
    run_loss(k, &b, rows);
    CHECK(isnan(b.results[CONTRASTIVE_LOSS]));
    CHECK(test.count == 1 || isfinite(b.results[CONTRASTIVE_RESULTS * (test.count - 1)]));
    release_arrays(&a);
    release_arrays(&again);
    operation_release(&rows);
    operation_release(&gradients);
    operation_release(&others);
}

/* ---- cases ---- */

static void set_case(int64_t size, int64_t count, int64_t width)
{
    static const int32_t lengths[] = {1, 3, 2, 7, 1, 1, 12};
    memset(&test, 0, sizeof test);
    test.size = size;
    test.count = count;
    test.width = width;
    for (int64_t i = 0; i < TEXTS_PER_PAIR * count; i++) {
        test.cu_rows[i + 1] = test.cu_rows[i] + lengths[i % COUNT(lengths)];
    }
    test.rows = test.cu_rows[TEXTS_PER_PAIR * count];
}

/* The pairs of a micro-batch can continue at the beginning of the arrays. */
static void test_wrap(struct kernels *k)
{
    double sums[2][CONTRASTIVE_SUMS];
    set_case(3, 3, 5);
    for (int64_t first = 0; first < 2; first++) {
        struct arrays a = allocate_arrays(3);
        const struct contrastive_pairs b = view_arrays(&a);
        struct tensor rows = operation_random(DTYPE_F32, test.rows, test.width, 2, 1);
        struct tensor gradients = operation_tensor(DTYPE_F32, test.rows, test.width, test.width);
        const struct contrastive_texts texts = {3, 2 * first, test.cu_rows};
        CHECK_OK(contrastive_loss_pool(k, &b, rows, &texts));
        CHECK_OK(contrastive_loss_run(k, &b, 3));
        CHECK_OK(contrastive_loss_sum(k, sums[first], &b, 2 * first, 3));
        CHECK_OK(contrastive_loss_backward(k, gradients, &b, &texts));
        release_arrays(&a);
        operation_release(&rows);
        operation_release(&gradients);
    }
    CHECK_NEAR(sums[1][CONTRASTIVE_SUM_LOSS], sums[0][CONTRASTIVE_SUM_LOSS], 1e-10);
    CHECK(sums[1][CONTRASTIVE_SUM_CORRECT] == sums[0][CONTRASTIVE_SUM_CORRECT]);
}

static void test_errors(struct kernels *k)
{
    double sums[CONTRASTIVE_SUMS] = {7, 7, 7};
    set_case(2, 2, 5);
    struct arrays a = allocate_arrays(2);
    struct contrastive_pairs b = view_arrays(&a);
    struct tensor rows = operation_random(DTYPE_F32, test.rows, test.width, 2, 1);
    struct contrastive_texts texts = {3, 0, test.cu_rows};
    CHECK_OK(contrastive_loss_sum(k, sums, &b, 0, 0));
    CHECK(sums[0] == 0 && sums[1] == 0 && sums[2] == 0);
    CHECK_FAILS(contrastive_loss_pool(k, &b, rows, &texts), STATUS_INTERNAL, "3 pairs from 0");
    CHECK_FAILS(contrastive_loss_run(k, &b, 3), STATUS_INTERNAL, "3 pairs from 0");
    texts.pairs = 2;
    CHECK_FAILS(contrastive_loss_backward(k, tensor_absent(), &b, &texts), STATUS_INTERNAL,
                "rows is");
    rows.columns = 4;
    CHECK_FAILS(contrastive_loss_pool(k, &b, rows, &texts), STATUS_INTERNAL, "stride 5");
    rows.columns = 5;
    b.units = NULL;
    CHECK_FAILS(contrastive_loss_pool(k, &b, rows, &texts), STATUS_INTERNAL, "units is missing");
    operation_release(&rows);
    release_arrays(&a);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    static const struct {
        int64_t size, count, width, score_rows;
    } cases[] = {{1, 1, 1, 1},   {2, 2, 3, 1},     {5, 3, 17, 2},
                 {33, 33, 7, 9}, {80, 71, 64, 33}, {17, 17, 131, 16}};
    for (int i = 0; i < COUNT(cases); i++) {
        set_case(cases[i].size, cases[i].count, cases[i].width);
        check_case(k, other, cases[i].score_rows);
    }
    test_wrap(k);
    test_errors(k);
}

int main(void)
{
    const struct kernels_limits limits = operation_limits(ROWS_MAX);
    operation_run_all(&limits, test_all);
    return 0;
}
