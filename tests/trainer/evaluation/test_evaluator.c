/* Compares metrics of examples divided among the ranks with metrics of all examples on one rank.
 * ctest: ranks 3 */
#include <jansson.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/shard/example.h"
#include "tests/check.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/evaluation/scores.h"
#include "trainer/evaluation/squad.h"
#include "trainer/logging/tensorboard.h"

enum { EXAMPLES = 101, LABELS = 4, WORDS_MAX = 3 };

static struct comm *world;

/* Labels and outputs depend only on the example, so that each rank can compute all of them. */
static int count_words(int example)
{
    return 1 + example % WORDS_MAX;
}

static int32_t true_label(int example, int word)
{
    return example % 7 == 3 ? -100 : (example * 3 + word) % (LABELS - 1);
}

static int32_t predicted_label(int example, int word)
{
    return example % 5 == 0 ? (example + word) % LABELS : (example * 3 + word) % (LABELS - 1);
}

static double label_number(int example)
{
    return example * 17 % 23; /* some values are equal */
}

static double output_number(int example)
{
    return label_number(example) + example % 4;
}

static double find_field(const struct metric *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return fields[i].kind == METRIC_INTEGER ? (double)fields[i].integer : fields[i].number;
        }
    }
    fprintf(stderr, "no field %s\n", name);
    exit(1);
}

/* The first rank has more examples than the others. The result must not depend on the division. */
static bool is_mine(int example)
{
    int ranks = comm_size(world), owner = example % (ranks + 1);
    return (owner < ranks ? owner : 0) == comm_rank(world);
}

static void add_words(const struct objective_sink *sink, int example)
{
    float outputs[WORDS_MAX][LABELS];
    int32_t labels[WORDS_MAX];
    for (int w = 0; w < count_words(example); w++) {
        labels[w] = true_label(example, w);
        for (int l = 0; l < LABELS; l++) {
            outputs[w][l] = l == predicted_label(example, w) ? 2.0F : (float)l / LABELS;
        }
    }
    struct objective_example e = {.sample = example,
                                  .rows = count_words(example),
                                  .columns = LABELS,
                                  .outputs = outputs[0],
                                  .labels = labels};
    CHECK_OK(sink->consume(sink->user, &e));
}

/* Compares the rows, columns and the diagonal with the counts of each label. */
static void check_matrix(const struct metric *field, const struct scores_class each[LABELS])
{
    int64_t rows[LABELS] = {0}, columns[LABELS] = {0};
    CHECK(field->kind == METRIC_JSON && strcmp(field->name, "confusion_matrix") == 0);
    json_t *matrix = json_loads(field->text, 0, NULL);
    CHECK(json_array_size(matrix) == LABELS);
    for (size_t i = 0; i < LABELS; i++) {
        CHECK(json_array_size(json_array_get(matrix, i)) == LABELS);
        for (size_t j = 0; j < LABELS; j++) {
            int64_t cell = json_integer_value(json_array_get(json_array_get(matrix, i), j));
            rows[i] += cell;
            columns[j] += cell;
            CHECK(i != j || cell == each[i].correct);
        }
    }
    for (size_t i = 0; i < LABELS; i++) {
        CHECK(rows[i] == each[i].support && columns[i] == each[i].predicted);
    }
    json_decref(matrix);
}

static void check_words(struct evaluator *evaluator)
{
    struct metric fields[EVALUATOR_FIELDS];
    struct scores_class each[LABELS] = {{0}};
    struct scores_summary all;
    const struct objective_sink *sink = evaluator_sink(evaluator);
    evaluator_begin(evaluator);
    for (int i = EXAMPLES - 1; i >= 0; i--) {
        for (int w = 0; w < count_words(i); w++) {
            scores_count(each, predicted_label(i, w), true_label(i, w));
        }
        if (is_mine(i)) {
            add_words(sink, i);
        }
    }
    scores_average(each, LABELS, &all);
    CHECK_OK(evaluator_end(evaluator, world));
    int count = evaluator_fields(evaluator, fields);
    CHECK(count == 7 + 4 * LABELS + 1 && count <= EVALUATOR_FIELDS);
    check_matrix(&fields[count - 1], each);
    for (int i = 0; i < count; i++) {
        json_t *name = json_string(fields[i].name); /* NULL: not UTF-8 */
        CHECK(name != NULL);
        CHECK(strlen("evaluate/") + strlen(fields[i].name) < TENSORBOARD_TAG_BYTES);
        json_decref(name);
    }
    CHECK(all.macro.f1 > 0.5 && all.macro.f1 < 1);
    CHECK(find_field(fields, count, "f1_macro") == all.macro.f1);
    CHECK(find_field(fields, count, "f1_weighted") == all.weighted.f1);
    CHECK(find_field(fields, count, "f1_micro") == all.accuracy);
    CHECK(find_field(fields, count, "recall_macro") == all.macro.recall);
    CHECK(find_field(fields, count, "precision.b_c") == each[1].score.precision);
    CHECK(find_field(fields, count, "f1.d") == each[3].score.f1);
    CHECK(find_field(fields, count, "support.a") == (double)each[0].support);
}

