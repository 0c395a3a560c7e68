/* Tests of the example kinds for task heads, from rows to batches: CSV, label names, encoding of
 * texts and pairs, bad rows, damaged shards, and equal batches for all numbers of ranks. */
#include "base/log.h"
#include "datasets/loader/loader.h"
#include "datasets/prepare/prepare.h"
#include "datasets/rows/row_file.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/qa_windows.h"
#include "datasets/tokenizer/text_pair.h"
#include "tests/datasets/added_tokens.h"
#include "tests/datasets/prepared.h"
#include "tests/datasets/train_tokenizer.h"

static struct tokenizer *wordpiece, *bpe, *char_tokenizer;

static void make_tokenizers(void)
{
    char *text = folder_file("text");
    const char words[] =
        "the list of files and the user of the system said the answer is yes or no\n";
    folder_write(text, words, sizeof words - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_WORDPIECE, 80, &text, 1, 1, &wordpiece));
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 280, &text, 1, 1, &bpe));
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, &text, 1, 1, &char_tokenizer));
}

static char *write_rows(const char *name, const char *rows)
{
    char *path = folder_file(name);
    folder_write(path, rows, strlen(rows));
    return path;
}

/* ---- CSV ---- */

struct recorded_rows {
    char text[1024];
};

static status record_row(void *user, struct jsonl_row *row)
{
    struct recorded_rows *s = user;
    const char *name;
    json_t *value;
    size_t used = strlen(s->text);
    used += (size_t)snprintf(s->text + used, sizeof s->text - used, "%lld", (long long)row->line);
    json_object_foreach(row->value, name, value)
    {
        used += (size_t)snprintf(s->text + used, sizeof s->text - used, " %s=[%s]", name,
                                 json_string_value(value));
    }
    snprintf(s->text + used, sizeof s->text - used, "|");
    return STATUS_OK;
}

static const struct row_format default_format;

static void check_csv(const char *rows, const char *expected, int64_t bad_rows)
{
    struct recorded_rows recorded_rows = {""};
    struct jsonl_bad_rows bad = {.skip = true, .quiet = true};
    int64_t bytes = 0;
    CHECK_OK(row_file_read(&default_format, write_rows("rows.csv", rows), &bad, &bytes, record_row,
                           &recorded_rows));
    if (strcmp(recorded_rows.text, expected) != 0) {
        fprintf(stderr, "got      %s\nexpected %s\n", recorded_rows.text, expected);
        exit(1);
    }
    CHECK_EQUAL(bad.count, bad_rows);
    CHECK_EQUAL(bytes, (int64_t)strlen(rows));
}

static void test_csv(void)
{
    check_csv("a,b\n1,2\n\n3,4", "2 a=[1] b=[2]|4 a=[3] b=[4]|", 0);
    check_csv("\xEF\xBB\xBF"
              "a,b\r\n\"x,\r\ny\",\" \"\"q\"\"\"\r\n,\r\n",
              "2 a=[x,\r\ny] b=[ \"q\"]|4 a=[] b=[]|", 0);
    check_csv("a\n\"\"\n\"b\"c\nd\"e\n\xff\nf,g\n h \n\"i", "2 a=[]|7 a=[ h ]|", 5);
    check_csv("a,b\r\n1,2\r", "2 a=[1] b=[2]|", 0);
    struct jsonl_bad_rows bad = {.skip = false};
    struct recorded_rows recorded_rows = {""};
    int64_t bytes = 0;
    CHECK_FAILS(row_file_read(&default_format, write_rows("rows.csv", "a,a\n"), &bad, &bytes,
                              record_row, &recorded_rows),
                STATUS_DATA, "two fields have the name");
    CHECK_FAILS(row_file_read(&default_format, write_rows("rows.csv", "a,b\n1\n"), &bad, &bytes,
                              record_row, &recorded_rows),
                STATUS_DATA, "rows.csv:2: 1 field, but the first row names 2");
}

/* ---- label names ---- */

static void check_labels(const char *names, const char *expected)
{
    struct labels labels;
    char *text = NULL;
    CHECK_OK(labels_parse(names, &labels));
    CHECK_OK(labels_sort(&labels));
    CHECK_OK(labels_to_json(&labels, &text));
    CHECK_TEXT(text, expected);
    for (int i = 0; i < labels.count; i++) {
        CHECK_EQUAL(labels_find(&labels, labels.names[i]), i);
    }
    CHECK_EQUAL(labels_find(&labels, "not there"), -1);
    free(text);
    labels_free(&labels);
}

