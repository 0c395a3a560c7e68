/* Which evaluation is the best, when patience ends, and the same again from the lines of metrics.jsonl. */
#include <unistd.h>

#include "tests/check.h"
#include "trainer/evaluation/early_stopping.h"
#include "trainer/logging/metric.h"

static const struct best_rule falls = {.metric = "loss", .patience = 2};
static const struct best_rule rises = {.metric = "f1", .greater = true, .patience = 3};

static void check_falling(void)
{
    struct best b = {0};
    CHECK(!best_note(&falls, &b, 0, 0.5)); /* before the first step there is nothing to keep */
    CHECK(!b.known && b.waited == 0);
    CHECK(best_note(&falls, &b, 10, 3));
    CHECK(!best_note(&falls, &b, 20, 3) && b.waited == 1); /* equal is no better */
    CHECK(best_note(&falls, &b, 30, 2) && b.waited == 0);
    CHECK(!best_note(&falls, &b, 40, NAN) && !best_is_over(&falls, &b));
    CHECK(!best_note(&falls, &b, 50, 2.5) && best_is_over(&falls, &b));
    CHECK(b.step == 30 && b.value == 2 && b.waited == 2);
    CHECK(!best_is_over(&(struct best_rule){.metric = "loss"}, &b)); /* without patience never */
}

static void check_rising(void)
{
    struct best b = {0};
    struct best_rule slow = rises;
    slow.improvement = 0.1;
    CHECK(!best_note(&slow, &b, 1, NAN) && !b.known && b.waited == 1);
    CHECK(best_note(&slow, &b, 2, 0.5) && b.waited == 0);
    CHECK(best_note(&slow, &b, 3, 0.55) && b.waited == 1); /* better, but not by enough */
    CHECK(best_note(&slow, &b, 4, 0.7) && b.waited == 0);
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
    struct best noted = {0}, recalled;
    const double losses[] = {9, 4.1, 1.0 / 3, 0.5, NAN, 7};
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK_OK(metrics_open(path, -1, &m));
    for (int i = 0; i < 6; i++) {
        write_line(m, 10 * i, losses[i]);
        if (i < 5) {
            (void)best_note(&falls, &noted, 10 * i, losses[i]);
        }
    }
    CHECK_OK(metrics_close(&m));
    CHECK_OK(best_recall(&falls, path, 40, &recalled));
    CHECK(recalled.known && recalled.step == 20 && recalled.value == 1.0 / 3);
    CHECK(recalled.step == noted.step && recalled.value == noted.value);
    CHECK_EQUAL(recalled.waited, noted.waited);
    CHECK_OK(best_recall(&rises, path, 50, &recalled)); /* lines without that number */
    CHECK(!recalled.known && recalled.waited == 5);
    CHECK(unlink(path) == 0);
    CHECK_OK(best_recall(&falls, path, 40, &recalled));
    CHECK(!recalled.known && recalled.waited == 0);
}

int main(void)
{
    check_falling();
    check_rising();
    check_recalled();
    return 0;
}
