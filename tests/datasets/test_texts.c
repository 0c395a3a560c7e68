/* Texts with labels and numbers: CSV, names of labels and their order, texts and pairs as tokens, bad rows; and the
 * batches that a task's head reads, the same ones at any number of ranks. */
#include "base/log.h"
#include "datasets/csv.h"
#include "datasets/labels.h"
#include "datasets/loader.h"
#include "datasets/prepare.h"
#include "datasets/shard.h"
#include "datasets/texts.h"
#include "tests/datasets/folder.h"

static struct tokenizer *wordpiece, *bpe, *letters;

static void make_tokenizers(void)
{
    char *text = folder_file("text");
    const char words[] =
        "the list of files and the user of the system said the answer is yes or no";
    folder_write(text, words, sizeof words - 1);
    CHECK_OK(tokenizer_train(TOKENIZER_WORDPIECE, 80, &text, 1, 1, &wordpiece));
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, 280, &text, 1, 1, &bpe));
    CHECK_OK(tokenizer_train(TOKENIZER_CHAR, 0, &text, 1, 1, &letters));
}

static char *write_rows(const char *name, const char *rows)
{
    char *path = folder_file(name);
    folder_write(path, rows, strlen(rows));
    return path;
}

/* ---- CSV ---- */

struct seen {
    char text[1024];
};

static status see(void *user, struct jsonl_row *row)
{
    struct seen *s = user;
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

static void check_csv(const char *rows, const char *wanted, int64_t bad_rows)
{
    struct seen seen = {""};
    struct jsonl_bad bad = {.skip = true, .quiet = true};
    int64_t bytes = 0;
    CHECK_OK(csv_read(write_rows("rows.csv", rows), &bad, &bytes, see, &seen));
    if (strcmp(seen.text, wanted) != 0) {
        fprintf(stderr, "got    %s\nwanted %s\n", seen.text, wanted);
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
    struct jsonl_bad bad = {.skip = false};
    struct seen seen = {""};
    int64_t bytes = 0;
    CHECK_FAILS(csv_read(write_rows("rows.csv", "a,a\n"), &bad, &bytes, see, &seen), STATUS_DATA,
                "two fields have the name");
    CHECK_FAILS(csv_read(write_rows("rows.csv", "a,b\n1\n"), &bad, &bytes, see, &seen), STATUS_DATA,
                "rows.csv line 2: 1 fields, the first row names 2");
}

/* ---- names ---- */

static void check_labels(const char *given, const char *wanted)
{
    struct labels labels;
    char *text = NULL;
    CHECK_OK(labels_parse(given, &labels));
    CHECK_OK(labels_sort(&labels));
    CHECK_OK(labels_write(&labels, &text));
    CHECK(strcmp(text, wanted) == 0);
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
    CHECK_FAILS(labels_read_text("[\"a\", \"a\"]", "here", &labels), STATUS_DATA, "there twice");
    CHECK_FAILS(labels_read_text("{}", "here", &labels), STATUS_DATA, "not a JSON array");
}

/* ---- texts to tokens ---- */

static void check_texts(const struct tokenizer *t, const char *a, const char *b, int64_t most,
                        const char *wanted, int64_t wanted_first, int64_t wanted_cut)
{
    struct token_list ids = {0};
    struct text text = {a, strlen(a)}, pair = {b, b != NULL ? strlen(b) : 0};
    int64_t first = 0, cut = 0;
    char *back = NULL;
    CHECK_OK(texts_encode(t, &text, &pair, most, &ids, &first, &cut));
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &back, NULL));
    if (strcmp(back, wanted) != 0) {
        fprintf(stderr, "got '%s', wanted '%s'\n", back, wanted);
        exit(1);
    }
    CHECK_EQUAL(first, wanted_first);
    CHECK_EQUAL(cut, wanted_cut);
    free(back);
    token_list_free(&ids);
}