static void test_labels(void)
{
    check_labels("b,a,b,c", "[\"a\", \"b\", \"c\"]");
    check_labels("10,9,-1", "[\"-1\", \"9\", \"10\"]");
    check_labels("10,9,x", "[\"10\", \"9\", \"x\"]");
    struct labels labels;
    CHECK_FAILS(labels_parse_json("[\"a\", \"a\"]", "here", &labels), STATUS_DATA, "occurs twice");
    CHECK_FAILS(labels_parse_json("{}", "here", &labels), STATUS_DATA, "not a JSON array");
}

/* ---- texts and pairs ---- */

static void check_texts(const struct tokenizer *t, const char *a, const char *b, int64_t max_tokens,
                        const char *expected, int64_t expected_first, int64_t expected_truncated)
{
    struct token_list ids = {0};
    struct text text = {a, strlen(a)}, pair = {b, b != NULL ? strlen(b) : 0};
    int64_t first = 0, truncated = 0;
    char *decoded = NULL;
    CHECK_OK(text_pair_encode(t, &text, &pair, max_tokens, &ids, &first, &truncated));
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, NULL));
    if (strcmp(decoded, expected) != 0) {
        fprintf(stderr, "got '%s', expected '%s'\n", decoded, expected);
        exit(1);
    }
    CHECK_EQUAL(first, expected_first);
    CHECK_EQUAL(truncated, expected_truncated);
    free(decoded);
    token_list_free(&ids);
}

static void test_text_pairs(void)
{
    check_texts(char_tokenizer, "the list", NULL, 0, "the list", 8, 0);
    check_texts(char_tokenizer, "the list", NULL, 3, "the", 3, 5);
    check_texts(bpe, "a", "b", 0, "a<|endoftext|>b", 2, 0);
    check_texts(bpe, "dddddd", "bb", 5, "dd<|endoftext|>bb", 3, 4);
    check_texts(bpe, "dd", "zzzzzz", 6, "dd<|endoftext|>zzz", 3, 3);
    struct token_list ids = {0};
    struct text text = {"the user", 8}, pair = {"the list of files", 17};
    int64_t first = 0, truncated = 0;
    CHECK_OK(text_pair_encode(wordpiece, &text, &pair, 0, &ids, &first, &truncated));
    struct tokenizer_specials s = tokenizer_get_specials(wordpiece);
    CHECK(ids.ids[0] == s.cls && ids.ids[first - 1] == s.sep && ids.ids[ids.count - 1] == s.sep);
    int64_t all = ids.count;
    ids.count = 0;
    CHECK_OK(text_pair_encode(wordpiece, &text, &pair, all - 1, &ids, &first, &truncated));
    CHECK(ids.count == all - 1 && truncated == 1);
    token_list_free(&ids);
}

/* ---- classify and regress ---- */

typedef status (*prepare_function)(const struct prepare_options *options,
                                   struct prepare_report *out);

static status prepare_shards(prepare_function prepare_rows, const struct tokenizer *t,
                             const char *name, const char *rows, const char *output,
                             struct prepare_options overrides, struct prepare_report *report)
{
    overrides.tokenizer = t;
    return prepared_run(prepare_rows, name, rows, output, overrides, report);
}

static struct loader *open_batches(const struct tokenizer *t, const char *glob,
                                   enum example_kind kind, int rank, int ranks, bool last_rows)
{
    struct loader_source source = {folder_file(glob), 1};
    struct loader_options options = {.sources = &source,
                                     .source_count = 1,
                                     .sequence_tokens = 16,
                                     .global_sequences = 4,
                                     .micro_sequences = 2,
                                     .rank = rank,
                                     .ranks = ranks,
                                     .limit_samples = LOADER_ONE_EPOCH,
                                     .vocab_size = tokenizer_vocab_size(t),
                                     .tokenizer_sha256 = tokenizer_sha256(t),
                                     .kind = kind,
                                     .head_reads_last_row = last_rows,
                                     .count_global_batch = true};
    struct loader *loader = NULL;
    CHECK_OK(loader_open(&options, &loader));
    return loader;
}

