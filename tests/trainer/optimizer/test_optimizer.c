/* LAMB's trust ratios, computed from sums over whole tensors, against one step in closed form.
 * Steps of AdamW against the formula of PyTorch in double precision. */
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/optimizer/optimizer.h"

enum { TENSORS = 4, ELEMENTS = 3 * TENSORS };

/* Four tensors: with decay; zero, with decay; without decay; with decay, in two ranges. */
static const struct optimizer_range ranges[] = {
    {0, 3, 0, true, 0}, {3, 3, 3, true, 1},   {6, 3, 6, false, 2},
    {9, 1, 9, true, 3}, {10, 2, 10, true, 3},
};
enum { RANGES = COUNT(ranges) };

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
    CHECK_OK(optimizer_add_squares(o, squares));
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

/* The early updates are the most sensitive to 1 - beta2: with the f32 value of beta2, each update
 * deviates by 6.4e-6 (beta2 0.999) or 8.3e-5 (0.9999). */
static void test_adamw_steps(struct kernels *k, double beta2, double epsilon)
{
    enum { STEPS = 10 };
    const double beta1 = 0.9, decay = 0.125, rate = 0.25, scale = 0.5;
    struct optimizer *o = NULL;
    float w[ELEMENTS], g[ELEMENTS];
    double exact[ELEMENTS], m[ELEMENTS] = {0}, v[ELEMENTS] = {0};
    const struct optimizer_settings settings = {beta1, beta2, epsilon, decay};
    struct optimizer_slice slice = {.count = ELEMENTS, .weights = w, .gradients = g};
    CHECK_OK(optimizer_create(k, &settings, ranges, RANGES, ELEMENTS, &o));
    for (int i = 0; i < ELEMENTS; i++) {
        w[i] = 0; /* so that the weights are the sum of the updates */
        exact[i] = w[i];
    }
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < ELEMENTS; i++) {
            g[i] = gradients[i] * (float)(1 + (step * 7 + i) % 5) / 4;
            double x = scale * (double)g[i], tensor_decay = i / 3 == 2 ? 0 : decay;
            exact[i] *= 1 - rate * tensor_decay;
            m[i] = beta1 * m[i] + (1 - beta1) * x;
            v[i] = beta2 * v[i] + (1 - beta2) * x * x;
            double denominator = sqrt(v[i]) / sqrt(1 - pow(beta2, step)) + epsilon;
            exact[i] -= rate / (1 - pow(beta1, step)) * m[i] / denominator;
        }
        CHECK_OK(optimizer_update(o, &slice, step, rate, scale));
        for (int i = 0; i < ELEMENTS; i++) {
            CHECK_NEAR(w[i] / exact[i], 1, 1e-6);
        }
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
    test_adamw_steps(k, 0.95, 1e-8);
    test_adamw_steps(k, 0.999, 1e-8);
    test_adamw_steps(k, 0.9999, 0.5);
    CHECK_OK(kernels_destroy(&k));
    CHECK_OK(device_destroy(&dev));
    return 0;
}
