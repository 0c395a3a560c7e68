/* Tests of the order of samples: each sample once per epoch, shifted windows, exact mixtures. */
#include "base/memory.h"
#include "datasets/loader/sample_order.h"
#include "tests/check.h"

static void test_epochs(void)
{
    static const int64_t sizes[] = {1, 2, 3, 17, 64, 1000, 4097};
    for (int k = 0; k < COUNT(sizes); k++) {
        int64_t n = sizes[k], moved = 0;
        double weight = 1.0;
        struct sample_order order;
        CHECK_OK(sample_order_init(&order, &n, &weight, 1, 42, true));
        CHECK_EQUAL(sample_order_epoch_samples(&order), n);
        int *seen = calloc((size_t)n, sizeof *seen);
        for (int64_t g = 0; g < 3 * n; g++) {
            struct sample_position p = sample_order_find(&order, g);
            CHECK_EQUAL(p.epoch, g / n);
            CHECK(p.sample >= 0 && p.sample < n);
            CHECK_EQUAL(seen[p.sample]++, p.epoch); /* once per epoch */
            moved += p.sample != sample_order_find(&order, g % n).sample;
        }
        CHECK(n < 17 || moved > n); /* epochs differ from each other */
        free(seen);
    }
}

static void test_seeds(void)
{
    int64_t n = 1000, same = 0;
    double weight = 3.0;
    struct sample_order a, b, plain;
    CHECK_OK(sample_order_init(&a, &n, &weight, 1, 1, true));
    CHECK_OK(sample_order_init(&b, &n, &weight, 1, 2, true));
    CHECK_OK(sample_order_init(&plain, &n, &weight, 1, 1, false));
    for (int64_t g = 0; g < n; g++) {
        same += sample_order_find(&a, g).sample == sample_order_find(&b, g).sample;
        CHECK_EQUAL(sample_order_find(&plain, g + 2 * n).sample, g);
    }
    CHECK(same < 20);
}

/* In the first epoch windows are not shifted. In a later epoch all windows have the same shift. */
static void test_shifts(void)
{
    enum { N = 40, EPOCHS = 50, WINDOW = 64 };
    const int64_t n = N;
    int64_t different = 0;
    struct sample_order order;
    CHECK_OK(sample_order_init(&order, &n, (const double[]){1.0}, 1, 5, true));
    CHECK_EQUAL(sample_order_find(&order, 3 * n).shift,
                0); /* without window_tokens there is no shift */
    order.window_tokens = WINDOW;
    for (int64_t g = 0; g < N * EPOCHS; g++) {
        struct sample_position p = sample_order_find(&order, g);
        CHECK(p.shift >= 0 && p.shift < WINDOW);
        CHECK(p.epoch > 0 || p.shift == 0);
        CHECK_EQUAL(p.shift, sample_order_find(&order, g / N * N).shift);
        different += g % N == 0 && g > 0 && p.shift != sample_order_find(&order, g - N).shift;
    }
    CHECK(different > EPOCHS / 2);
    order.shuffle = false; /* evaluation */
    CHECK_EQUAL(sample_order_find(&order, 7 * n).shift, 0);
}

/* After every sample, each source has its proportional number of samples, within ceil(log2 k), and
 * sample_order_count returns that number. */
static void check_mixture(const double *weights, const int64_t *samples, int sources, int64_t total)
{
    struct sample_order order;
    CHECK_OK(sample_order_init(&order, samples, weights, sources, 7, true));
    double sum = 0.0, bound = ceil(log2(sources));
    int64_t count[SAMPLE_ORDER_SOURCES_MAX] = {0};
    for (int i = 0; i < sources; i++) {
        sum += weights[i];
    }
    for (int64_t g = 0; g < total; g++) {
        struct sample_position p = sample_order_find(&order, g);
        CHECK_EQUAL(p.epoch, count[p.source] / samples[p.source]);
        count[p.source]++;
        for (int i = 0; i < sources; i++) {
            CHECK_EQUAL(count[i], sample_order_count(&order, i, g + 1));
            CHECK_NEAR((double)count[i], (double)(g + 1) * weights[i] / sum, bound + 1e-4);
        }
    }
    int64_t epoch = sample_order_epoch_samples(&order), finished = 0, finished_before = 0;
    for (int i = 0; i < sources; i++) {
        finished += sample_order_count(&order, i, epoch) >= samples[i];
        finished_before += sample_order_count(&order, i, epoch - 1) >= samples[i];
    }
    CHECK(finished > 0 && finished_before == 0);
}