static const char labeled_rows[] =
    "{\"text\": \"the list\", \"text_pair\": \"no\", \"label\": \"yes\"}\n"
    "{\"text\": \"the user\", \"text_pair\": \"of files\", \"label\": \"no\"}\n"
    "{\"text\": \"said\", \"text_pair\": \"yes\", \"label\": \"maybe\"}\n"
    "{\"text\": \"answer\", \"text_pair\": \"no\", \"label\": \"yes\"}\n"
    "{\"text\": \"system\", \"text_pair\": \"is\", \"label\": \"no\"}\n"
    "{\"text\": \"files\", \"text_pair\": \"the user\", \"label\": \"yes\"}\n";

static void test_classify(void)
{
    struct prepare_report report;
    static const int32_t numbers[] = {2, 1, 0, 2, 1, 2}; /* maybe, no, yes */
    CHECK_OK(prepare_shards(prepare_classify, wordpiece, "a.jsonl", labeled_rows, "classify",
                            (struct prepare_options){.sequence_tokens = 16, .shard_tokens = 40},
                            &report));
    CHECK_EQUAL(report.label_count, 3);
    CHECK_EQUAL(report.examples, 6);
    CHECK(report.train_shards > 1);
    for (int ranks = 1; ranks <= 2; ranks++) {
        int64_t masked_count = 0, sample_sums[2] = {0, 0};
        struct loader *loaders[2] = {NULL, NULL};
        for (int r = 0; r < ranks; r++) {
            loaders[r] =
                open_batches(wordpiece, "classify/train-*.h5", EXAMPLE_CLASSIFY, r, ranks, false);
        }
        for (bool end = false; !end;) {
            for (int r = 0; r < ranks && !end; r++) {
                struct batch b;
                bool last;
                CHECK_OK(loader_next(loaders[r], &b, &last, &end));
                CHECK(end || b.outputs.first == (ranks == 1 ? masked_count % 4 : 0));
                masked_count += b.outputs.count;
                CHECK_EQUAL(b.outputs.count, b.sequences);
                for (int64_t i = 0; i < b.sequences; i++) {
                    CHECK_EQUAL(b.task.labels[i], numbers[b.samples[i]]);
                    CHECK_EQUAL(b.outputs.rows[i], b.cu_rows[i]);
                    CHECK_EQUAL(b.outputs.example_rows[i + 1], i + 1);
                    CHECK_EQUAL(b.token_type_ids[b.cu_rows[i]], 0);
                    CHECK_EQUAL(b.token_type_ids[b.cu_rows[i + 1] - 1], 1);
                    sample_sums[r] += b.samples[i];
                }
            }
        }
        CHECK_EQUAL(sample_sums[0] + sample_sums[1], 15);
        CHECK_OK(loader_close(&loaders[0]));
        CHECK_OK(loader_close(&loaders[1]));
    }
}

static void test_regress(void)
{
    struct prepare_report report;
    static const float numbers[] = {0.5f, -2, 1e-3f};
    CHECK_OK(
        prepare_shards(prepare_regress, bpe, "a.csv",
                       "label,text,text_pair\n0.5,the list,of files\n-2,user,said\n1e-3,no,no\n",
                       "regress", (struct prepare_options){.sequence_tokens = 16}, &report));
    struct loader *loader = open_batches(bpe, "regress/train-*.h5", EXAMPLE_REGRESS, 0, 1, true);
    struct batch b;
    bool last, end;
    int64_t samples = 0;
    for (end = false; !end; samples += b.sequences) {
        CHECK_OK(loader_next(loader, &b, &last, &end));
        for (int64_t i = 0; i < b.sequences; i++) {
            CHECK(b.task.float_labels[i] == numbers[b.samples[i]] && b.task.labels == NULL);
            CHECK_EQUAL(b.outputs.rows[i], b.cu_rows[i + 1] - 1);
        }
    }
    CHECK_EQUAL(samples, 3);
    CHECK_OK(loader_close(&loader));
}

/* ---- classify_tokens, answer, choose and embed ---- */

/* Opens a loader and reads its first batch, which is valid until the caller closes the loader. */
static struct loader *open_first_batch(const struct tokenizer *t, const char *glob,
                                       enum example_kind kind, bool last_rows, struct batch *b)
{
    bool last, end;
    struct loader *loader = open_batches(t, glob, kind, 0, 1, last_rows);
    CHECK_OK(loader_next(loader, b, &last, &end));
    CHECK(!end);
    return loader;
}

