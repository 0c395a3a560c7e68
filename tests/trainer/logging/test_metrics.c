/* metrics.jsonl: values are read back exactly, all lines are complete, and the file of a resumed
 * run has the steps of one uninterrupted run. Also tests the signals that stop a run. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/logging/metrics.h"
#include "trainer/setup/stop_signal.h"

static char path[128];
static json_t *lines[64];
static int line_count;

static void read_lines(void)
{
    char *text = NULL;
    size_t bytes = 0;
    for (int i = 0; i < line_count; i++) {
        json_decref(lines[i]);
    }
    line_count = 0;
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
    CHECK(bytes == 0 || text[bytes - 1] == '\n');
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        CHECK(line_count < 64);
        lines[line_count] = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, NULL);
        CHECK(json_is_object(lines[line_count]));
        CHECK(json_is_real(json_object_get(lines[line_count], "time")));
        line_count++;
    }
    free(text);
}

static json_t *get_field(int line, const char *name)
{
    CHECK(line < line_count);
    json_t *value = json_object_get(lines[line], name);
    CHECK(value != NULL);
    return value;
}

static void test_values(void)
{
    static const double numbers[] = {0.1,  1.0 / 3.0, 6.02214076e23, 5e-324,
                                     -0.0, 1e300,     3.0,           0x1.fffffffffffffp-1};
    enum { NUMBERS = COUNT(numbers) };
    struct metrics *m = NULL;
    CHECK_OK(metrics_open(path, -1, 0, &m));
    for (int i = 0; i < NUMBERS; i++) {
        struct metric loss = metric_number("loss", numbers[i]);
        CHECK_OK(metrics_write(m, "train", i, &loss, 1));
    }
    struct metric fields[] = {metric_number("nan", NAN),
                              metric_number("inf", -INFINITY),
                              metric_integer("tokens", INT64_MAX),
                              metric_text("text", "a\n\"\xc3\xa4"),
                              metric_null("mfu"),
                              metric_integer("bytes.weights", 7),
                              metric_integer("bytes.buffers", 8)};
    CHECK_OK(metrics_write(m, "start", 99, fields, COUNT(fields)));
    struct metric wrong = metric_text("text", "/a\xff\xfe");
    CHECK_OK(metrics_write(m, "warning", 99, &wrong, 1));
    /* a character, the beginning of one, ASCII, and a cut character at the end */
    wrong.text = "\xc3\xa4\xe2\x82z\xf0\x9f\x98";
    CHECK_OK(metrics_write(m, "sample", 99, &wrong, 1));
    wrong.name = "/a\xff\xfe";
    CHECK_FAILS(metrics_write(m, "start", 99, &wrong, 1), STATUS_INTERNAL, "UTF-8");
    CHECK_OK(metrics_sync(m));
    CHECK_OK(metrics_close(&m));
    CHECK_OK(metrics_close(&m));
    read_lines();
    CHECK_EQUAL(line_count, NUMBERS + 3);
    CHECK_TEXT(json_string_value(get_field(NUMBERS + 1, "text")), "/a\?\?");
    CHECK_TEXT(json_string_value(get_field(NUMBERS + 2, "text")), "\xc3\xa4\?\?z\?\?\?");
    for (int i = 0; i < NUMBERS; i++) {
        double read = json_real_value(get_field(i, "loss"));
        CHECK(json_is_real(get_field(i, "loss")) && memcmp(&read, &numbers[i], sizeof read) == 0);
        CHECK_EQUAL(json_integer_value(get_field(i, "step")), i);
    }
    CHECK(json_is_null(get_field(NUMBERS, "nan")) && json_is_null(get_field(NUMBERS, "inf")));
    CHECK(json_integer_value(get_field(NUMBERS, "tokens")) == INT64_MAX);
    CHECK_TEXT(json_string_value(get_field(NUMBERS, "text")), "a\n\"\xc3\xa4");
    CHECK(json_is_null(get_field(NUMBERS, "mfu")));
    CHECK(json_integer_value(json_object_get(get_field(NUMBERS, "bytes"), "buffers")) == 8);
}

/* Returns the number of lines in metrics.jsonl.old. */
static int count_old_lines(void)
{
    char old[FILE_PATH_BYTES], *text = NULL;
    int count = 0;
    snprintf(old, sizeof old, "%s.old", path);
    CHECK_OK(file_read(old, 1 << 20, &text, NULL));
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        count++;
    }
    free(text);
    return count;
}

/* A new start keeps the whole old file as metrics.jsonl.old, or appends it there. */
static void test_new_start(void)
{
    static const char two_lines[] = "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"tr";
    char old[FILE_PATH_BYTES];
    struct metrics *m = NULL;
    struct stat before, after;
    snprintf(old, sizeof old, "%s.old", path);
    CHECK_OK(file_remove_tree(old));
    for (int start = 0; start < 2; start++) {
        CHECK_OK(file_write(path, two_lines, strlen(two_lines)));
        CHECK(start > 0 || stat(path, &before) == 0);
        CHECK_OK(metrics_open(path, -1, 0, &m));
        CHECK_OK(metrics_close(&m));
        CHECK_EQUAL(file_size(path), 0);
        CHECK(stat(old, &after) == 0 && after.st_ino == before.st_ino);
    }
    CHECK_EQUAL(file_size(old), 2 * (int64_t)strlen(two_lines) + 1);
}

