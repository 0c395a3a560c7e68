/* Tests of preference pairs: examples of rows, batches of whole pairs for all numbers of ranks, bad
 * rows, refused shards, and the file with the log-probabilities of the reference model. */
#include <math.h>

#include "base/memory.h"
#include "base/random.h"
#include "datasets/shard/shard_logps.h"
#include "tests/datasets/batch_layouts.h"
#include "tests/datasets/chat_tokenizer.h"
#include "tests/datasets/prepared.h"

#define END "<|endoftext|>"

static struct tokenizer *tokenizer;
static struct chat_template *chat;

static status prepare_shards(const char *rows, const char *output, struct prepare_options overrides,
                             struct prepare_report *report)
{
    overrides.tokenizer = tokenizer;
    overrides.sequence_tokens = overrides.sequence_tokens > 0 ? overrides.sequence_tokens : 256;
    return prepared_run(prepare_preferences, "rows.jsonl", rows, output, overrides, report);
}

/* ---- rows ---- */

static void check_text(const int32_t *ids, int64_t count, const char *expected)
{
    char *text = NULL;
    CHECK_OK(tokenizer_decode(tokenizer, ids, count, false, &text, NULL));
    if (strcmp(text, expected) != 0) {
        fprintf(stderr, "got '%s', expected '%s'\n", text, expected);
        exit(1);
    }
    free(text);
}

static void check_pair(struct shard *s, int64_t i, const char *prompt, const char *chosen,
                       const char *rejected)
{
    int64_t range[2];
    int32_t ids[1024];
    uint32_t first, second;
    CHECK_OK(shard_read_documents(s, i, 2, range));
    int64_t count = range[1] - range[0];
    CHECK(count <= 1024);
    CHECK_OK(shard_read(s, range[0], count, ids));
    CHECK_OK(shard_read_column(s, EXAMPLE_PROMPT, i, 1, &first));
    CHECK_OK(shard_read_column(s, EXAMPLE_CHOSEN, i, 1, &second));
    check_text(ids, first, prompt);
    check_text(ids + first, second, chosen);
    check_text(ids + first + second, count - first - second, rejected);
}

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define SAID(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define ALPACA(text)                                                                               \
    "Below is an instruction that describes a task. Write a response that appropriately "          \
    "completes the request.\n\n### Instruction:\n" text "\n\n### Response:"

static void test_rows(void)
{
    static const char rows[] =
        "{\"prompt\": \"What?\", \"chosen\": \" the list\", \"rejected\": \" a file\"}\n"
        "{\"chosen\": \"Who said it: the user\", \"rejected\": \"Who said it: an answer\"}\n"
        "{\"prompt\": [" USER("a") "], \"chosen\": [" SAID("b") "], \"rejected\": [" SAID(
            "c") "]}\n"
                 "{\"chosen\": [" USER("a") ", " SAID("b") "], \"rejected\": [" USER("a") ", " SAID(
                     "c") "]}\n"
                          "{\"chosen\": \"x\xc3\xa4\", \"rejected\": \"x\xc3\xb6\"}\n";
    struct prepare_report report;
    CHECK_OK(
        prepare_shards(rows, "rows", (struct prepare_options){.chat_template = chat}, &report));
    CHECK(report.examples == 5 && report.documents == 5 && report.bad_rows == 0);
    struct shard *s;
    CHECK_OK(shard_open(folder_file("rows/train-00000-of-00001.h5"), &s));
    CHECK_OK(shard_verify(s));
    CHECK(shard_get_header(s)->kind == EXAMPLE_PREFERENCE_PAIRS);
    check_pair(s, 0, "What?", " the list" END, " a file" END);
    /* The common beginning ends before a space, and not inside a character. */
    check_pair(s, 1, "Who said it:", " the user" END, " an answer" END);
    check_pair(s, 2, ALPACA("a"), "b" END, "c" END);
    check_pair(s, 3, ALPACA("a"), "b" END, "c" END);
    check_pair(s, 4, "x", "\xc3\xa4" END, "\xc3\xb6" END);
    CHECK_OK(shard_close(&s));
}

/* A response that is too long after its prompt is truncated and counted. */
static void test_truncation(void)
{
    static const char rows[] =
        "{\"prompt\": \"abc\", \"chosen\": \"zzzzzz\", \"rejected\": \"y\"}\n"
        "{\"prompt\": \"abc\", \"chosen\": \"x\", \"rejected\": \"y\"}\n";
    struct prepare_report report;
    struct shard *s;
    CHECK_OK(prepare_shards(rows, "cut", (struct prepare_options){.sequence_tokens = 6}, &report));
    CHECK(report.overlong_rows == 1 && report.longest_tokens == 10 && report.examples == 2);
    CHECK_OK(shard_open(folder_file("cut/train-00000-of-00001.h5"), &s));
    check_pair(s, 0, "abc", "zzz", "y" END);
    CHECK_OK(shard_close(&s));
}

static void test_bad_rows(void)
{
    static const char good[] = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
    static const char *const bad_rows[][2] = {
        {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "no field 'rejected'"},
        {"{\"prompt\": \"a\", \"rejected\": \"b\"}", "no field 'chosen'"},
        {"{\"prompt\": 1, \"chosen\": \"b\", \"rejected\": \"c\"}",
         "'prompt' is neither a string nor a list of messages"},
        {"{\"prompt\": \"a\", \"chosen\": [" SAID("b") "], \"rejected\": \"c\"}",
         "must both be strings, or both be lists"},
        {"{\"prompt\": [" USER("a") "], \"chosen\": \"b\", \"rejected\": \"c\"}",
         "'prompt' and 'rejected' must both"},
        {"{\"prompt\": \"\", \"chosen\": \"b\", \"rejected\": \"c\"}", "the prompt is empty"},
        {"{\"chosen\": \"b\", \"rejected\": \"c\"}", "no common beginning"},
        {"{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"c\"}",
         "the chosen response is empty"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}",
         "the rejected response is empty"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}", "equals the rejected one"},
        {"{\"prompt\": \"a\", \"chosen\": \"bxyzuvw1\", \"rejected\": \"bxyzuvw2\"}",
         "once they are truncated"},
        {"{\"prompt\": \"0123456789\", \"chosen\": \"b\", \"rejected\": \"c\"}",
         "leaves no room for a response in 8"},
        {"{\"prompt\": [" USER("a") "], \"chosen\": [" SAID("") "], \"rejected\": [" SAID("c") "]}",
         "the assistant message is empty"},
        {"[]", "not a JSON object"},
        {"{\"prompt\": ", "not valid JSON"},
    };
    struct prepare_report report;
    char rows[1024];
    for (int i = 0; i < COUNT(bad_rows); i++) {
        struct prepare_options o = {.chat_template = chat, .sequence_tokens = 8};
        snprintf(rows, sizeof rows, "%s%s\n%s", good, bad_rows[i][0], good);
        CHECK_FAILS(prepare_shards(rows, "bad", o, &report), STATUS_DATA, "rows.jsonl:2: ");
        CHECK_FAILS(prepare_shards(rows, "bad", o, &report), STATUS_DATA, bad_rows[i][1]);
        CHECK(!file_exists(folder_file("bad/train-00000-of-00001.h5")));
        o.skip_bad_rows = true;
        CHECK_OK(prepare_shards(rows, "skipped", o, &report));
        CHECK(report.bad_rows == 1 && report.examples == 2);
    }
}