static void test_classify_tokens(void)
{
    struct prepare_report report;
    struct batch b;
    CHECK_OK(prepare_shards(prepare_classify_tokens, wordpiece, "a.jsonl",
                            "{\"tokens\": [\"the\", \"answers\"], \"labels\": [\"O\", \"X\"]}\n"
                            "{\"tokens\": [\"no\"], \"tags\": [\"X\"]}\n",
                            "words", (struct prepare_options){.sequence_tokens = 16}, &report));
    CHECK_EQUAL(report.label_count, 2);
    struct loader *loader =
        open_first_batch(wordpiece, "words/train-*.h5", EXAMPLE_CLASSIFY_TOKENS, false, &b);
    CHECK(b.sequences == 2 && b.outputs.count == 3 && b.outputs.example_rows[1] == 2 &&
          b.outputs.example_rows[2] == 3);
    CHECK(b.task.labels[0] == 0 && b.task.labels[1] == 1 && b.task.labels[2] == 1);
    CHECK(b.outputs.rows[0] == 1 && b.outputs.rows[1] == 2 &&
          b.outputs.rows[2] == b.cu_rows[1] + 1);
    CHECK(b.cu_rows[1] > 4); /* the second word has several tokens */
    CHECK_OK(loader_close(&loader));
    CHECK_OK(prepare_shards(prepare_classify_tokens, bpe, "a.jsonl",
                            "{\"tokens\": [\"the\", \"user\"], \"labels\": [1, 0]}\n", "words",
                            (struct prepare_options){.sequence_tokens = 16}, &report));
    loader = open_first_batch(bpe, "words/train-*.h5", EXAMPLE_CLASSIFY_TOKENS, true, &b);
    char *text = NULL;
    CHECK_OK(tokenizer_decode(bpe, b.inputs, b.rows, false, &text, NULL));
    CHECK(strcmp(text, " the user") == 0 && b.task.labels[0] == 1 && b.task.labels[1] == 0);
    free(text);
    CHECK_OK(loader_close(&loader));
}

/* Checks the text that each context token covers. */
static void check_char_offsets(const struct tokenizer *t, const char *context, const char *expected)
{
    char got[512] = "";
    size_t used = 0;
    struct qa_windows a;
    struct text question = {"the", 3}, text = {context, strlen(context)};
    CHECK_OK(qa_windows_encode(t, &question, &text, 400, &a));
    for (int64_t i = 0; i < a.context.count; i++) {
        size_t begin = qa_windows_byte_offset(&text, a.char_begin.ids[i]),
               end = qa_windows_byte_offset(&text, a.char_end.ids[i]);
        used += (size_t)snprintf(got + used, sizeof got - used, "[%.*s]", (int)(end - begin),
                                 context + begin);
    }
    if (strcmp(got, expected) != 0) {
        fprintf(stderr, "got '%s', expected '%s'\n", got, expected);
        exit(1);
    }
    qa_windows_free(&a);
}

