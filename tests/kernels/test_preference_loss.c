/* Tests the losses of preference pairs: the sums against their definitions, and the scales of the
 * rows against finite differences of the loss. test_dpo.c compares the formulas with TRL. */
#include "base/memory.h"
#include "kernels/preference_loss.h"
#include "tests/kernels/operation.h"

enum { PAIRS_MAX = 300, ROWS_MAX = 20000, PROBES = 12 };

/* One call of preference_loss_run, with its operands. */
static struct {
    struct preference_rows rows;
    struct preference_settings settings;
    int32_t first[RESPONSES * PAIRS_MAX + 1], argmax[ROWS_MAX], targets[ROWS_MAX];
    float losses[ROWS_MAX], entropies[ROWS_MAX], mean_logits[ROWS_MAX];
    double reference[RESPONSES * PAIRS_MAX];
    struct preference_gradient gradients[PAIRS_MAX + 3];
} test;

/* The results of a call. */
struct results {
    double sums[PREFERENCE_SUMS], logps[RESPONSES * PAIRS_MAX];
    float scales[ROWS_MAX];
};

static struct results results[2];

static void run_loss(struct kernels *k, struct results *r)
{
    memset(r, 0xff, sizeof *r);
    CHECK_OK(preference_loss_run(k, r->sums, r->scales, r->logps, &test.rows, &test.settings));
}

/* Responses of 1 to 70 tokens, and one of more than 256. */
static void set_case(int64_t pairs)
{
    static const int32_t counts[] = {1, 2, 31, 32, 33, 70, 5};
    const float *random = operation_normals(3, 3 * ROWS_MAX);
    memset(&test, 0, sizeof test);
    for (int64_t s = 0; s < RESPONSES * pairs; s++) {
        test.first[s + 1] = test.first[s] + (s == 1 ? 300 : counts[s % COUNT(counts)]);
        test.reference[s] = -0.7 * (test.first[s + 1] - test.first[s]) + random[s];
    }
    int64_t rows = test.first[RESPONSES * pairs];
    CHECK(rows <= ROWS_MAX && pairs <= PAIRS_MAX);
    for (int64_t i = 0; i < rows; i++) {
        test.losses[i] = fabsf(random[i]);
        test.entropies[i] = fabsf(random[ROWS_MAX + i]);
        test.mean_logits[i] = random[2 * ROWS_MAX + i];
        test.argmax[i] = (int32_t)(i % 3);
        test.targets[i] = (int32_t)(i % 2);
    }
    test.rows = (struct preference_rows){.pairs = pairs,
                                         .rows = rows,
                                         .first = test.first,
                                         .losses = test.losses,
                                         .entropies = test.entropies,
                                         .mean_logits = test.mean_logits,
                                         .argmax = test.argmax,
                                         .targets = test.targets,
                                         .reference = test.reference};
    test.settings = (struct preference_settings){
        .terms = 1, .beta = 0.1, .label_smoothing = 0.1, .discopop_tau = 0.05};
}

/* ---- the definitions ---- */

static void add_response(const struct preference_rows *r, int64_t s, double *logps, double *sums)
{
    bool chosen = s % RESPONSES == CHOSEN;
    for (int64_t i = r->first[s]; i < r->first[s + 1]; i++) {
        *logps -= (double)r->losses[i];
        sums[PREFERENCE_SUM_ENTROPY] += (double)r->entropies[i];
        sums[chosen ? PREFERENCE_SUM_LOGITS_CHOSEN : PREFERENCE_SUM_LOGITS_REJECTED] +=
            (double)r->mean_logits[i];
        sums[chosen ? PREFERENCE_SUM_TOKENS_CHOSEN : PREFERENCE_SUM_TOKENS_REJECTED] += 1;
        sums[PREFERENCE_SUM_TOKENS] += 1;
        sums[PREFERENCE_SUM_CORRECT_TOKENS] += chosen && r->argmax[i] == r->targets[i];
    }
}

/* Computes all sums but the loss. */
static void compute_sums(double *sums)
{
    const struct preference_rows *r = &test.rows;
    memset(sums, 0, PREFERENCE_SUMS * sizeof *sums);
    for (int64_t i = 0; i < r->pairs; i++) {
        double logps[RESPONSES] = {0}, rewards[RESPONSES];
        for (int a = 0; a < RESPONSES; a++) {
            int64_t s = RESPONSES * i + a;
            double reference = r->reference != NULL ? r->reference[s] : 0;
            add_response(r, s, &logps[a], sums);
            rewards[a] = test.settings.beta * (logps[a] - reference);
            sums[PREFERENCE_SUM_REWARD_CHOSEN + a] += rewards[a];
            sums[PREFERENCE_SUM_LOGPS_CHOSEN + a] += logps[a];
        }
        sums[PREFERENCE_SUM_MARGIN] += rewards[CHOSEN] - rewards[REJECTED];
        sums[PREFERENCE_SUM_CORRECT_PAIRS] += rewards[CHOSEN] > rewards[REJECTED];
        sums[PREFERENCE_SUM_PAIRS] += 1;
    }
}

/* ---- comparisons ---- */

static void check_sums(const double *sums)
{
    double expected[PREFERENCE_SUMS];
    compute_sums(expected);
    for (int i = PREFERENCE_SUM_LOSS + 1; i < PREFERENCE_SUMS; i++) {
        CHECK_NEAR(sums[i], expected[i], 1e-12 * (1 + fabs(expected[i])) * test.rows.rows);
    }
}

/* Compares scales with central differences of the loss: the derivative by the loss of a row is the
 * scale of this row. */
