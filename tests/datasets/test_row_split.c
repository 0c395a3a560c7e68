/* Tests of the random split: the shares of each label are exact, all rows of a context are in one
 * set, and no row is lost. The results are equal for a seed and for all numbers of workers. */
#include <inttypes.h>

#include "datasets/prepare/prepare.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

enum { ROWS = 211, CONTEXTS = 13, TEXT_BYTES = 1 << 17 };

static struct tokenizer *tokenizer;
static char text[TEXT_BYTES];
static size_t text_bytes;

/* ADD_TEXT - append formatted text to the rows. */
#define ADD_TEXT(...)                                                                              \
    (text_bytes += (size_t)snprintf(text + text_bytes, TEXT_BYTES - text_bytes, __VA_ARGS__))

static char *write_rows(const char *name)
{
    char *path = folder_file(name);
    CHECK(text_bytes < TEXT_BYTES);
    folder_write(path, text, text_bytes);
    text_bytes = 0;
    return path;
}

static struct prepare_options make_options(char *const *input, const char *output, uint64_t seed)
{
    return (struct prepare_options){.tokenizer = tokenizer,
                                    .inputs = input,
                                    .input_count = 1,
                                    .output = folder_file(output),
                                    .shard_tokens = 1000,
                                    .sequence_tokens = 64,
                                    .workers = 2,
                                    .shuffle_split = true,
                                    .split_seed = seed};
}

/* Prepares the rows and returns the number of rows in the validation set. */
static int64_t prepare_labels(char *const *input, const char *output, double fraction,
                              uint64_t seed, struct prepare_label_counts *counts)
{
    struct prepare_report report;
    struct prepare_options o = make_options(input, output, seed);
    o.validation_fraction = fraction;
    o.label_counts = counts;
    CHECK_OK(prepare_classify(&o, &report));
    return report.validation_examples;
}

/* Rows that are sorted by label: many of "a", some of "b", three of "c", two of "d", one of "e". */
static void test_labels(void)
{
    static const int64_t counts_of_rows[] = {120, 85, 3, 2, 1};
    int64_t row = 0;
    for (int label = 0; label < 5; label++) {
        for (int64_t i = 0; i < counts_of_rows[label]; i++, row++) {
            ADD_TEXT("{\"text\": \"row %" PRId64 "\", \"label\": \"%c\"}\n", row, 'a' + label);
        }
    }
    CHECK_EQUAL(row, ROWS);
    char *input = write_rows("labels.jsonl");
    struct prepare_label_counts counts = {0};
    CHECK_EQUAL(prepare_labels(&input, "labels", 0.2, 1, &counts), 43);
    CHECK_EQUAL(counts.count, 5);
    for (int label = 0; label < 5; label++) {
        CHECK_EQUAL(counts.train[label] + counts.validation[label], counts_of_rows[label]);
    }
    CHECK_EQUAL(counts.validation[0], 24);
    CHECK_EQUAL(counts.validation[1], 17);
    CHECK_EQUAL(counts.validation[2], 1); /* at least one of two rows */
    CHECK_EQUAL(counts.validation[3], 1);
    CHECK_EQUAL(counts.validation[4], 0); /* a single row is training data */
    prepare_label_counts_free(&counts);
    CHECK_EQUAL(prepare_labels(&input, "tiny", 0.001, 1, &counts), 4);
    prepare_label_counts_free(&counts);
    CHECK_EQUAL(prepare_labels(&input, "most", 0.999, 1, &counts), 120 + 85 + 3 + 2 - 4);
    prepare_label_counts_free(&counts);
}

static void check_equal_files(const char *a, const char *b, bool equal)
{
    size_t a_bytes, b_bytes;
    char *a_data = folder_read(folder_file(a), &a_bytes);
    char *b_data = folder_read(folder_file(b), &b_bytes);
    CHECK((a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0) == equal);
    free(a_data);
    free(b_data);
}