/* Added tokens that are not special are found in contexts and in words. */
static void test_added_tokens(void)
{
    static const struct added_content contents[] = {{"of files", false, false},
                                                    {"</s>", false, false}};
    struct tokenizer *t = added_tokens_make(wordpiece, contents, 2);
    struct token_list ids = {0};
    const struct text word = {"</s>the", 7};
    int64_t begin = 0;
    check_char_offsets(t, "The of files</s>\xC3\xA9.", "[The][of files][</s>][\xC3\xA9][.]");
    CHECK_OK(tokenizer_destroy(&t));
    t = added_tokens_make(bpe, contents, 2);
    check_char_offsets(t, "the of files</s>the", "[the][][of files][</s>][the]");
    /* No space is put before an added token. */
    int32_t added = (int32_t)tokenizer_vocab_size(bpe) + 1;
    CHECK_OK(text_pair_encode_word(t, &word, true, &ids, &begin));
    CHECK(begin == 0 && ids.ids[0] == added && ids.ids[1] == tokenizer_find(t, "the"));
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_char_offsets(void)
{
    check_char_offsets(wordpiece, " The (list)  of\tfiles.",
                       "[The][(][l][i][st][)][of][f][i][l][es][.]");
    check_char_offsets(wordpiece, "th\xC3\xA9 \xE2\x82\xAC the", "[th\xC3\xA9][\xE2\x82\xAC][the]");
    check_char_offsets(bpe, "the list", "[the][][l][is][t]");
    check_char_offsets(char_tokenizer, "a n", "[a][][n]");
    struct qa_windows a;
    struct text question = {"the", 3}, text = {"\xE2\x82\xAC the \xE2\x82\xAC", 11};
    int64_t first, last;
    CHECK_OK(qa_windows_encode(bpe, &question, &text, 400, &a));
    CHECK(qa_windows_find_tokens(&a, 6, 7, &first, &last) && last == a.context.count - 1 &&
          first > 3);
    CHECK_EQUAL(a.char_begin.ids[first], 6);
    CHECK_EQUAL(a.char_end.ids[last], 7);
    CHECK(!qa_windows_find_tokens(&a, 1, 2, &first, &last)); /* only a space */
    qa_windows_free(&a);
}

/* A long context has several windows. Each window stores the tokens of the answer, or none. */
static void test_answer(void)
{
    struct prepare_report report;
    struct shard *shard = NULL;
    char rows[4096], context[1024] = "";
    for (int i = 0; i < 60; i++) {
        strcat(context, i == 30 ? "answer " : "the ");
    }
    snprintf(rows, sizeof rows,
             "{\"question\": \"user\", \"context\": \"%s\", \"answers\": {\"text\": [\"answer\", "
             "\"the answer\", \"answer\"], \"answer_start\": [120, 116, 120]}}\n"
             "{\"question\": \"user\", \"context\": \"yes or no\", \"answers\": {\"text\": [], "
             "\"answer_start\": []}}\n",
             context);
    CHECK_OK(prepare_shards(
        prepare_answer, wordpiece, "a.jsonl", rows, "answers",
        (struct prepare_options){.sequence_tokens = 24, .validation_fraction = 0.5}, &report));
    CHECK(report.train_shards == 1 && report.validation_shards == 1);
    CHECK_OK(shard_open(folder_file("answers/train-00000-of-00001.h5"), &shard));
    int64_t windows = shard_get_header(shard)->documents, windows_with_answer = 0;
    CHECK(windows > 4);
    for (int64_t i = 0; i < windows; i++) {
        uint32_t begin, end, row, from, correct[2], question;
        int64_t start;
        int32_t id;
        CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_BEGIN, i, 1, &begin));
        CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_END, i, 1, &end));
        CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_ROW, i, 1, &row));
        CHECK(row == 0 && end >= begin);
        if (end > 0) {
            CHECK_OK(shard_read_documents(shard, i, 1, &start));
            CHECK_OK(shard_read(shard, start + begin, 1, &id));
            CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_FROM, start + begin, 1, &from));
            CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_RIGHT, start + begin - 1, 2, correct));
            CHECK_OK(shard_read_column(shard, EXAMPLE_ANSWER_FIRST_SEGMENT, i, 1, &question));
            CHECK(correct[1] == 3 && correct[0] == (begin > question ? 2 : 0));
            CHECK(from == 120 && id != tokenizer_find(wordpiece, "the"));
            windows_with_answer++;
        }
    }
    CHECK(windows_with_answer >= 1 && windows_with_answer < windows);
    CHECK_OK(shard_close(&shard));
    struct batch b;
    struct loader_source source = {folder_file("answers/train-*.h5"), 1};
    struct loader_options options = {.sources = &source,
                                     .source_count = 1,
                                     .sequence_tokens = 24,
                                     .global_sequences = 2,
                                     .micro_sequences = 2,
                                     .ranks = 1,
                                     .vocab_size = tokenizer_vocab_size(wordpiece),
                                     .kind = EXAMPLE_ANSWER,
                                     .count_global_batch = true};
    struct loader *loader = NULL;
    bool last, end;
    CHECK_OK(loader_open(&options, &loader));
    CHECK_OK(loader_next(loader, &b, &last, &end));
    CHECK(b.outputs.count == b.rows && b.outputs.rows[b.rows - 1] == b.rows - 1);
    CHECK(b.task.labels[0] == 0 && b.task.labels[1] == 0);
    CHECK(b.token_type_ids[0] == 0 && b.token_type_ids[b.cu_rows[1] - 1] == 1);
    CHECK(b.task.dataset_rows[0] == 0 && b.task.dataset_rows[1] == 0);
    int64_t position = 0;
    while (b.token_type_ids[position] == 0) {
        position++;
    }
    CHECK(b.task.token_flags[position] == 0 &&
          b.task.token_flags[position + 1] == EXAMPLE_AFTER_SPACE);
    CHECK_OK(loader_close(&loader));
}

