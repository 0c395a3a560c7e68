/* Metrics of examples that the ranks have between them, against those of all examples in one place. */

#include "base/file.h"
#include "datasets/shard/example.h"
#include "tests/check.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/evaluation/scores.h"
#include "trainer/evaluation/squad.h"

enum { EXAMPLES = 101, LABELS = 4, WORDS_MOST = 3 };

static struct comm *world;

/* Pure functions of the example, so that each rank knows all. */
static int words_of(int example)
{
    return 1 + example % WORDS_MOST;
}

static int32_t label_of(int example, int word)
{
    return example % 7 == 3 ? -100 : (example * 3 + word) % (LABELS - 1);
}

static int32_t said_of(int example, int word)
{
    return example % 5 == 0 ? (example + word) % LABELS : (example * 3 + word) % (LABELS - 1);
}

static double number_of(int example)
{
    return example * 17 % 23; /* with ties */
}

static double guess_of(int example)
{
    return number_of(example) + example % 4;
}

static double field(const struct metric *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return fields[i].kind == METRIC_INTEGER ? (double)fields[i].integer : fields[i].number;
        }
    }
    fprintf(stderr, "no field %s\n", name);
    exit(1);
}

/* From the last to the first, and the first rank with more than its share: only the numbers count. */
static bool is_mine(int example)
{
    int ranks = comm_size(world), owner = example % (ranks + 1);
    return (owner < ranks ? owner : 0) == comm_rank(world);
}

static void take_words(const struct objective_sink *sink, int example)
{
    float outputs[WORDS_MOST][LABELS];
    int32_t labels[WORDS_MOST];
    for (int w = 0; w < words_of(example); w++) {
        labels[w] = label_of(example, w);
        for (int l = 0; l < LABELS; l++) {
            outputs[w][l] = l == said_of(example, w) ? 2.0F : (float)l / LABELS;
        }
    }
    struct objective_example e = {.sample = example,
                                  .rows = words_of(example),
                                  .columns = LABELS,
                                  .outputs = outputs[0],
                                  .labels = labels};
    CHECK_OK(sink->consume(sink->user, &e));
}

static void check_words(struct evaluator *g)
{
    struct metric fields[EVALUATOR_FIELDS];
    struct scores_class each[LABELS] = {{0}};
    struct scores_summary all;
    const struct objective_sink *sink = evaluator_sink(g);
    evaluator_begin(g);
    for (int i = EXAMPLES - 1; i >= 0; i--) {
        for (int w = 0; w < words_of(i); w++) {
            scores_count(each, said_of(i, w), label_of(i, w));
        }
        if (is_mine(i)) {
            take_words(sink, i);
        }
    }
    scores_average(each, LABELS, &all);
    CHECK_OK(evaluator_end(g, world));
    int count = evaluator_fields(g, fields);
    CHECK(count == 7 + 4 * LABELS && count <= EVALUATOR_FIELDS);
    CHECK(all.macro.f1 > 0.5 && all.macro.f1 < 1);
    CHECK(field(fields, count, "f1_macro") == all.macro.f1);
    CHECK(field(fields, count, "f1_weighted") == all.weighted.f1);
    CHECK(field(fields, count, "f1_micro") == all.accuracy);
    CHECK(field(fields, count, "recall_macro") == all.macro.recall);
    CHECK(field(fields, count, "precision.b_c") == each[1].score.precision);
    CHECK(field(fields, count, "f1.d") == each[3].score.f1);
    CHECK(field(fields, count, "support.a") == (double)each[0].support);
}

static void check_numbers(struct evaluator *g)
{
    struct metric fields[EVALUATOR_FIELDS];
    double x[EXAMPLES], y[EXAMPLES], spearman;
    const struct objective_sink *sink = evaluator_sink(g);
    evaluator_begin(g);
    for (int i = EXAMPLES - 1; i >= 0; i--) {
        float said = (float)(x[i] = guess_of(i)), right = (float)(y[i] = number_of(i));
        struct objective_example e = {
            .sample = i, .rows = 1, .columns = 1, .outputs = &said, .numbers = &right};
        if (is_mine(i)) {
            CHECK_OK(sink->consume(sink->user, &e));
        }
    }
    CHECK_OK(evaluator_end(g, world));
    int count = evaluator_fields(g, fields);
    CHECK(count == 2 && field(fields, count, "pearson") == scores_pearson(x, y, EXAMPLES));
    CHECK_OK(scores_spearman(x, y, EXAMPLES, &spearman));
    CHECK(field(fields, count, "spearman") == spearman && spearman > 0.5 && spearman < 1);
}

/* ---- answers in windows ---- */

