/* Which evaluation is the best, when patience ends, and the same again from the lines of metrics.jsonl. */
#include <unistd.h>

#include "tests/check.h"
#include "trainer/evaluation/early_stopping.h"
#include "trainer/logging/metrics.h"

static const struct early_stopping_rule falls = {.metric = "loss", .patience = 2};
static const struct early_stopping_rule rises = {
    .metric = "f1", .greater_is_better = true, .patience = 3};

static void check_falling(void)
{
    struct early_stopping b = {0};
    CHECK(!early_stopping_update(&falls, &b, 0,
                                 0.5)); /* before the first step there is nothing to keep */
    CHECK(!b.has_value && b.patience_counter == 0);
    CHECK(early_stopping_update(&falls, &b, 10, 3));
    CHECK(!early_stopping_update(&falls, &b, 20, 3) &&
          b.patience_counter == 1); /* equal is no better */
    CHECK(early_stopping_update(&falls, &b, 30, 2) && b.patience_counter == 0);
    CHECK(!early_stopping_update(&falls, &b, 40, NAN) && !early_stopping_should_stop(&falls, &b));
    CHECK(!early_stopping_update(&falls, &b, 50, 2.5) && early_stopping_should_stop(&falls, &b));
    CHECK(b.step == 30 && b.value == 2 && b.patience_counter == 2);
    CHECK(!early_stopping_should_stop(&(struct early_stopping_rule){.metric = "loss"},
                                      &b)); /* without patience never */
}

static void check_rising(void)
{
    struct early_stopping b = {0};
    struct early_stopping_rule slow = rises;
    slow.min_improvement = 0.1;
    CHECK(!early_stopping_update(&slow, &b, 1, NAN) && !b.has_value && b.patience_counter == 1);
    CHECK(early_stopping_update(&slow, &b, 2, 0.5) && b.patience_counter == 0);
    CHECK(early_stopping_update(&slow, &b, 3, 0.55) &&
          b.patience_counter == 1); /* better, but not by enough */
    CHECK(early_stopping_update(&slow, &b, 4, 0.7) && b.patience_counter == 0);
    CHECK(b.step == 4 && b.value == 0.7);
}

static void write_line(struct metrics *m, int64_t step, double loss)
{
    const struct metric fields[] = {metric_number("loss", loss)};
    CHECK_OK(metrics_write(m, "train", step, &(struct metric){.name = "loss"}, 1));
    CHECK_OK(metrics_write(m, "evaluate", step, fields, 1));
}

static void check_recalled(void)
{
    char path[] = "/tmp/test_best_XXXXXX";
    struct metrics *m = NULL;
    struct early_stopping noted = {0}, recalled;
    const double losses[] = {9, 4.1, 1.0 / 3, 0.5, NAN, 7};
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK_OK(metrics_open(path, -1, &m));
    for (int i = 0; i < 6; i++) {
        write_line(m, 10 * i, losses[i]);
        if (i < 5) {
            (void)early_stopping_update(&falls, &noted, 10 * i, losses[i]);
        }
    }
    CHECK_OK(metrics_close(&m));
    CHECK_OK(early_stopping_restore(&falls, path, 40, &recalled));
    CHECK(recalled.has_value && recalled.step == 20 && recalled.value == 1.0 / 3);
    CHECK(recalled.step == noted.step && recalled.value == noted.value);
    CHECK_EQUAL(recalled.patience_counter, noted.patience_counter);
    CHECK_OK(early_stopping_restore(&rises, path, 50, &recalled)); /* lines without that number */
    CHECK(!recalled.has_value && recalled.patience_counter == 5);
    CHECK(unlink(path) == 0);
    CHECK_OK(early_stopping_restore(&falls, path, 40, &recalled));
    CHECK(!recalled.has_value && recalled.patience_counter == 0);
}

int main(void)
{
    check_falling();
    check_rising();
    check_recalled();
    return 0;
}
