/* Schedules against values in closed form, and properties of all schedules. */
#include "tests/check.h"
#include "trainer/optimizer/schedule.h"

static struct recipe make_recipe(enum recipe_schedule name, int64_t warmup, double min_ratio)
{
    struct recipe recipe;
    recipe_set_defaults(&recipe);
    recipe.optimizer.learning_rate = 1e-3;
    recipe.schedule.name = name;
    recipe.schedule.warmup_steps = warmup;
    recipe.schedule.min_ratio = min_ratio;
    return recipe;
}

static void check_rate(const struct recipe *recipe, int64_t step, double expected)
{
    double rate = schedule_learning_rate(recipe, step, 110);
    if (!(fabs(rate - expected) <= 1e-15)) {
        fprintf(stderr, "schedule %d step %lld: %.17g, expected %.17g\n",
                (int)recipe->schedule.name, (long long)step, rate, expected);
        exit(1);
    }
}

/* 10 warm-up steps, then 100 steps in which the rate falls from 1e-3 to 1e-4. */
static void test_values(void)
{
    struct recipe r = make_recipe(SCHEDULE_CONSTANT, 10, 0.1);
    for (int name = SCHEDULE_CONSTANT; name <= SCHEDULE_WSD; name++) {
        r = make_recipe((enum recipe_schedule)name, 10, 0.1);
        check_rate(&r, 0, 1e-4);
        check_rate(&r, 4, 5e-4);
        check_rate(&r, 9, 1e-3);
        check_rate(&r, 10, 1e-3);
    }
    r = make_recipe(SCHEDULE_CONSTANT, 10, 0.1);
    check_rate(&r, 109, 1e-3);
    r = make_recipe(SCHEDULE_LINEAR, 10, 0.1);
    check_rate(&r, 60, 5.5e-4);
    check_rate(&r, 109, 1e-4 + 9e-4 * 0.01);
    check_rate(&r, 110, 1e-4);
    check_rate(&r, 500, 1e-4);
    r = make_recipe(SCHEDULE_COSINE, 10, 0.1);
    check_rate(&r, 35, 1e-4 + 4.5e-4 * (1 + sqrt(0.5)));
    check_rate(&r, 60, 5.5e-4);
    check_rate(&r, 85, 1e-4 + 4.5e-4 * (1 - sqrt(0.5)));
    check_rate(&r, 110, 1e-4);
    r = make_recipe(SCHEDULE_POLYNOMIAL, 10, 0.1);
    r.schedule.power = 2.0;
    check_rate(&r, 60, 1e-4 + 9e-4 * 0.25);
    check_rate(&r, 109, 1e-4 + 9e-4 * 1e-4);
    r = make_recipe(SCHEDULE_WSD, 10, 0.0);
    r.schedule.decay_ratio = 40.0 / 110;
    check_rate(&r, 70, 1e-3);
    check_rate(&r, 80, 5e-4);
    check_rate(&r, 109, 1e-3 * (1 - sqrt(39.0 / 40)));
    check_rate(&r, 110, 0);
    r.schedule.decay_ratio = 0;
    check_rate(&r, 109, 1e-3);
}

/* NVIDIA's BERT schedule. The decay counts from step 0, so the rate drops after the warm-up. */
static void test_polynomial_nvidia(void)
{
    struct recipe r = make_recipe(SCHEDULE_POLYNOMIAL_NVIDIA, 11, 0);
    r.schedule.power = 0.5;
    check_rate(&r, 0, 1e-3 / 11);
    check_rate(&r, 10, 1e-3);
    check_rate(&r, 11, 1e-3 * sqrt(1 - 11.0 / 110));
    check_rate(&r, 55, 1e-3 * sqrt(0.5));
    check_rate(&r, 109, 1e-3 * sqrt(1.0 / 110));
    check_rate(&r, 110, 0);
    check_rate(&r, 500, 0);
}

/* The values equal get_inverse_sqrt_schedule in transformers, for the same step. */
static void test_inverse_sqrt(void)
{
    struct recipe r = make_recipe(SCHEDULE_INVERSE_SQRT, 10, 0.1);
    check_rate(&r, 0, 1e-4);
    check_rate(&r, 9, 1e-3);
    check_rate(&r, 10, 1e-3);
    check_rate(&r, 40, 5e-4);
    check_rate(&r, 109, 1e-3 * sqrt(10.0 / 109));
    check_rate(&r, 1000, 1e-4);
    r.schedule.warmup_steps = 0;
    check_rate(&r, 0, 1e-3);
    check_rate(&r, 109, 1e-3 * sqrt(10000.0 / 10109));
    check_rate(&r, 30000, 5e-4);
}

static void test_warmup(void)
{
    struct recipe r = make_recipe(SCHEDULE_COSINE, 0, 0.1);
    CHECK_EQUAL(schedule_warmup_steps(&r, 100), 0);
    CHECK(schedule_learning_rate(&r, 0, 100) == 1e-3);
    r.schedule.warmup_steps = -1;
    r.schedule.warmup_ratio = 0.07;
    CHECK_EQUAL(schedule_warmup_steps(&r, 100), 7);
    CHECK_EQUAL(schedule_warmup_steps(&r, 101), 8);
    r.schedule.warmup_ratio = 1;
    CHECK_EQUAL(schedule_warmup_steps(&r, 100), 100);
    CHECK(schedule_learning_rate(&r, 99, 100) == 1e-3);
    CHECK_NEAR(schedule_learning_rate(&r, 100, 100), 1e-4, 1e-18);
    r.schedule.warmup_ratio = 0;
    CHECK_EQUAL(schedule_warmup_steps(&r, 100), 0);
}

/* The rate rises in the warm-up, does not rise after it, and stays between minimum and maximum. */
static void test_monotonic(void)
{
    for (int name = SCHEDULE_CONSTANT; name <= SCHEDULE_INVERSE_SQRT; name++) {
        for (int64_t warmup = 0; warmup <= 37; warmup += 37) {
            struct recipe r = make_recipe((enum recipe_schedule)name, warmup, 0.05);
            r.schedule.power = 1.5;
            double before = 0;
            for (int64_t step = 0; step < 211; step++) {
                double rate = schedule_learning_rate(&r, step, 211);
                CHECK(rate > 0 && rate <= 1e-3 * (1 + 1e-12));
                CHECK(step < warmup ? rate > before : step == 0 || rate <= before * (1 + 1e-12));
                CHECK(step < warmup || rate >= 5e-5 * (1 - 1e-12));
                before = rate;
            }
        }
    }
}

int main(void)
{
    test_values();
    test_polynomial_nvidia();
    test_inverse_sqrt();
    test_warmup();
    test_monotonic();
    return 0;
}