static void test_choose_and_embed(void)
{
    struct prepare_report report;
    struct batch b;
    bool last, end;
    CHECK_OK(prepare_shards(
        prepare_choose, wordpiece, "a.jsonl",
        "{\"context\": \"the\", \"choices\": [\"user\", \"list of\"], \"label\": 1}\n"
        "{\"text\": \"a\", \"choices\": [\"b\", \"c\", \"d\"], \"label\": \"0\"}\n",
        "choices", (struct prepare_options){.sequence_tokens = 16}, &report));
    CHECK_EQUAL(report.label_count, 3);
    struct loader_source source = {folder_file("choices/train-*.h5"), 1};
    struct loader_options options = {.sources = &source,
                                     .source_count = 1,
                                     .sequence_tokens = 16,
                                     .global_sequences = 2,
                                     .micro_sequences = 2,
                                     .ranks = 1,
                                     .vocab_size = tokenizer_vocab_size(wordpiece),
                                     .kind = EXAMPLE_CHOOSE,
                                     .max_texts = 3,
                                     .count_global_batch = true};
    struct loader *loader = NULL;
    CHECK_OK(loader_open(&options, &loader));
    CHECK_OK(loader_next(loader, &b, &last, &end));
    CHECK(b.segments == 5 && b.outputs.count == 5 && b.outputs.example_rows[1] == 2 &&
          b.outputs.example_rows[2] == 5);
    CHECK(b.task.labels[0] == 1 && b.task.labels[1] == 0);
    for (int64_t s = 0; s < b.segments; s++) {
        CHECK(b.outputs.rows[s] == b.cu_rows[s] && b.positions[b.cu_rows[s]] == 0);
        CHECK(b.token_type_ids[b.cu_rows[s]] == 0 && b.token_type_ids[b.cu_rows[s + 1] - 1] == 1);
    }
    CHECK_OK(loader_close(&loader));
    options.max_texts = 2;
    CHECK_FAILS(loader_open(&options, &loader), STATUS_DATA, "more than 2 texts");
    CHECK_OK(prepare_shards(prepare_embed, bpe, "a.csv",
                            "text,text_pair\nthe list,of files\nyes,no\n", "pairs",
                            (struct prepare_options){.sequence_tokens = 16}, &report));
    loader = open_first_batch(bpe, "pairs/train-*.h5", EXAMPLE_EMBED, true, &b);
    CHECK(b.sequences == 2 && b.segments == 4 && b.outputs.count == b.rows &&
          b.task.labels == NULL);
    CHECK_OK(loader_close(&loader));
}

/* Checks that a row is refused for this reason, and that two such rows of three can be skipped. */
static void check_bad_rows(prepare_function prepare_rows, const char *row, const char *reason)
{
    char rows[1024];
    struct prepare_report report;
    snprintf(rows, sizeof rows, "{\"text\": \"the\", \"label\": 1}\n%s\n%s\n", row, row);
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(prepare_shards(prepare_rows, wordpiece, "bad.jsonl", rows, "bad",
                                   (struct prepare_options){.sequence_tokens = 16}, &report),
                    STATUS_DATA, i == 0 ? "bad.jsonl:2: " : reason);
    }
    CHECK_OK(prepare_shards(prepare_rows, wordpiece, "bad.jsonl", rows, "bad",
                            (struct prepare_options){.sequence_tokens = 16, .skip_bad_rows = true},
                            &report));
    CHECK_EQUAL(report.bad_rows, 2);
    CHECK_EQUAL(report.examples, 1);
}

/* As check_bad_rows, with only this row, because the kind needs rows of another form. */
static void check_bad_row(prepare_function prepare_rows, const char *row, const char *reason)
{
    struct prepare_report report;
    CHECK_FAILS(prepare_shards(prepare_rows, wordpiece, "bad.jsonl", row, "bad",
                               (struct prepare_options){.sequence_tokens = 16}, &report),
                STATUS_DATA, reason);
}

