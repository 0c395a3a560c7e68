/* Preference losses: their values where policy and reference agree, derivatives against differences, and what the
 * sorted losses promise. Whole batches through a model are compared with TRL in test_dpo.c. */
#include <math.h>

#include "base/random.h"
#include "tests/check.h"
#include "trainer/objective/preference.h"

enum { PAIRS = 7 };

static struct preference_settings settings_of(enum preference_loss loss, double beta, double e)
{
    return (struct preference_settings){
        .terms = 1, .term = {{loss, 1}}, .beta = beta, .label_smoothing = e, .discopop_tau = 0.5};
}

static void random_pairs(struct preference_pair pairs[PAIRS], uint64_t seed)
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

static double total(const struct preference_settings *s, const struct preference_pair *pairs,
                    int64_t count)
{
    struct preference_gradient slopes[PAIRS];
    double sum = 0;
    CHECK_OK(preference_gradients(s, pairs, count, slopes));
    for (int64_t i = 0; i < count; i++) {
        sum += slopes[i].loss;
    }
    return sum;
}

/* The loss before the first step: policy and reference are the same. */
static void test_first(void)
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
    random_pairs(pairs, 1);
    double chosen = 0, tokens = 0;
    for (int i = 0; i < PAIRS; i++) {
        memcpy(pairs[i].logps, pairs[i].reference, sizeof pairs[i].logps);
        chosen -= pairs[i].logps[CHOSEN];
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    expected[PREFERENCE_SFT] = chosen / tokens;
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = settings_of((enum preference_loss)loss, beta, e);
        double got = total(&s, pairs, PAIRS) / PAIRS;
        printf("%-14s %.9f, expected %.9f\n", preference_name((enum preference_loss)loss), got,
               expected[loss]);
        CHECK(fabs(got - expected[loss]) <= 1e-12 * fmax(1, expected[loss]));
    }
}

/* All derivatives of the sum, one coordinate at a time. */
static void test_slopes(void)
{
    const double step = 1e-5;
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = settings_of((enum preference_loss)loss, 0.3, 0.1);
        struct preference_pair pairs[PAIRS];
        struct preference_gradient slopes[PAIRS];
        double worst = 0;
        random_pairs(pairs, 2);
        CHECK_OK(preference_gradients(&s, pairs, PAIRS, slopes));
        for (int i = 0; i < PAIRS; i++) {
            for (int a = 0; a < RESPONSES; a++) {
                double at = pairs[i].logps[a];
                pairs[i].logps[a] = at + step;
                double above = total(&s, pairs, PAIRS);
                pairs[i].logps[a] = at - step;
                double below = total(&s, pairs, PAIRS);
                pairs[i].logps[a] = at;
                double error = fabs((above - below) / (2 * step) - slopes[i].logps[a]);
                worst = fmax(worst, error);
                CHECK(error <= 1e-7);
            }
        }
        printf("%-14s slopes within %.1e\n", preference_name((enum preference_loss)loss), worst);
    }
}

/* Losses far out are finite, and a sum of losses is the sum of them. */
static void test_range(void)
{
    for (int loss = 0; loss < PREFERENCE_LOSSES; loss++) {
        struct preference_settings s = settings_of((enum preference_loss)loss, 0.1, 0.1);
        for (int sign = -1; sign <= 1; sign += 2) {
            struct preference_pair pair = {{-5000 + 2000 * sign, -5000}, {-5000, -5000}, {9, 7}};
            struct preference_gradient slope;
            CHECK_OK(preference_gradients(&s, &pair, 1, &slope));
            bool explodes = loss == PREFERENCE_DISCOPOP && sign < 0; /* exp(200) */
            CHECK(isfinite(slope.loss) && isfinite(slope.logps[CHOSEN]));
            CHECK(explodes || slope.loss < 1e8);
        }
    }
    struct preference_pair pairs[PAIRS];
    random_pairs(pairs, 3);
    struct preference_settings both = settings_of(PREFERENCE_SIGMOID, 0.1, 0);
    both.terms = 2;
    both.term[0].weight = 0.25;
    both.term[1] = (struct preference_term){PREFERENCE_SFT, 2};
    struct preference_settings one = settings_of(PREFERENCE_SIGMOID, 0.1, 0);
    struct preference_settings other = settings_of(PREFERENCE_SFT, 0.1, 0);
    double sum = 0.25 * total(&one, pairs, PAIRS) + 2 * total(&other, pairs, PAIRS);
    CHECK(fabs(total(&both, pairs, PAIRS) - sum) <= 1e-12 * fabs(sum));
    CHECK(preference_needs_whole_batch(&both) && !preference_needs_whole_batch(&one));
}

/* The sorted losses do not look at which reference belongs to which policy margin. */
static void test_sorted(void)
{
    struct preference_pair pairs[PAIRS], turned[PAIRS];
    random_pairs(pairs, 4);
    for (int i = 0; i < PAIRS; i++) {
        turned[i] = pairs[i];
        memcpy(turned[i].reference, pairs[(i + 3) % PAIRS].reference, sizeof pairs[i].reference);
    }
    struct preference_settings s = settings_of(PREFERENCE_AOT, 0.2, 0.05);
    CHECK(fabs(total(&s, pairs, PAIRS) - total(&s, turned, PAIRS)) <= 1e-12);
    struct preference_settings paired = settings_of(PREFERENCE_SIGMOID, 0.2, 0);
    CHECK(fabs(total(&paired, pairs, PAIRS) - total(&paired, turned, PAIRS)) > 1e-3);
}

int main(void)
{
    test_first();
    test_slopes();
    test_range();
    test_sorted();
    return 0;
}