enum { CLS = 2, SEP = 3, BLANK = EXAMPLE_AFTER_SPACE, WINDOW_TOKENS = 9 };

static const char vocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwhat\nin\njune\n1845\nthe\nu\n.\ns\n##er\n";

/* One window: what it says best, and how much better than none. */
struct window {
    int32_t row, count, first, last;
    float score, none;
    int32_t tokens[WINDOW_TOKENS], marks[WINDOW_TOKENS];
};

/* Row 0, in two windows: "in June 1845" and "June 1845" are right, and the second window, which has a part of both, says
 * "1845": F1 2/3. Row 1 has no answer, and says so by 0.5. Row 2: "U.S. s er" is right and "U.S." is said: words "us", "ser"
 * and "us", F1 2/3; with a blank between all pieces it would be 6/7. */
static const struct window windows[] = {
    {0, 7, 3, 3, 1, 0, {CLS, 5, SEP, 6, 7, 8, SEP}, {0, 0, 0, 1, BLANK | 3, BLANK | 3, 0}},
    {0, 7, 3, 3, 5, 4, {CLS, 5, SEP, 8, 9, 5, SEP}, {0, 0, 0, 3, BLANK, BLANK, 0}},
    {1, 5, 3, 3, 0.5, 1, {CLS, 5, SEP, 5, SEP}, {0}},
    {2,
     9,
     3,
     6,
     2,
     1,
     {CLS, SEP, SEP, 10, 11, 12, 11, 12, 13},
     {0, 0, 0, 1, 1, 1, 1, BLANK | 1, 1}},
};

static void take_window(struct squad *w, int index)
{
    const struct window *one = &windows[index];
    float outputs[WINDOW_TOKENS][2];
    for (int i = 0; i < one->count; i++) {
        outputs[i][0] = outputs[i][1] = -20;
    }
    outputs[0][0] = one->none;
    outputs[0][1] = 0;
    outputs[one->first][0] = one->score;
    outputs[one->last][1] = 0;
    struct objective_example e = {.sample = 10 + index,
                                  .rows = one->count,
                                  .columns = 2,
                                  .outputs = outputs[0],
                                  .tokens = one->tokens,
                                  .token_count = one->count,
                                  .token_flags = one->marks,
                                  .row = one->row};
    CHECK_OK(squad_add_window(w, &e));
}

static void check_windows(const struct tokenizer *t, double threshold, double exact, double f1)
{
    struct squad *w;
    struct scores_answer mean;
    CHECK_OK(squad_create(t, threshold, &w));
    for (int round = 0; round < 2; round++) { /* an evaluation begins anew */
        squad_clear(w);
        for (int i = (int)(sizeof windows / sizeof *windows) - 1; i >= 0; i--) {
            if (is_mine(i)) {
                take_window(w, i);
            }
        }
        CHECK_OK(squad_mean(w, world, &mean));
        CHECK_NEAR(mean.exact_match, exact, 1e-12);
        CHECK_NEAR(mean.f1, f1, 1e-12);
    }
    squad_destroy(&w);
}

static void test_windows(void)
{
    char folder[] = "/tmp/bireme-windows-XXXXXX", path[FILE_PATH_BYTES];
    struct tokenizer *t = NULL;
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(file_join(path, folder, "vocab.txt"));
    CHECK_OK(file_write(path, vocabulary, sizeof vocabulary - 1));
    CHECK_OK(tokenizer_open(folder, &t));
    check_windows(t, 0, 1.0 / 3, 7.0 / 9);
    check_windows(t, 0.6, 0, 4.0 / 9);        /* 0.5 is not enough for none */
    check_windows(t, -100, 1.0 / 3, 1.0 / 3); /* nothing has an answer */
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(file_remove_tree(folder));
}

int main(int argc, char **argv)
{
    const char *texts[LABELS] = {"a", "b.c", "c", "d"};
    struct labels names = {.count = LABELS, .names = texts}, none = {0};
    struct evaluator *g;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(evaluator_create(OBJECTIVE_CLM, &none, NULL, 0, &g));
    CHECK(g == NULL && evaluator_sink(g) == NULL && evaluator_fields(g, NULL) == 0);
    evaluator_begin(g);
    CHECK_OK(evaluator_end(g, world));
    CHECK_OK(evaluator_create(OBJECTIVE_CLASSIFY_TOKENS, &names, NULL, 0, &g));
    check_words(g);
    check_words(g); /* an evaluation begins anew */
    evaluator_destroy(&g);
    CHECK_OK(evaluator_create(OBJECTIVE_REGRESS, &none, NULL, 0, &g));
    check_numbers(g);
    check_numbers(g);
    evaluator_destroy(&g);
    test_windows();
    CHECK_OK(comm_destroy(&world));
    return 0;
}