static void test_bad_rows(void)
{
    check_bad_rows(prepare_classify, "{\"text\": \"the\"}", "no field 'label'");
    check_bad_rows(prepare_classify, "{\"label\": 1}", "no field 'text'");
    check_bad_rows(prepare_classify, "{\"text\": \" \", \"label\": 1}",
                   "the field 'text' is empty");
    check_bad_rows(prepare_classify, "{\"text\": \"a\", \"text_pair\": \"\", \"label\": 1}",
                   "is empty");
    check_bad_rows(prepare_classify, "{\"text\": \"a\", \"label\": 1.5}",
                   "neither a string nor an integer");
    check_bad_rows(prepare_classify, "{\"text\": \"a\", \"label\": \"\"}", "0 bytes");
    check_bad_rows(prepare_regress, "{\"text\": \"a\", \"label\": \"x\"}", "the field 'label'");
    check_bad_rows(prepare_regress, "{\"text\": \"a\", \"label\": 1e99}", "too large");
    check_bad_rows(prepare_classify, "not JSON", "not valid JSON");
    check_bad_row(prepare_classify_tokens, "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n",
                  "not valid JSON: invalid token near 'EU'; this looks like CoNLL");
    check_bad_row(prepare_classify_tokens, "rejects\tO\n", "looks like CoNLL");
    check_bad_row(prepare_classify_tokens, "O\n", "; the input must be JSON Lines");
    check_bad_row(prepare_classify_tokens, "{\"tokens\": [\"a\"], \"labels\": []}",
                  "1 tokens, but 0 labels");
    check_bad_row(prepare_classify_tokens, "{\"tokens\": [\"\"], \"labels\": [1]}",
                  "has no tokens for the word");
    check_bad_row(prepare_answer,
                  "{\"question\": \"a\", \"context\": \"b c\", \"answer\": \"c\", "
                  "\"answer_start\": 1}",
                  "does not contain the answer at character 1");
    check_bad_row(prepare_answer, "{\"question\": \"a\", \"context\": \"b\"}", "no field 'answer'");
    check_bad_row(prepare_choose, "{\"text\": \"a\", \"choices\": [\"b\"], \"label\": 0}",
                  "at least two strings");
    check_bad_row(prepare_choose, "{\"text\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 2}",
                  "is not one of");
    check_bad_row(prepare_embed, "{\"text\": \"a\"}", "no field 'text_pair'");
    struct prepare_report report;
    CHECK_FAILS(prepare_shards(prepare_classify, wordpiece, "bad.jsonl", labeled_rows, "bad",
                               (struct prepare_options){.sequence_tokens = 16, .labels = "yes,no"},
                               &report),
                STATUS_DATA, "'maybe' is not one of --labels");
}

/* Sources with other labels, or with the same labels in another order, are refused. */
static void test_label_mismatch(void)
{
    struct prepare_report report;
    CHECK_OK(prepare_shards(
        prepare_classify, wordpiece, "a.jsonl", labeled_rows, "other",
        (struct prepare_options){.sequence_tokens = 16, .labels = "yes,no,maybe"}, &report));
    struct loader_source sources[] = {{folder_file("classify/train-*.h5"), 1},
                                      {folder_file("other/train-*.h5"), 1}};
    struct loader_options options = {.sources = sources,
                                     .source_count = 2,
                                     .sequence_tokens = 16,
                                     .global_sequences = 4,
                                     .micro_sequences = 2,
                                     .ranks = 1,
                                     .vocab_size = tokenizer_vocab_size(wordpiece),
                                     .kind = EXAMPLE_CLASSIFY};
    struct loader *loader = NULL;
    char sha256[HASH_TEXT_BYTES];
    CHECK_OK(labels_hash("[\"maybe\",\"no\",\"yes\"]", sha256));
    options.labels_sha256 = sha256;
    CHECK_FAILS(loader_open(&options, &loader), STATUS_DATA, "in another order");
    options.source_count = 1;
    CHECK_OK(loader_open(&options, &loader));
    CHECK_OK(loader_close(&loader));
    struct shard *shard = NULL;
    CHECK_OK(shard_open(folder_file("other/train-00000-of-00001.h5"), &shard));
    CHECK_TEXT(shard_labels(shard), "[\"yes\", \"no\", \"maybe\"]");
    CHECK_OK(shard_close(&shard));
}

/* ---- inconsistent shards ---- */

