/* Tests the preference losses that read a whole batch against their definitions, and the gradients
 * against finite differences of the definitions. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

#include "kernels/preference_batch.h"

enum { PAIRS_MAX = 700, PROBES = 20 };

/* A value, and the pair that it belongs to. */
struct ranked {
    double value;
    int64_t pair;
};

static struct preference_pair pairs[PAIRS_MAX];

static double compute_log_logistic(double x)
{
    return x > 0 ? -log(1 + exp(-x)) : x - log(1 + exp(x));
}

/* ---- the definitions ---- */

/* Sorts by insertion: equal values keep their order. */
static void sort_values(struct ranked *values, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        struct ranked own = values[i];
        int64_t at = i;
        for (; at > 0 && values[at - 1].value > own.value; at--) {
            values[at] = values[at - 1];
        }
        values[at] = own;
    }
}

static double get_high(const struct preference_pair *p, bool margins)
{
    return p->logps[CHOSEN] - (margins ? p->logps[REJECTED] : p->reference[CHOSEN]);
}

static double get_low(const struct preference_pair *p, bool margins)
{
    return margins ? p->reference[CHOSEN] - p->reference[REJECTED]
                   : p->logps[REJECTED] - p->reference[REJECTED];
}

static void add_aot(double *losses, const struct preference_settings *s, double weight,
                    bool margins, int64_t count)
{
    static struct ranked high[PAIRS_MAX], low[PAIRS_MAX];
    for (int64_t i = 0; i < count; i++) {
        high[i] = (struct ranked){get_high(&pairs[i], margins), i};
        low[i] = (struct ranked){get_low(&pairs[i], margins), i};
    }
    sort_values(high, count);
    sort_values(low, count);
    for (int64_t i = 0; i < count; i++) {
        double x = s->beta * (high[i].value - low[i].value);
        losses[high[i].pair] -= weight * ((1 - s->label_smoothing) * compute_log_logistic(x) +
                                          s->label_smoothing * compute_log_logistic(-x));
    }
}

static void add_sft(double *losses, double weight, int64_t count)
{
    double tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    for (int64_t i = 0; i < count; i++) {
        losses[i] -= weight * pairs[i].logps[CHOSEN] * (double)count / tokens;
    }
}

static void add_sigmoid(double *losses, const struct preference_settings *s, double weight,
                        int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const struct preference_pair *p = &pairs[i];
        double x = s->beta * (p->logps[CHOSEN] - p->reference[CHOSEN] - p->logps[REJECTED] +
                              p->reference[REJECTED]);
        losses[i] -= weight * compute_log_logistic(x);
    }
}

/* Computes the loss of each pair, and returns their sum. */
static double compute_losses(double *losses, const struct preference_settings *s, int64_t count)
{
    double sum = 0;
    memset(losses, 0, (size_t)count * sizeof *losses);
    for (int t = 0; t < s->terms; t++) {
        double weight = s->term[t].weight;
        switch (s->term[t].loss) {
        case PREFERENCE_SFT:
            add_sft(losses, weight, count);
            break;
        case PREFERENCE_SIGMOID:
            add_sigmoid(losses, s, weight, count);
            break;
        default:
            add_aot(losses, s, weight, s->term[t].loss == PREFERENCE_AOT, count);
            break;
        }
    }
    for (int64_t i = 0; i < count; i++) {
        sum += losses[i];
    }
    return sum;
}

/* ---- comparisons ---- */

static void check_gradients(const struct preference_gradient *gradients,
                            const struct preference_settings *s, int64_t count)
{
    static double losses[PAIRS_MAX];
    const double step = 1e-5;
    for (int64_t n = 0; n < RESPONSES * count; n += 1 + RESPONSES * count / PROBES) {
        double *x = &pairs[n / RESPONSES].logps[n % RESPONSES], before = *x;
        *x = before + step;
        double above = compute_losses(losses, s, count);
        *x = before - step;
        double below = compute_losses(losses, s, count);
        *x = before;
        CHECK_NEAR(gradients[n / RESPONSES].logps[n % RESPONSES], (above - below) / (2 * step),
                   2e-5);
    }
}

/* The arrays of struct preference_batch, each between guard bytes. */
struct arrays {
    struct tensor pairs, gradients, ranked;
    struct preference_batch batch;
};

static struct tensor allocate_elements(int64_t count, size_t bytes)
{
    return operation_tensor(ORACLE_F64, count, (int64_t)(bytes / sizeof(double)),
                            (int64_t)(bytes / sizeof(double)));
}

static struct arrays allocate_arrays(int64_t size)
{
    struct arrays a;
    a.pairs = allocate_elements(size, sizeof *a.batch.pairs);
    a.gradients = allocate_elements(size, sizeof *a.batch.gradients);
    a.ranked = allocate_elements(PREFERENCE_RANKED * size, sizeof *a.batch.ranked);
    a.batch = (struct preference_batch){size, a.pairs.data, a.gradients.data, a.ranked.data};
    return a;
}