static void test_texts(void)
{
    check_texts(letters, "the list", NULL, 0, "the list", 8, 0);
    check_texts(letters, "the list", NULL, 3, "the", 3, 5);
    check_texts(bpe, "a", "b", 0, "a<|endoftext|>b", 2, 0);
    check_texts(bpe, "dddddd", "bb", 5, "dd<|endoftext|>bb", 3, 4);
    check_texts(bpe, "dd", "zzzzzz", 6, "dd<|endoftext|>zzz", 3, 3);
    struct token_list ids = {0};
    struct text text = {"the user", 8}, pair = {"the list of files", 17};
    int64_t first = 0, cut = 0;
    CHECK_OK(texts_encode(wordpiece, &text, &pair, 0, &ids, &first, &cut));
    struct tokenizer_specials s = tokenizer_specials_of(wordpiece);
    CHECK(ids.ids[0] == s.cls && ids.ids[first - 1] == s.sep && ids.ids[ids.count - 1] == s.sep);
    int64_t all = ids.count;
    ids.count = 0;
    CHECK_OK(texts_encode(wordpiece, &text, &pair, all - 1, &ids, &first, &cut));
    CHECK(ids.count == all - 1 && cut == 1);
    token_list_free(&ids);
}

/* ---- rows to shards ---- */

typedef status (*preparation)(const struct prepare_options *options, struct prepare_report *out);

static status prepare(preparation make, const struct tokenizer *t, const char *name,
                      const char *rows, const char *output, struct prepare_options more,
                      struct prepare_report *report)
{
    static char *path;
    path = write_rows(name, rows);
    more.tokenizer = t;
    more.inputs = &path;
    more.input_count = 1;
    more.output = folder_file(output);
    more.shard_tokens = more.shard_tokens > 0 ? more.shard_tokens : 1 << 20;
    return make(&more, report);
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
                                     .last_rows = last_rows,
                                     .looks_ahead = true};
    struct loader *loader = NULL;
    CHECK_OK(loader_open(&options, &loader));
    return loader;
}

static const char labelled[] =
    "{\"text\": \"the list\", \"label\": \"yes\"}\n"
    "{\"text\": \"the user\", \"text_pair\": \"of files\", \"label\": \"no\"}\n"
    "{\"text\": \"said\", \"text_pair\": null, \"label\": \"maybe\"}\n"
    "{\"text\": \"answer\", \"label\": \"yes\"}\n"
    "{\"text\": \"system\", \"label\": \"no\"}\n"
    "{\"text\": \"files\", \"label\": \"yes\"}\n";

static void test_classify(void)
{
    struct prepare_report report;
    static const int32_t numbers[] = {2, 1, 0, 2, 1, 2}; /* maybe, no, yes */
    CHECK_OK(prepare(prepare_classify, wordpiece, "a.jsonl", labelled, "classify",
                     (struct prepare_options){.sequence_tokens = 16, .shard_tokens = 40}, &report));
    CHECK_EQUAL(report.labels, 3);
    CHECK_EQUAL(report.examples, 6);
    CHECK(report.train_shards > 1);
    for (int ranks = 1; ranks <= 2; ranks++) {
        int64_t masked_before = 0, at[2] = {0, 0};
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
                CHECK(end || b.first_masked == (ranks == 1 ? masked_before % 4 : 0));
                masked_before += b.masked;
                CHECK_EQUAL(b.masked, b.sequences);
                for (int64_t i = 0; i < b.sequences; i++) {
                    CHECK_EQUAL(b.labels[i], numbers[b.samples[i]]);
                    CHECK_EQUAL(b.masked_rows[i], b.cu_rows[i]);
                    CHECK_EQUAL(b.example_rows[i + 1], i + 1);
                    CHECK_EQUAL(b.segment_ids[b.cu_rows[i + 1] - 1], b.samples[i] == 1);
                    at[r] += b.samples[i];
                }
            }
        }
        CHECK_EQUAL(at[0] + at[1], 15);
        CHECK_OK(loader_close(&loaders[0]));
        CHECK_OK(loader_close(&loaders[1]));
    }
}