static void check_numbers(struct evaluator *evaluator)
{
    struct metric fields[EVALUATOR_FIELDS];
    double x[EXAMPLES], y[EXAMPLES], spearman;
    const struct objective_sink *sink = evaluator_sink(evaluator);
    evaluator_begin(evaluator);
    for (int i = EXAMPLES - 1; i >= 0; i--) {
        float output = (float)(x[i] = output_number(i)), number = (float)(y[i] = label_number(i));
        struct objective_example e = {
            .sample = i, .rows = 1, .columns = 1, .outputs = &output, .numbers = &number};
        if (is_mine(i)) {
            CHECK_OK(sink->consume(sink->user, &e));
        }
    }
    CHECK_OK(evaluator_end(evaluator, world));
    int count = evaluator_fields(evaluator, fields);
    CHECK(count == 2 && find_field(fields, count, "pearson") == scores_pearson(x, y, EXAMPLES));
    CHECK_OK(scores_spearman(x, y, EXAMPLES, &spearman));
    CHECK(find_field(fields, count, "spearman") == spearman && spearman > 0.5 && spearman < 1);
}

/* ---- windows of question answering ---- */

enum { CLS = 2, SEP = 3, BLANK = EXAMPLE_AFTER_SPACE, WINDOW_TOKENS = 9 };

static const char vocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwhat\nin\njune\n1845\nthe\nu\n.\ns\n##er\n";

/* One window: its best span [first, last] with this score, and the score of "no answer". */
struct window {
    int32_t row, count, first, last;
    float score, no_answer;
    int32_t tokens[WINDOW_TOKENS], marks[WINDOW_TOKENS];
};

/* Row 0 has two windows; "in June 1845" and "June 1845" are correct. The second window contains a
 * part of both and predicts "1845", so that F1 is 2/3. Row 1 has no answer, and "no answer" is
 * predicted by a margin of 0.5. In row 2 "U.S. ser" is correct and "U.S." is predicted. The words
 * are "us", "ser" and "us", so that F1 is 2/3. With a blank between all pieces it would be 6/7. */
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

static void add_window(struct squad *w, int index)
{
    const struct window *one = &windows[index];
    float outputs[WINDOW_TOKENS][2];
    for (int i = 0; i < one->count; i++) {
        outputs[i][0] = outputs[i][1] = -20;
    }
    outputs[0][0] = one->no_answer;
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
    for (int round = 0; round < 2; round++) { /* squad_clear removes all windows */
        squad_clear(w);
        for (int i = COUNT(windows) - 1; i >= 0; i--) {
            if (is_mine(i)) {
                add_window(w, i);
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
    check_windows(t, 0.6, 0, 4.0 / 9);        /* the margin 0.5 is below the threshold */
    check_windows(t, -100, 1.0 / 3, 1.0 / 3); /* "no answer" is predicted for all rows */
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(file_remove_tree(folder));
}

int main(int argc, char **argv)
{
    char longest[200] = ""; /* more than a field name can hold */
    const char *texts[LABELS] = {"a", "b.c", longest, "d"};
    for (size_t i = 0; i + 2 < sizeof longest; i += 2) {
        memcpy(longest + i, "é", 3);
    }
    struct labels names = {.count = LABELS, .names = texts}, no_labels = {0};
    struct evaluator *evaluator;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(evaluator_create(OBJECTIVE_CLM, &no_labels, NULL, 0, &evaluator));
    CHECK(evaluator == NULL && evaluator_sink(evaluator) == NULL &&
          evaluator_fields(evaluator, NULL) == 0);
    evaluator_begin(evaluator);
    CHECK_OK(evaluator_end(evaluator, world));
    CHECK_OK(evaluator_create(OBJECTIVE_CLASSIFY_TOKENS, &names, NULL, 0, &evaluator));
    check_words(evaluator);
    check_words(evaluator); /* evaluator_begin removes all examples */
    evaluator_destroy(&evaluator);
    CHECK_OK(evaluator_create(OBJECTIVE_REGRESS, &no_labels, NULL, 0, &evaluator));
    evaluator_begin(evaluator);
    CHECK_OK(evaluator_end(evaluator, world)); /* no rank has an example */
    check_numbers(evaluator);
    check_numbers(evaluator);
    evaluator_destroy(&evaluator);
    test_windows();
    CHECK_OK(comm_destroy(&world));
    return 0;
}