/* Checks that an example of three tokens with these column values is refused. A column with values
 * per token has three values. */
static void check_inconsistent(enum example_kind kind, const uint32_t *const *values,
                               const char *reason)
{
    static const int32_t ids[] = {1, 2, 3};
    struct shard_header header = {.kind = kind, .vocab_size = 10, .eos_id = -1};
    struct shard_writer *w = NULL;
    struct loader *loader = NULL;
    char *path = folder_file("damaged.h5");
    memset(header.tokenizer_sha256, 'a', HASH_TEXT_BYTES - 1);
    CHECK_OK(shard_writer_create(path, &header, &w));
    CHECK_OK(shard_writer_write_labels(w, "[\"x\", \"y\"]"));
    CHECK_OK(shard_writer_append_tokens(w, ids, 3));
    const struct example_format *format = example_get_format(kind);
    for (int i = 0; i < format->columns; i++) {
        CHECK_OK(shard_writer_append_values(w, i, values[i], format->column[i].per_token ? 3 : 1));
    }
    CHECK_OK(shard_writer_end_document(w));
    CHECK_OK(shard_writer_close(&w));
    struct loader_source source = {path, 1};
    struct loader_options options = {.sources = &source,
                                     .source_count = 1,
                                     .sequence_tokens = 3,
                                     .global_sequences = 1,
                                     .micro_sequences = 1,
                                     .ranks = 1,
                                     .vocab_size = 10,
                                     .kind = kind,
                                     .max_texts = 2,
                                     .count_global_batch = true};
    CHECK_FAILS(loader_open(&options, &loader), STATUS_DATA, reason);
}

static void test_inconsistent_shards(void)
{
    static const uint32_t none[3] = {0}, one[3] = {1, 1, 1}, two[3] = {2, 2, 2}, four[] = {4};
    static const uint32_t unlabeled[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    static const uint32_t infinite[] = {0x7f800000};
    check_inconsistent(EXAMPLE_CLASSIFY, (const uint32_t *[]){four, one}, "a first segment of 4");
    check_inconsistent(EXAMPLE_CLASSIFY, (const uint32_t *[]){none, one}, "a first segment of 0");
    check_inconsistent(EXAMPLE_CLASSIFY, (const uint32_t *[]){one, two},
                       "the label number 2, but there are 2");
    check_inconsistent(EXAMPLE_REGRESS, (const uint32_t *[]){one, infinite}, "the label inf");
    check_inconsistent(EXAMPLE_CLASSIFY_TOKENS, (const uint32_t *[]){two},
                       "the label number 2, but there are 2");
    check_inconsistent(EXAMPLE_CLASSIFY_TOKENS, (const uint32_t *[]){unlabeled}, "has no label");
    check_inconsistent(EXAMPLE_ANSWER, (const uint32_t *[]){one, two, one, none, none, none, none},
                       "an answer from 2 to 1");
    check_inconsistent(EXAMPLE_ANSWER,
                       (const uint32_t *[]){one, none, four, none, none, none, none},
                       "an answer from 0 to 4");
    check_inconsistent(EXAMPLE_CHOOSE, (const uint32_t *[]){none, none}, "or none");
    check_inconsistent(EXAMPLE_CHOOSE, (const uint32_t *[]){two, none}, "more than 2 texts");
    check_inconsistent(EXAMPLE_EMBED, (const uint32_t *[]){two}, "more than 2 texts");
    static const uint32_t single[] = {2, 0, 0}, both[] = {2, 0, 2};
    check_inconsistent(EXAMPLE_EMBED, (const uint32_t *[]){single}, "1 texts instead of 2");
    check_inconsistent(EXAMPLE_CHOOSE, (const uint32_t *[]){both, two},
                       "the label number 2, but there are 2");
}

int main(void)
{
    folder_make();
    make_tokenizers();
    test_csv();
    test_labels();
    test_text_pairs();
    test_classify();
    test_regress();
    test_classify_tokens();
    test_char_offsets();
    test_added_tokens();
    test_answer();
    test_choose_and_embed();
    test_bad_rows();
    test_label_mismatch();
    test_inconsistent_shards();
    CHECK_OK(tokenizer_destroy(&wordpiece));
    CHECK_OK(tokenizer_destroy(&bpe));
    CHECK_OK(tokenizer_destroy(&char_tokenizer));
    return 0;
}