/* The rows depend on the seed, and on nothing else. */
static void test_seed(void)
{
    for (int64_t i = 0; i < 60; i++) {
        ADD_TEXT("{\"text\": \"row %" PRId64 " of 60\"}\n", i);
    }
    char *input = write_rows("sft.jsonl");
    static const struct {
        const char *output;
        uint64_t seed;
        int workers;
    } runs[] = {{"one", 7, 1}, {"five", 7, 5}, {"other", 8, 1}};
    for (int i = 0; i < 3; i++) {
        struct prepare_report report;
        struct prepare_options o = make_options(&input, runs[i].output, runs[i].seed);
        o.validation_fraction = 0.25;
        o.workers = runs[i].workers;
        o.shard_tokens = 1 << 20;
        CHECK_OK(prepare_sft(&o, &report));
        CHECK_EQUAL(report.train_examples, 45);
        CHECK_EQUAL(report.validation_examples, 15);
    }
    check_equal_files("one/validation-00000-of-00001.h5", "five/validation-00000-of-00001.h5",
                      true);
    check_equal_files("one/train-00000-of-00001.h5", "five/train-00000-of-00001.h5", true);
    check_equal_files("one/validation-00000-of-00001.h5", "other/validation-00000-of-00001.h5",
                      false);
}

/* Marks the contexts of the rows of a set. The context of row i is i % CONTEXTS. */
static void mark_contexts(const char *path, bool seen[CONTEXTS])
{
    struct shard *shard;
    CHECK_OK(shard_open(folder_file(path), &shard));
    for (int64_t i = 0; i < shard_get_header(shard)->documents; i++) {
        uint32_t row;
        CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_ROW, i, 1, &row));
        seen[row % CONTEXTS] = true;
    }
    CHECK_OK(shard_close(&shard));
}

/* No context is in both sets, although its rows are far apart. */
static void test_contexts(void)
{
    bool train[CONTEXTS] = {false}, validation[CONTEXTS] = {false};
    struct prepare_report report;
    for (int64_t i = 0; i < 5 * CONTEXTS; i++) {
        ADD_TEXT("{\"question\": \"row %" PRId64 "\", \"context\": \"row %" PRId64
                 " of rows\", \"answer\": \"row\", \"answer_start\": 0}\n",
                 i, i % CONTEXTS);
    }
    char *input = write_rows("answers.jsonl");
    struct prepare_options o = make_options(&input, "answers", 1);
    o.validation_fraction = 0.3;
    o.shard_tokens = 1 << 20;
    CHECK_OK(prepare_answer(&o, &report));
    CHECK_EQUAL(report.validation_examples, 20); /* of 4 contexts: at least 19.5 rows */
    CHECK_EQUAL(report.train_examples, 45);
    mark_contexts("answers/train-00000-of-00001.h5", train);
    mark_contexts("answers/validation-00000-of-00001.h5", validation);
    for (int i = 0; i < CONTEXTS; i++) {
        CHECK(train[i] != validation[i]);
    }
    for (int64_t i = 0; i < 4; i++) {
        ADD_TEXT("{\"question\": \"row %" PRId64 "\", \"context\": \"row\", \"answer\": \"row\", "
                 "\"answer_start\": 0}\n",
                 i);
    }
    input = write_rows("context.jsonl");
    o.inputs = &input;
    CHECK_FAILS(prepare_answer(&o, &report), STATUS_DATA, "all rows have the same context");
}

/* Either all rows have a second text, or none. */
static void test_pairs(void)
{
    static const char *const rows[] = {"{\"text\": \"row\", \"label\": 1, \"text_pair\": \"of\"}\n",
                                       "{\"text\": \"row\", \"label\": 0, \"text_pair\": null}\n"};
    struct prepare_report report;
    for (int first = 0; first < 2; first++) {
        text_bytes = (size_t)snprintf(text, TEXT_BYTES, "%s%s", rows[first], rows[1 - first]);
        char *input = write_rows("pairs.jsonl");
        struct prepare_options o = make_options(&input, "pairs", 1);
        CHECK_FAILS(prepare_classify(&o, &report), STATUS_DATA,
                    first == 0 ? "pairs.jsonl:2: the row has no field 'text_pair', but the first "
                                 "row has it"
                               : "the row has the field 'text_pair', but the first row has none");
        CHECK_FAILS(prepare_regress(&o, &report), STATUS_DATA, "text_pair");
        o.skip_bad_rows = true;
        CHECK_OK(prepare_regress(&o, &report));
        CHECK(report.examples == 1 && report.bad_rows == 1);
    }
}

int main(void)
{
    folder_make();
    char *words = folder_file("text");
    folder_write(words, "row 0123456789 of rows\n", 23);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 270, &words, 1, 1, &tokenizer));
    test_labels();
    test_seed();
    test_contexts();
    test_pairs();
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