static void release_arrays(struct arrays *a)
{
    operation_release(&a->pairs);
    operation_release(&a->gradients);
    operation_release(&a->ranked);
}

/* Checks losses and gradients, and that both contexts give the same bits. */
static void check_case(struct kernels *k, struct kernels *other, int64_t count, bool distinct,
                       const struct preference_settings *s)
{
    static double losses[PAIRS_MAX];
    struct arrays a = allocate_arrays(count + 1), b = allocate_arrays(count + 1);
    memcpy(a.batch.pairs, pairs, (size_t)count * sizeof *pairs);
    memcpy(b.batch.pairs, pairs, (size_t)count * sizeof *pairs);
    CHECK_OK(preference_batch_run(k, &a.batch, count, s));
    CHECK_OK(preference_batch_run(other, &b.batch, count, s));
    CHECK(memcmp(a.batch.gradients, b.batch.gradients, (size_t)count * sizeof *a.batch.gradients) ==
          0);
    (void)compute_losses(losses, s, count);
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(a.batch.gradients[i].loss, losses[i], 1e-11 * (1 + fabs(losses[i])));
    }
    if (distinct) { /* else the definition has no derivative */
        check_gradients(a.batch.gradients, s, count);
    }
    a.batch.pairs[count / 2].logps[CHOSEN] = NAN;
    CHECK_OK(preference_batch_run(k, &a.batch, count, s));
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += a.batch.gradients[i].loss;
    }
    CHECK(isnan(sum));
    release_arrays(&a);
    release_arrays(&b);
}

/* ---- cases ---- */

static void make_pairs(int64_t count, bool distinct)
{
    const float *normals = operation_normals(5, 4 * count);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t a = 0; a < RESPONSES; a++) {
            double policy = (double)normals[4 * i + a], reference = (double)normals[4 * i + 2 + a];
            pairs[i].logps[a] = -20 + 3 * (distinct ? policy : floor(policy));
            pairs[i].reference[a] = -20 + 3 * (distinct ? reference : floor(reference));
            pairs[i].tokens[a] = 1 + (7 * i + 3 * a) % 11;
        }
    }
}

static void test_losses(struct kernels *k, struct kernels *other, int64_t count)
{
    static const struct preference_settings settings[] = {
        {.terms = 1, .term = {{PREFERENCE_AOT, 1}}, .beta = 0.3},
        {.terms = 1, .term = {{PREFERENCE_AOT_UNPAIRED, 2}}, .beta = 0.3, .label_smoothing = 0.1},
        {.terms = 1, .term = {{PREFERENCE_SFT, 0.5}}, .beta = 0.1},
        {.terms = 4,
         .term = {{PREFERENCE_SIGMOID, 0.7},
                  {PREFERENCE_AOT, 1.5},
                  {PREFERENCE_SFT, 0.2},
                  {PREFERENCE_AOT_UNPAIRED, 1}},
         .beta = 0.2,
         .label_smoothing = 0.05}};
    for (int i = 0; i < 2 * COUNT(settings); i++) {
        make_pairs(count, i % 2 == 0);
        check_case(k, other, count, i % 2 == 0, &settings[i / 2]);
    }
}

/* Stores two micro-batches. The second one continues at the beginning of the arrays. */
static void test_store(struct kernels *k)
{
    const int32_t first[] = {0, 2, 3, 7, 8, 10, 14};
    const double logps[] = {-1, -2, -3, -4, -5, -6}, reference[] = {1, 2, 3, 4, 5, 6};
    struct arrays a = allocate_arrays(3);
    const struct preference_rows one = {.pairs = 1, .rows = 3, .first = first};
    const struct preference_rows two = {
        .pairs = 2, .rows = 11, .first = first + 2, .reference = reference};
    CHECK_OK(preference_batch_store(k, &a.batch, logps, &one, 1));
    CHECK_OK(preference_batch_store(k, &a.batch, logps + 2, &two, 2));
    for (int64_t i = 0; i < 3; i++) {
        const struct preference_pair *p = &a.batch.pairs[(1 + i) % 3];
        for (int64_t s = 0; s < RESPONSES; s++) {
            CHECK(p->logps[s] == logps[2 * i + s]);
            CHECK(p->reference[s] == (i == 0 ? 0 : reference[2 * (i - 1) + s]));
            CHECK_EQUAL(p->tokens[s], first[2 * i + s + 1] - first[2 * i + s]);
        }
    }
    CHECK_FAILS(preference_batch_store(k, &a.batch, logps, &two, 3), STATUS_INTERNAL, "pair 3 of");
    CHECK_FAILS(preference_batch_run(k, &a.batch, 4, &(struct preference_settings){0}),
                STATUS_INTERNAL, "4 pairs of a batch of 3");
    release_arrays(&a);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    static const int64_t counts[] = {1, 2, 7, 300, PAIRS_MAX - 1};
    for (int i = 0; i < COUNT(counts); i++) {
        test_losses(k, other, counts[i]);
    }
    test_store(k);
}

int main(void)
{
    const struct kernels_limits limits = operation_limits(64);
    operation_run_all(&limits, test_all);
    return 0;
}
