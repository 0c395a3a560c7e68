/* Tests preference losses: values where policy and reference are equal, derivatives against finite
 * differences, and the invariance of the sorted losses. test_dpo.c compares batches with TRL. */
#include <math.h>

#include "base/random.h"
#include "tests/check.h"
#include "trainer/objective/preference.h"

enum { PAIRS = 7 };

static struct preference_settings make_settings(enum preference_loss loss, double beta, double e)
{
    return (struct preference_settings){
        .terms = 1, .term = {{loss, 1}}, .beta = beta, .label_smoothing = e, .discopop_tau = 0.5};
}

static void make_pairs(struct preference_pair pairs[PAIRS], uint64_t seed)
{
    uint64_t key = random_key(seed, RANDOM_TEST, 0, 0), at = 0;
    for (int i = 0; i < PAIRS; i++) {
        for (int a = 0; a < RESPONSES; a++) {
            pairs[i].tokens[a] = 1 + (int64_t)random_below(key, at++, 9);
            pairs[i].reference[a] = -20 * (double)random_uniform(key, at++);
            pairs[i].logps[a] = pairs[i].reference[a] + 8 * (double)random_uniform(key, at++) - 4;
        }
    }
}

static double sum_losses(const struct preference_settings *s, const struct preference_pair *pairs,
                         int64_t count)
{
    struct preference_gradient gradients[PAIRS];
    double sum = 0;
    CHECK_OK(preference_gradients(s, pairs, count, gradients));
    for (int64_t i = 0; i < count; i++) {
        sum += gradients[i].loss;
    }
    return sum;
}

/* The losses before the first step, where policy and reference are equal. */
static void test_first_step(void)
{
    double beta = 0.1, e = 0.2, sigmoid = log(2);
    double expected[] = {
        [PREFERENCE_SIGMOID] = sigmoid,
        [PREFERENCE_HINGE] = 1,
        [PREFERENCE_IPO] = 1 / (4 * beta * beta),
        [PREFERENCE_EXO_PAIR] = log(0.5) - log(1 - e) / 2 - log(e) / 2,
        [PREFERENCE_NCA_PAIR] = 2 * sigmoid,
        [PREFERENCE_ROBUST] = sigmoid,
        [PREFERENCE_BCO_PAIR] = 2 * sigmoid,
        [PREFERENCE_SPPO_HARD] = 1 / (2 * beta * beta),
        [PREFERENCE_AOT] = sigmoid,
        [PREFERENCE_AOT_UNPAIRED] = sigmoid,
        [PREFERENCE_APO_ZERO] = 1,
        [PREFERENCE_APO_DOWN] = 1,
        [PREFERENCE_DISCOPOP] = sigmoid / 2 + 0.5,
        [PREFERENCE_SFT] = NAN,
        [PREFERENCE_SIGMOID_NORM] = sigmoid,
    };
    struct preference_pair pairs[PAIRS];
    make_pairs(pairs, 1);
    double chosen = 0, tokens = 0;
    for (int i = 0; i < PAIRS; i++) {
        memcpy(pairs[i].logps, pairs[i].reference, sizeof pairs[i].logps);
        chosen -= pairs[i].logps[CHOSEN];
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    expected[PREFERENCE_SFT] = chosen / tokens;
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = make_settings((enum preference_loss)loss, beta, e);
        double actual = sum_losses(&s, pairs, PAIRS) / PAIRS;
        printf("loss %d: %.9f, expected %.9f\n", loss, actual, expected[loss]);
        CHECK(fabs(actual - expected[loss]) <= 1e-12 * fmax(1, expected[loss]));
    }
}

/* Compares all derivatives of the summed loss with central differences. */
static void test_gradients(void)
{
    const double step = 1e-5;
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = make_settings((enum preference_loss)loss, 0.3, 0.1);
        struct preference_pair pairs[PAIRS];
        struct preference_gradient gradients[PAIRS];
        double largest = 0;
        make_pairs(pairs, 2);
        CHECK_OK(preference_gradients(&s, pairs, PAIRS, gradients));
        for (int i = 0; i < PAIRS; i++) {
            for (int a = 0; a < RESPONSES; a++) {
                double at = pairs[i].logps[a];
                pairs[i].logps[a] = at + step;
                double above = sum_losses(&s, pairs, PAIRS);
                pairs[i].logps[a] = at - step;
                double below = sum_losses(&s, pairs, PAIRS);
                pairs[i].logps[a] = at;
                double error = fabs((above - below) / (2 * step) - gradients[i].logps[a]);
                largest = fmax(largest, error);
                CHECK(error <= 1e-7);
            }
        }
        printf("loss %d: gradients within %.1e\n", loss, largest);
    }
}

/* Losses of extreme margins are finite. A weighted sum of losses equals the sum of its terms. */
static void test_extreme_margins(void)
{
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = make_settings((enum preference_loss)loss, 0.1, 0.1);
        for (int sign = -1; sign <= 1; sign += 2) {
            struct preference_pair pair = {{-5000 + 2000 * sign, -5000}, {-5000, -5000}, {9, 7}};
            struct preference_gradient gradient;
            CHECK_OK(preference_gradients(&s, &pair, 1, &gradient));
            bool is_exponential = loss == PREFERENCE_DISCOPOP && sign < 0; /* exp(200) */
            CHECK(isfinite(gradient.loss) && isfinite(gradient.logps[CHOSEN]));
            CHECK(is_exponential || gradient.loss < 1e8);
        }
    }
    struct preference_pair pairs[PAIRS];
    make_pairs(pairs, 3);
    struct preference_settings both = make_settings(PREFERENCE_SIGMOID, 0.1, 0);
    both.terms = 2;
    both.term[0].weight = 0.25;
    both.term[1] = (struct preference_term){PREFERENCE_SFT, 2};
    struct preference_settings one = make_settings(PREFERENCE_SIGMOID, 0.1, 0);
    struct preference_settings other = make_settings(PREFERENCE_SFT, 0.1, 0);
    double sum = 0.25 * sum_losses(&one, pairs, PAIRS) + 2 * sum_losses(&other, pairs, PAIRS);
    CHECK(fabs(sum_losses(&both, pairs, PAIRS) - sum) <= 1e-12 * fabs(sum));
    CHECK(preference_needs_whole_batch(&both) && !preference_needs_whole_batch(&one));
}

/* The sorted losses do not depend on which reference belongs to which policy margin. */
static void test_sorted_losses(void)
{
    struct preference_pair pairs[PAIRS], rotated[PAIRS];
    make_pairs(pairs, 4);
    for (int i = 0; i < PAIRS; i++) {
        rotated[i] = pairs[i];
        memcpy(rotated[i].reference, pairs[(i + 3) % PAIRS].reference, sizeof pairs[i].reference);
    }
    struct preference_settings s = make_settings(PREFERENCE_AOT, 0.2, 0.05);
    CHECK(fabs(sum_losses(&s, pairs, PAIRS) - sum_losses(&s, rotated, PAIRS)) <= 1e-12);
    struct preference_settings paired = make_settings(PREFERENCE_SIGMOID, 0.2, 0);
    CHECK(fabs(sum_losses(&paired, pairs, PAIRS) - sum_losses(&paired, rotated, PAIRS)) > 1e-3);
}

int main(void)
{
    test_first_step();
    test_gradients();
    test_extreme_margins();
    test_sorted_losses();
    return 0;
}
