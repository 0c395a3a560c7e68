/* Tests of row workers: the output does not depend on the number of threads. The first of several
 * bad rows is reported, whether it is invalid JSON or not usable. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "datasets/prepare/prepare.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

enum { ROWS = 700, ROW_BYTES = 5 << 10, LONG_TEXT = 4000 };

typedef status (*prepare_function)(const struct prepare_options *options,
                                   struct prepare_report *out);

static struct tokenizer *tokenizer;
static char rows[ROWS * ROW_BYTES];

/* Writes a row that prepare_sft and prepare_preferences accept. One of 50 rows is long. */
static size_t write_row(char *out, int i)
{
    static char text[LONG_TEXT + 1];
    uint64_t key = random_key(7, RANDOM_TEST, 0, 0);
    uint64_t letters = i % 50 == 7 ? LONG_TEXT : 1 + random_below(key, (uint64_t)i, 40);
    for (uint64_t k = 0; k < letters; k++) {
        text[k] = "the user's list"[(k + (uint64_t)i) % 15];
    }
    text[letters] = '\0';
    return (size_t)snprintf(
        out, ROW_BYTES,
        "{\"prompt\": \"of %s\", \"completion\": \"a %d\", \"chosen\": \"c%d\", "
        "\"rejected\": \"r%d\"}\n",
        text, i, i, i + 1);
}

/* Writes all rows, with bad rows at these two lines (from 1; 0: none). */
static char *write_rows(int unusable, int unreadable)
{
    char *path = folder_file("rows.jsonl");
    size_t bytes = 0;
    for (int i = 0; i < ROWS; i++) {
        if (i + 1 == unusable || i + 1 == unreadable) {
            const char *bad_row = i + 1 == unusable ? "{\"prompt\": \"a\"}\n" : "{\"prompt\": \n";
            memcpy(rows + bytes, bad_row, strlen(bad_row));
            bytes += strlen(bad_row);
        } else {
            bytes += write_row(rows + bytes, i);
        }
    }
    folder_write(path, rows, bytes);
    return path;
}

static status prepare_shards(prepare_function function, char *input, int workers, bool skip,
                             struct prepare_report *report)
{
    const struct prepare_options o = {.tokenizer = tokenizer,
                                      .inputs = &input,
                                      .input_count = 1,
                                      .output = folder_file("shards"),
                                      .validation_fraction = 0.1,
                                      .shard_tokens = 1 << 20,
                                      .sequence_tokens = 4096,
                                      .workers = workers,
                                      .skip_bad_rows = skip};
    return function(&o, report);
}

static void test_same_bytes(prepare_function function)
{
    static const char *const names[] = {"shards/train-00000-of-00001.h5",
                                        "shards/validation-00000-of-00001.h5"};
    char *first[2] = {NULL, NULL};
    size_t bytes[2] = {0};
    struct prepare_report expected = {0};
    char *input = write_rows(0, 0);
    for (int workers = 1; workers <= 9; workers += 4) {
        struct prepare_report report;
        CHECK_OK(prepare_shards(function, input, workers, false, &report));
        expected = workers == 1 ? report : expected;
        CHECK(report.examples == ROWS && report.longest_tokens == expected.longest_tokens &&
              report.learned_tokens == expected.learned_tokens &&
              report.overlong_rows == expected.overlong_rows);
        for (int i = 0; i < 2; i++) {
            size_t count;
            char *data = folder_read(folder_file(names[i]), &count);
            if (workers == 1) {
                first[i] = data;
                bytes[i] = count;
                continue;
            }
            CHECK(count == bytes[i] && memcmp(data, first[i], count) == 0);
            free(data);
        }
    }
    free(first[0]);
    free(first[1]);
}

static void test_first_bad_row(prepare_function function)
{
    static const int bad_lines[][2] = {{333, 334}, {334, 333}, {1, 700}, {700, 1}, {64, 31}};
    for (int i = 0; i < COUNT(bad_lines); i++) {
        char *input = write_rows(bad_lines[i][0], bad_lines[i][1]);
        char location[64];
        int first = bad_lines[i][0] < bad_lines[i][1] ? bad_lines[i][0] : bad_lines[i][1];
        snprintf(location, sizeof location, "rows.jsonl:%d: ", first);
        for (int workers = 1; workers <= 5; workers += 4) {
            struct prepare_report report;
            CHECK_FAILS(prepare_shards(function, input, workers, false, &report), STATUS_DATA,
                        location);
            CHECK_OK(prepare_shards(function, input, workers, true, &report));
            CHECK(report.bad_rows == 2 && report.examples == ROWS - 2);
        }
    }
}

int main(void)
{
    static const prepare_function functions[] = {prepare_sft, prepare_preferences};
    folder_make();
    log_quiet(true);
    char *text = folder_file("text");
    folder_write(text, "the list of files and the user", 30);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 270, &text, 1, 1, &tokenizer));
    for (int i = 0; i < 2; i++) {
        test_same_bytes(functions[i]);
        test_first_bad_row(functions[i]);
    }
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