/* The evaluation and the sample of the step after which a run resumes. */
static void test_existing_lines(void)
{
    struct metrics *m = NULL;
    CHECK_OK(file_remove_tree(path));
    CHECK_OK(metrics_open(path, -1, 0, &m));
    CHECK_OK(metrics_write(m, "evaluate", 0, NULL, 0));
    CHECK_OK(metrics_write(m, "sample", 0, NULL, 0));
    CHECK_OK(metrics_write(m, "evaluate", 4, NULL, 0));
    CHECK_OK(metrics_write(m, "sample", 8, NULL, 0));
    for (int step = 8; step >= 0; step -= 4) {
        CHECK_OK(metrics_close(&m));
        CHECK_OK(metrics_open(path, step, 0, &m));
        CHECK(metrics_has_evaluation(m) == (step <= 4) && metrics_has_sample(m) == (step != 4));
    }
    CHECK_OK(metrics_close(&m));
}

/* A run that was killed after step 9 resumes from step 6. */
static void test_resume(void)
{
    struct metrics *m = NULL;
    struct stat before, after;
    CHECK_OK(file_remove_tree(path));
    CHECK_OK(metrics_open(path, -1, 0, &m));
    CHECK_OK(metrics_write(m, "start", 0, NULL, 0));
    for (int step = 1; step <= 9; step++) {
        CHECK_OK(metrics_write(m, "train", step, NULL, 0));
    }
    CHECK_OK(metrics_write(m, "end", 6, NULL, 0));
    CHECK_OK(metrics_close(&m));
    FILE *file = fopen(path, "a");
    CHECK(file != NULL && fputs("{\"event\": \"train\", \"st", file) > 0 && fclose(file) == 0);
    CHECK_OK(metrics_open(path, 6, 0, &m));
    CHECK_OK(metrics_write(m, "resume", 6, NULL, 0));
    CHECK_OK(metrics_write(m, "train", 7, NULL, 0));
    CHECK_OK(metrics_close(&m));
    read_lines();
    CHECK_EQUAL(line_count, 9);
    for (int i = 0; i < 9; i++) {
        CHECK_EQUAL(json_integer_value(get_field(i, "step")), i < 7 ? i : i - 1);
    }
    CHECK_TEXT(json_string_value(get_field(7, "event")), "resume");
    CHECK(stat(path, &before) == 0);
    CHECK_OK(metrics_open(path, 7, 0, &m)); /* no line is removed: the file does not change */
    CHECK_OK(metrics_close(&m));
    CHECK(stat(path, &after) == 0 && before.st_ino == after.st_ino);
    CHECK_EQUAL(count_old_lines(), 3); /* steps 7, 8 and 9 */
    CHECK_OK(metrics_open(path, -1, 0, &m));
    CHECK_OK(metrics_close(&m));
    CHECK_EQUAL(file_size(path), 0);
    CHECK_EQUAL(count_old_lines(), 3 + 9);
    test_new_start();
    CHECK_OK(file_remove_tree(path));
    CHECK_OK(metrics_open(path, 5, 0, &m)); /* a missing file is no error in a resumed run */
    CHECK_OK(metrics_close(&m));
}

/* A killed run resumes before its third spike, from the step to which this spike returned. */
static void test_resume_before_spike(void)
{
    struct metrics *m = NULL;
    CHECK_OK(file_remove_tree(path));
    CHECK_OK(metrics_open(path, -1, 0, &m));
    for (int spikes = 1; spikes <= 3; spikes++) {
        const struct metric field = metric_integer("spikes", spikes);
        CHECK_OK(metrics_write(m, "spike", 6, &field, 1));
    }
    CHECK_OK(metrics_close(&m));
    CHECK_OK(metrics_open(path, 6, 2, &m));
    CHECK_OK(metrics_close(&m));
    read_lines();
    CHECK_EQUAL(line_count, 2);
    CHECK_EQUAL(json_integer_value(get_field(1, "spikes")), 2);
}

/* If the disk has no space for a line, metrics_write fails and writes no part of it. */
static void test_full_disk(void)
{
    struct metrics *m = NULL;
    struct rlimit old, small;
    CHECK_OK(metrics_open(path, -1, 0, &m));
    CHECK_OK(metrics_write(m, "train", 1, NULL, 0));
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    small = old;
    small.rlim_cur = (rlim_t)file_size(path) + 20;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK_FAILS(metrics_write(m, "train", 2, NULL, 0), STATUS_WRITE, path);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    read_lines();
    CHECK_EQUAL(line_count, 1);
    CHECK_OK(metrics_write(m, "train", 3, NULL, 0));
    CHECK_OK(metrics_close(&m));
    read_lines();
    CHECK_EQUAL(line_count, 2);
    CHECK_OK(metrics_open("/dev/full", -1, 0, &m));
    CHECK_FAILS(metrics_write(m, "train", 1, NULL, 0), STATUS_WRITE, "No space left");
    CHECK_OK(metrics_close(&m));
    CHECK_FAILS(metrics_open("/nowhere/metrics.jsonl", -1, 0, &m), STATUS_CREATE, "/nowhere");
}

static void test_stop(void)
{
    CHECK(!stop_signal_received());
    CHECK_OK(stop_signal_watch(false));
    CHECK(raise(SIGTERM) == 0 && raise(SIGUSR1) == 0 && raise(SIGINT) == 0 && raise(SIGHUP) == 0);
    CHECK(stop_signal_received());
}

int main(void)
{
    snprintf(path, sizeof path, "test-metrics-%ld.jsonl", (long)getpid());
    test_values();
    test_resume();
    test_existing_lines();
    test_resume_before_spike();
    test_full_disk();
    test_stop();
    for (int i = 0; i < line_count; i++) {
        json_decref(lines[i]);
    }
    CHECK_OK(file_remove_tree(path));
    return 0;
}