static void test_regress(void)
{
    struct prepare_report report;
    static const float numbers[] = {0.5f, -2, 1e-3f};
    CHECK_OK(prepare(prepare_regress, bpe, "a.csv",
                     "label,text,text_pair\n0.5,the list,of files\n-2,user,said\n1e-3,no,no\n",
                     "regress", (struct prepare_options){.sequence_tokens = 16}, &report));
    struct loader *loader = open_batches(bpe, "regress/train-*.h5", EXAMPLE_REGRESS, 0, 1, true);
    struct batch b;
    bool last, end;
    int64_t seen = 0;
    for (end = false; !end; seen += b.sequences) {
        CHECK_OK(loader_next(loader, &b, &last, &end));
        for (int64_t i = 0; i < b.sequences; i++) {
            CHECK(b.numbers[i] == numbers[b.samples[i]] && b.labels == NULL);
            CHECK_EQUAL(b.masked_rows[i], b.cu_rows[i + 1] - 1);
        }
    }
    CHECK_EQUAL(seen, 3);
    CHECK_OK(loader_close(&loader));
}

/* The reason why the last of these rows is refused, and that of three rows two can be skipped. */
static void check_bad(preparation make, const char *row, const char *reason)
{
    char rows[1024];
    struct prepare_report report;
    snprintf(rows, sizeof rows, "{\"text\": \"the\", \"label\": 1}\n%s\n%s\n", row, row);
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(prepare(make, wordpiece, "bad.jsonl", rows, "bad",
                            (struct prepare_options){.sequence_tokens = 16}, &report),
                    STATUS_DATA, i == 0 ? "bad.jsonl line 2: " : reason);
    }
    CHECK_OK(prepare(make, wordpiece, "bad.jsonl", rows, "bad",
                     (struct prepare_options){.sequence_tokens = 16, .skip_bad_rows = true},
                     &report));
    CHECK_EQUAL(report.bad_rows, 2);
    CHECK_EQUAL(report.examples, 1);
}

static void test_bad_rows(void)
{
    check_bad(prepare_classify, "{\"text\": \"the\"}", "no field \"label\"");
    check_bad(prepare_classify, "{\"label\": 1}", "no field \"text\"");
    check_bad(prepare_classify, "{\"text\": \" \", \"label\": 1}", "the field \"text\" is empty");
    check_bad(prepare_classify, "{\"text\": \"a\", \"text_pair\": \"\", \"label\": 1}", "is empty");
    check_bad(prepare_classify, "{\"text\": \"a\", \"label\": 1.5}",
              "neither a text nor an integer");
    check_bad(prepare_classify, "{\"text\": \"a\", \"label\": \"\"}", "0 bytes");
    check_bad(prepare_regress, "{\"text\": \"a\", \"label\": \"x\"}", "the field \"label\"");
    check_bad(prepare_regress, "{\"text\": \"a\", \"label\": 1e99}", "too large");
    check_bad(prepare_classify, "not JSON", "not valid JSON");
    struct prepare_report report;
    CHECK_FAILS(prepare(prepare_classify, wordpiece, "bad.jsonl", labelled, "bad",
                        (struct prepare_options){.sequence_tokens = 16, .labels = "yes,no"},
                        &report),
                STATUS_DATA, "\"maybe\" is not one of --labels");
}

/* Other labels, or the same in another order, are not taken together. */
static void test_other_labels(void)
{
    struct prepare_report report;
    CHECK_OK(prepare(prepare_classify, wordpiece, "a.jsonl", labelled, "other",
                     (struct prepare_options){.sequence_tokens = 16, .labels = "yes,no,maybe"},
                     &report));
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
    CHECK(strcmp(shard_labels(shard), "[\"yes\", \"no\", \"maybe\"]") == 0);
    CHECK_OK(shard_close(&shard));
}

int main(void)
{
    folder_make();
    make_tokenizers();
    test_csv();
    test_labels();
    test_texts();
    test_classify();
    test_regress();
    test_bad_rows();
    test_other_labels();
    CHECK_OK(tokenizer_destroy(&wordpiece));
    CHECK_OK(tokenizer_destroy(&bpe));
    CHECK_OK(tokenizer_destroy(&letters));
    return 0;
}