/* ---- batches ---- */

enum { PAIRS = 23 };

static void make_pairs(void)
{
    static char rows[64 << 10];
    size_t used = 0;
    uint64_t key = random_key(5, RANDOM_TEST, 0, 0);
    for (int i = 0; i < PAIRS; i++) {
        used +=
            (size_t)snprintf(rows + used, sizeof rows - used,
                             "{\"prompt\": \"%.*s\", \"chosen\": \"c%d%.*s\", \"rejected\": "
                             "\"r%d\"}\n",
                             1 + (int)random_below(key, (uint64_t)i, 9), "Whom is it", i,
                             (int)random_below(key, (uint64_t)(100 + i), 12), "zyxwvutsrqpo", i);
    }
    struct prepare_report report;
    struct prepare_options o = {
        .sequence_tokens = LAYOUT_TOKENS, .validation_fraction = 0.2, .shard_tokens = 300};
    CHECK_OK(prepare_shards(rows, "pairs", o, &report));
    CHECK(report.train_shards > 1 && report.validation_tokens > 0);
}

/* Returns row j of response s, counted from the first row of its prompt; -1: no such row. */
static int32_t find_row(const struct batch *b, int64_t s, int32_t j)
{
    if (b->preference_pairs.shared_prefix_offsets == NULL) {
        return b->cu_rows[s] + j < b->cu_rows[s + 1] ? b->cu_rows[s] + j : -1;
    }
    const int32_t *branch = b->preference_pairs.shared_prefix_offsets + s / 2 * 2;
    int32_t first = b->cu_rows[s / 2], end = b->cu_rows[s / 2 + 1] - first;
    if (s % 2 == 0) {
        return j < branch[1] ? first + j : -1;
    }
    j += j < branch[0] ? 0 : branch[1] - branch[0];
    return j < end ? first + j : -1;
}