static void check_scales(struct kernels *k, const struct results *r)
{
    static struct results above, below;
    const float step = 1.0f / 256;
    int64_t rows = test.rows.rows;
    for (int64_t i = 0; i < rows; i += 1 + rows / PROBES) {
        float before = test.losses[i], high = before + step, low = before - step;
        test.losses[i] = high;
        run_loss(k, &above);
        test.losses[i] = low;
        run_loss(k, &below);
        test.losses[i] = before;
        double change = above.sums[PREFERENCE_SUM_LOSS] - below.sums[PREFERENCE_SUM_LOSS];
        double expected = change / ((double)high - (double)low);
        CHECK_NEAR((double)r->scales[i], expected, 1e-4 * (1 + fabs(expected)));
    }
}

/* Checks the results, and that both contexts give the same bits. */
static void check_case(struct kernels *k, struct kernels *other)
{
    struct results *r = &results[0];
    run_loss(k, r);
    run_loss(other, &results[1]);
    CHECK(memcmp(r, &results[1], sizeof *r) == 0);
    check_sums(r->sums);
    for (int64_t s = 0; s < RESPONSES * test.rows.pairs; s++) {
        double logps = 0, unused[PREFERENCE_SUMS] = {0};
        add_response(&test.rows, s, &logps, unused);
        CHECK(r->logps[s] == logps);
    }
}

/* ---- cases ---- */

/* Tests each loss that reads one pair at a time. */
static void test_losses(struct kernels *k, struct kernels *other)
{
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        if (loss == PREFERENCE_AOT || loss == PREFERENCE_AOT_UNPAIRED || loss == PREFERENCE_SFT) {
            continue;
        }
        set_case(5);
        test.settings.term[0] = (struct preference_term){(enum preference_loss)loss, 0.75};
        check_case(k, other);
        CHECK(isfinite(results[0].sums[PREFERENCE_SUM_LOSS]));
        check_scales(k, &results[0]);
    }
}

/* Many pairs, several terms, and no reference. */
static void test_sizes(struct kernels *k, struct kernels *other)
{
    static const int64_t sizes[] = {1, 3, 4, 37, 257};
    for (int i = 0; i < COUNT(sizes); i++) {
        set_case(sizes[i]);
        test.settings.terms = 2;
        test.settings.term[0] = (struct preference_term){PREFERENCE_SIGMOID, 1};
        test.settings.term[1] = (struct preference_term){PREFERENCE_IPO, 0.5};
        test.rows.reference = i % 2 == 0 ? test.reference : NULL;
        check_case(k, other);
    }
}

/* Gradients of the whole batch: pair i reads element (first + i) % count. */
static void test_gradients(struct kernels *k, struct kernels *other)
{
    double loss = 0;
    set_case(5);
    test.settings.term[0] = (struct preference_term){PREFERENCE_AOT, 1};
    test.rows.gradients = test.gradients;
    test.rows.gradient_first = 6;
    test.rows.gradient_count = 8;
    for (int i = 0; i < 8; i++) {
        test.gradients[i] = (struct preference_gradient){i, {10 + i, 20 + i}};
    }
    check_case(k, other);
    for (int64_t i = 0; i < 5; i++) {
        int64_t element = (6 + i) % 8;
        loss += (double)element;
        for (int a = 0; a < RESPONSES; a++) {
            float scale = (float)(-10 * (a + 1) - element);
            int64_t s = RESPONSES * i + a;
            CHECK(results[0].scales[test.first[s]] == scale);
            CHECK(results[0].scales[test.first[s + 1] - 1] == scale);
        }
    }
    CHECK(results[0].sums[PREFERENCE_SUM_LOSS] == loss);
}

/* Without pairs the sums are 0. Absent results are not written, and wrong calls fail. */
static void test_limits(struct kernels *k)
{
    struct results *r = &results[0];
    set_case(0);
    run_loss(k, r);
    for (int i = 0; i < PREFERENCE_SUMS; i++) {
        CHECK(r->sums[i] == 0);
    }
    set_case(2);
    CHECK_OK(preference_loss_run(k, NULL, NULL, r->logps, &test.rows, &test.settings));
    CHECK(r->logps[2] < 0);
    test.losses[test.rows.rows - 1] = NAN;
    run_loss(k, r);
    CHECK(isnan(r->sums[PREFERENCE_SUM_LOSS]) && isnan(r->scales[test.rows.rows - 1]));
    CHECK(!isnan(r->scales[0]));
    test.settings.term[0].loss = PREFERENCE_SFT;
    CHECK_FAILS(preference_loss_run(k, r->sums, NULL, NULL, &test.rows, &test.settings),
                STATUS_INTERNAL, "reads the whole batch");
    test.settings.term[0].loss = PREFERENCE_SIGMOID;
    test.rows.argmax = NULL;
    CHECK_FAILS(preference_loss_run(k, r->sums, NULL, NULL, &test.rows, &test.settings),
                STATUS_INTERNAL, "argmax is missing");
    test.rows.rows = 3;
    CHECK_FAILS(preference_loss_run(k, NULL, NULL, NULL, &test.rows, &test.settings),
                STATUS_INTERNAL, "3 rows for 2 pairs");
}

static void test_all(struct kernels *k, struct kernels *other)
{
    test_losses(k, other);
    test_sizes(k, other);
    test_gradients(k, other);
    test_limits(k);
}

int main(void)
{
    const struct kernels_limits limits = operation_limits(ROWS_MAX);
    operation_run_all(&limits, test_all);
    return 0;
}
