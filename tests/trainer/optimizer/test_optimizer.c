/* LAMB's trust ratios, computed from sums over whole tensors, against one step in closed form. */
#include "tests/check.h"
#include "trainer/optimizer/optimizer.h"

enum { TENSORS = 4, ELEMENTS = 3 * TENSORS };

/* Four tensors: with decay; zero, with decay; without decay; with decay, in two ranges. */
static const struct optimizer_range ranges[] = {
    {0, 3, 0, true, 0}, {3, 3, 3, true, 1},   {6, 3, 6, false, 2},
    {9, 1, 9, true, 3}, {10, 2, 10, true, 3},
};
enum { RANGES = sizeof ranges / sizeof *ranges };

static const float weights[ELEMENTS] = {1, -2, 3, 0, 0, 0, 0.5f, 0.25f, -1, 4, -1, 2};
static const float gradients[ELEMENTS] = {2, 1, -1, 3, -3, 1, 1, 2, 3, -1, -2, 0.5f};

/* In the first step, with a tiny epsilon, Adam's update is the sign of the gradient. */
static double expected_update(int i, double decay)
{
    return (gradients[i] > 0 ? 1 : -1) + decay * weights[i];
}

static double expected_ratio(int tensor, double decay, bool all)
{
    double w = 0, u = 0;
    for (int i = 3 * tensor; i < 3 * tensor + 3; i++) {
        w += weights[i] * weights[i];
        u += expected_update(i, decay) * expected_update(i, decay);
    }
    return (all || decay > 0) && w > 0 ? sqrt(w / u) : 1;
}

static void test_step(struct kernels *k, double weight_decay, bool all)
{
    struct optimizer *o = NULL;
    float w[ELEMENTS];
    struct optimizer_squares squares[TENSORS] = {{0}};
    const struct optimizer_settings settings = {0.9, 0.99,           1e-12, weight_decay,
                                                0,   OPTIMIZER_LAMB, all};
    memcpy(w, weights, sizeof w);
    CHECK_OK(optimizer_create(k, &settings, ranges, RANGES, ELEMENTS, &o));
    struct optimizer_slice slice = {.count = ELEMENTS, .weights = w, .gradients = gradients};
    CHECK(optimizer_uses_trust_ratios(o));
    CHECK_OK(optimizer_update_moments(o, &slice, 1, 1));
    CHECK_OK(optimizer_squares(o, squares));
    optimizer_set_trust_ratios(o, squares);
    CHECK_OK(optimizer_update(o, &slice, 1, 0.1, 1));
    for (int i = 0; i < ELEMENTS; i++) {
        double decay = i / 3 == 2 ? 0 : weight_decay;
        double expected =
            weights[i] - 0.1 * expected_ratio(i / 3, decay, all) * expected_update(i, decay);
        CHECK_NEAR(w[i], expected, 1e-5);
    }
    CHECK_OK(optimizer_destroy(&o));
}

int main(void)
{
    struct device *dev = NULL;
    struct kernels *k = NULL;
    const struct kernels_limits limits = {16, 16, 16, 1, 16, 16, 16, true, 0};
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    test_step(k, 0.5, false);
    test_step(k, 0.5, true);
    test_step(k, 0, false);
    test_step(k, 0, true);
    CHECK_OK(kernels_destroy(&k));
    CHECK_OK(device_destroy(&dev));
    return 0;
}