/* Writes tokens, targets and log-probabilities of pair i of a batch as text. */
static void describe_pair(const struct batch *b, int64_t i, char *out, size_t bytes)
{
    size_t used = 0;
    const double *logps = b->preference_pairs.reference_logps;
    bool shared = b->preference_pairs.shared_prefix_offsets != NULL;
    CHECK(b->segments == (shared ? 1 : 2) * b->sequences);
    CHECK(b->rows <= 2 * b->sequences * LAYOUT_TOKENS && logps != NULL);
    for (int64_t s = 2 * i; s < 2 * i + 2; s++) {
        int32_t row, next;
        for (int32_t j = 0; (row = find_row(b, s, j)) >= 0; j++) {
            next = find_row(b, s, j + 1);
            CHECK_EQUAL(b->positions[row], j);
            CHECK(b->targets[row] == BATCH_IGNORED ||
                  (next >= 0 && b->targets[row] == b->inputs[next]));
            CHECK(next >= 0 || b->targets[row] == BATCH_IGNORED);
            used += (size_t)snprintf(out + used, bytes - used, "%d>%d ", b->inputs[row],
                                     b->targets[row]);
        }
        used += (size_t)snprintf(out + used, bytes - used, "| ");
    }
    snprintf(out + used, bytes - used, "%g %g", logps[2 * i], logps[2 * i + 1]);
}

static void set_shared_prompt(struct loader_options *layout)
{
    layout->shared_prompt = layout->micro_sequences % 2 == 0;
}

static void test_batches(void)
{
    static double table[2 * PAIRS];
    for (int i = 0; i < 2 * PAIRS; i++) {
        table[i] = -i;
    }
    const double *const reference[] = {table};
    struct layout_test t = {
        layout_options(EXAMPLE_PREFERENCE_PAIRS, tokenizer_vocab_size(tokenizer)),
        set_shared_prompt, describe_pair};
    t.options.reference_logps = reference;
    check_layouts(&t);
}

static void test_refused(void)
{
    struct loader *l;
    struct loader_options o =
        layout_options(EXAMPLE_PREFERENCE_PAIRS, tokenizer_vocab_size(tokenizer));
    o.sequence_tokens = 12;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "--sequence-length 12");
    o.sequence_tokens = LAYOUT_TOKENS;
    o.kind = EXAMPLE_TEXT;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "'preference_pairs', not 'text'");
}

/* ---- log-probabilities of the reference model ---- */

static void test_reference_logps(void)
{
    char *path = folder_file("reference.hdf5");
    double values[2 * PAIRS], values_read[2 * PAIRS];
    int64_t pairs_done;
    struct shard_logps_key key = {
        .weights = "aaaa", .data = "bbbb", .precision = "fp32", .pairs = PAIRS};
    for (int i = 0; i < 2 * PAIRS; i++) {
        values[i] = i < 10 ? -1.5 * i : NAN;
    }
    CHECK_FAILS(shard_logps_read(path, &key, values_read, &pairs_done), STATUS_NO_INPUT,
                "does not exist");
    CHECK_OK(shard_logps_write(path, &key, values, 5));
    CHECK_OK(shard_logps_read(path, &key, values_read, &pairs_done));
    CHECK_EQUAL(pairs_done, 5);
    CHECK(memcmp(values, values_read, 10 * sizeof *values_read) == 0);
    CHECK_OK(shard_logps_write(path, &key, values, 6));
    CHECK_FAILS(shard_logps_read(path, &key, values_read, &pairs_done), STATUS_DATA,
                "pair 5 has a log-probability of nan");
    CHECK_OK(shard_logps_write(path, &key, values, 5));
    struct shard_logps_key other = key;
    snprintf(other.weights, sizeof other.weights, "cccc");
    CHECK_FAILS(shard_logps_read(path, &other, values_read, &pairs_done), STATUS_DATA,
                "computed with the weights aaaa, but this run uses cccc");
    other = key;
    snprintf(other.data, sizeof other.data, "cccc");
    CHECK_FAILS(shard_logps_read(path, &other, values_read, &pairs_done), STATUS_DATA,
                "for the shards bbbb");
    other = key;
    snprintf(other.precision, sizeof other.precision, "bf16");
    CHECK_FAILS(shard_logps_read(path, &other, values_read, &pairs_done), STATUS_DATA,
                "in fp32, but this run uses bf16");
    other = key;
    other.pairs = PAIRS - 1;
    CHECK_FAILS(shard_logps_read(path, &other, values_read, &pairs_done), STATUS_DATA,
                "of 23 pairs");
    CHECK(truncate(path, 700) == 0);
    CHECK_FAILS(shard_logps_read(path, &key, values_read, &pairs_done), STATUS_DATA,
                "reference.hdf5");
}

int main(void)
{
    folder_make();
    chat_tokenizer_make(&tokenizer, &chat);
    test_rows();
    test_truncation();
    test_bad_rows();
    make_pairs();
    test_batches();
    test_refused();
    test_reference_logps();
    chat_close(&chat);
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