static void test_mixtures(void)
{
    const int64_t samples[5] = {10, 200, 35, 1, 1000};
    check_mixture((const double[]){0.7, 0.3}, samples, 2, 5000);
    check_mixture((const double[]){1.0, 1.0, 1.0}, samples, 3, 3000);
    check_mixture((const double[]){5.0, 0.01, 2.5, 1e-3, 40.0}, samples, 5, 20000);
    check_mixture((const double[]){1e-300, 2e-300}, samples, 2, 3000);
    double weights[SAMPLE_ORDER_SOURCES_MAX];
    int64_t sizes[SAMPLE_ORDER_SOURCES_MAX];
    for (int i = 0; i < SAMPLE_ORDER_SOURCES_MAX; i++) {
        weights[i] = 1.0 + i % 7;
        sizes[i] = 3 + i;
    }
    check_mixture(weights, sizes, SAMPLE_ORDER_SOURCES_MAX, 1000);
    /* Large sample numbers do not overflow 64 bits. */
    struct sample_order order;
    CHECK_OK(sample_order_init(&order, samples, (const double[]){3.0, 1.0}, 2, 7, true));
    int64_t large = INT64_C(1) << 55;
    CHECK_EQUAL(sample_order_count(&order, 0, large), large / 4 * 3);
    CHECK_EQUAL(sample_order_count(&order, 1, large), large / 4);
}

/* In a mixture, each source returns each of its samples once per epoch of that source. */
static void test_mixture_epochs(void)
{
    const int64_t samples[2] = {30, 50};
    struct sample_order order;
    int seen[2][50] = {{0}};
    CHECK_OK(sample_order_init(&order, samples, (const double[]){2.0, 1.0}, 2, 9, true));
    for (int64_t g = 0; g < 3000; g++) {
        struct sample_position p = sample_order_find(&order, g);
        CHECK_EQUAL(seen[p.source][p.sample]++, p.epoch);
    }
}

static void test_errors(void)
{
    const int64_t samples[2] = {3, 3};
    struct sample_order order;
    CHECK_FAILS(sample_order_init(&order, samples, (const double[]){1.0, 0.0}, 2, 1, true),
                STATUS_RECIPE, "weight 0");
    CHECK_FAILS(sample_order_init(&order, samples, (const double[]){1.0, -1.0}, 2, 1, true),
                STATUS_RECIPE, "weight -1");
    CHECK_FAILS(sample_order_init(&order, samples, (const double[]){(double)NAN, 1.0}, 2, 1, true),
                STATUS_RECIPE, "finite");
    CHECK_FAILS(
        sample_order_init(&order, samples, (const double[]){1.0, (double)INFINITY}, 2, 1, true),
        STATUS_RECIPE, "finite");
    CHECK_FAILS(sample_order_init(&order, samples, (const double[]){1e308, 1e308}, 2, 1, true),
                STATUS_RECIPE, "not finite");
    CHECK_FAILS(sample_order_init(&order, samples, NULL, 0, 1, true), STATUS_RECIPE,
                "0 data sources");
    CHECK_FAILS(sample_order_init(&order, samples, NULL, 65, 1, true), STATUS_RECIPE,
                "65 data sources");
}

int main(void)
{
    test_epochs();
    test_seeds();
    test_shifts();
    test_mixtures();
    test_mixture_epochs();
    test_errors();
    return 0;
}
