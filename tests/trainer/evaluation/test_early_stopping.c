/* Selection of the best evaluation, patience, and the same state restored from metrics.jsonl. */
#include <unistd.h>

#include "tests/check.h"
#include "trainer/evaluation/early_stopping.h"
#include "trainer/logging/metrics.h"

static const struct early_stopping_rule falling = {.metric = "loss", .patience = 2};
static const struct early_stopping_rule rising = {
    .metric = "f1", .greater_is_better = true, .patience = 3};

static void check_falling(void)
{
    struct early_stopping e = {0};
    /* The evaluation before the first step does not count. */
    CHECK(!early_stopping_update(&falling, &e, 0, 0.5));
    CHECK(!e.has_value && e.patience_counter == 0);
    CHECK(early_stopping_update(&falling, &e, 10, 3));
    /* An equal value is no improvement. */
    CHECK(!early_stopping_update(&falling, &e, 20, 3) && e.patience_counter == 1);
    CHECK(early_stopping_update(&falling, &e, 30, 2) && e.patience_counter == 0);
    CHECK(!early_stopping_update(&falling, &e, 40, NAN) &&
          !early_stopping_should_stop(&falling, &e));
    CHECK(!early_stopping_update(&falling, &e, 50, 2.5) &&
          early_stopping_should_stop(&falling, &e));
    CHECK(e.step == 30 && e.value == 2 && e.patience_counter == 2);
    const struct early_stopping_rule without_patience = {.metric = "loss"};
    CHECK(!early_stopping_should_stop(&without_patience, &e));
}

static void check_rising(void)
{
    struct early_stopping e = {0};
    struct early_stopping_rule with_minimum = rising;
    with_minimum.min_improvement = 0.1;
    CHECK(!early_stopping_update(&with_minimum, &e, 1, NAN) && !e.has_value &&
          e.patience_counter == 1);
    CHECK(early_stopping_update(&with_minimum, &e, 2, 0.5) && e.patience_counter == 0);
    /* A new best value, but the improvement is below min_improvement. */
    CHECK(early_stopping_update(&with_minimum, &e, 3, 0.55) && e.patience_counter == 1);
    CHECK(early_stopping_update(&with_minimum, &e, 4, 0.7) && e.patience_counter == 0);
    CHECK(e.step == 4 && e.value == 0.7);
}

static void write_line(struct metrics *m, int64_t step, double loss)
{
    const struct metric fields[] = {metric_number("loss", loss)};
    CHECK_OK(metrics_write(m, "train", step, &(struct metric){.name = "loss"}, 1));
    CHECK_OK(metrics_write(m, "evaluate", step, fields, 1));
}

static void check_restored(void)
{
    char path[] = "/tmp/test_early_stopping_XXXXXX";
    struct metrics *m = NULL;
    struct early_stopping expected = {0}, restored;
    const double losses[] = {9, 4.1, 1.0 / 3, 0.5, NAN, 7};
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK_OK(metrics_open(path, -1, 0, &m));
    for (int i = 0; i < 6; i++) {
        write_line(m, 10 * i, losses[i]);
        if (i < 5) {
            (void)early_stopping_update(&falling, &expected, 10 * i, losses[i]);
        }
    }
    CHECK_OK(metrics_close(&m));
    CHECK_OK(early_stopping_restore(&falling, path, 40, &restored));
    CHECK(restored.has_value && restored.step == 20 && restored.value == 1.0 / 3);
    CHECK(restored.step == expected.step && restored.value == expected.value);
    CHECK_EQUAL(restored.patience_counter, expected.patience_counter);
    CHECK_OK(early_stopping_restore(&rising, path, 50, &restored)); /* lines without f1 */
    CHECK(!restored.has_value && restored.patience_counter == 5);
    CHECK(unlink(path) == 0);
    CHECK_OK(early_stopping_restore(&falling, path, 40, &restored));
    CHECK(!restored.has_value && restored.patience_counter == 0);
}

int main(void)
{
    check_falling();
    check_rising();
    check_restored();
    return 0;
}
