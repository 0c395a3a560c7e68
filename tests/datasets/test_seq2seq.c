/* Tests of sources and targets: rows, translations and aligned files as examples, bad rows, batches
 * that do not depend on the number of ranks, and refused shards. */
#include "base/memory.h"
#include "base/random.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"
#include "tests/datasets/batch_layouts.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

#define END "<|endoftext|>"

static struct tokenizer *tokenizer, *wordpiece;

static void make_tokenizers(void)
{
    char *text = folder_file("text");
    const char words[] = "the list of files and the user of the system said the answer";
    folder_write(text, words, sizeof words - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, &text, 1, 1, &tokenizer));
    CHECK_OK(train_tokenizer(TOKENIZER_WORDPIECE, 80, &text, 1, 1, &wordpiece));
}

static char *write_text(const char *name, const char *text)
{
    char *path = folder_file(name);
    folder_write(path, text, strlen(text));
    return path;
}

/* Prepares the file "name" of rows, or aligned with the file `target`. */
static status prepare_file(const char *path, const char *target, const char *output,
                           struct prepare_options o, struct prepare_report *report)
{
    char *paths[] = {(char *)(uintptr_t)path}, *targets[] = {(char *)(uintptr_t)target};
    o.tokenizer = o.tokenizer != NULL ? o.tokenizer : tokenizer;
    o.inputs = paths;
    o.input_count = 1;
    o.targets = target != NULL ? targets : NULL;
    o.output = folder_file(output);
    o.shard_tokens = o.shard_tokens > 0 ? o.shard_tokens : 1 << 20;
    o.sequence_tokens = o.sequence_tokens > 0 ? o.sequence_tokens : 64;
    return prepare_seq2seq(&o, report);
}

/* ---- rows ---- */

static void check_text(const struct tokenizer *t, const int32_t *ids, int64_t count,
                       const char *expected)
{
    char *text = NULL;
    CHECK_OK(tokenizer_decode(t, ids, count, false, &text, NULL));
    CHECK_TEXT(text, expected);
    free(text);
}

static void check_example(const struct tokenizer *t, struct shard *s, int64_t i, const char *source,
                          const char *target)
{
    int64_t range[2];
    int32_t ids[256];
    uint32_t first;
    CHECK_OK(shard_read_documents(s, i, 2, range));
    int64_t count = range[1] - range[0];
    CHECK(count <= 256);
    CHECK_OK(shard_read(s, range[0], count, ids));
    CHECK_OK(shard_read_column(s, EXAMPLE_SOURCE, i, 1, &first));
    check_text(t, ids, first, source);
    check_text(t, ids + first, count - first, target);
}

static void test_rows(void)
{
    struct prepare_report report;
    struct shard *s;
    char *rows = write_text("rows.jsonl", "{\"source\": \"the list\", \"target\": \"la lista\"}\n"
                                          "{\"translation\": {\"en\": \"a\", \"es\": \"b\", "
                                          "\"fr\": \"c\"}}\n");
    CHECK_FAILS(prepare_file(rows, NULL, "rows", (struct prepare_options){0}, &report),
                STATUS_USAGE, "need --source-lang and --target-lang");
    struct prepare_options o = {
        .source_language = "es", .target_language = "en", .source_prefix = "to English: "};
    CHECK_OK(prepare_file(rows, NULL, "rows", o, &report));
    CHECK(report.examples == 2 && report.bad_rows == 0);
    CHECK_OK(shard_open(folder_file("rows/train-00000-of-00001.h5"), &s));
    CHECK_OK(shard_verify(s));
    CHECK(shard_get_header(s)->kind == EXAMPLE_SEQ2SEQ);
    check_example(tokenizer, s, 0, "to English: the list" END, "la lista" END);
    check_example(tokenizer, s, 1, "to English: b" END, "a" END);
    CHECK_OK(shard_close(&s));
    /* The special tokens of an encoder's tokenizer, on both sides. */
    rows = write_text("rows.tsv", "source\ttarget\nthe list\tof files\n");
    o = (struct prepare_options){.tokenizer = wordpiece};
    CHECK_OK(prepare_file(rows, NULL, "wordpiece", o, &report));
    CHECK_OK(shard_open(folder_file("wordpiece/train-00000-of-00001.h5"), &s));
    check_example(wordpiece, s, 0, "[CLS] the list [SEP]", "[CLS] of files [SEP]");
    CHECK_OK(shard_close(&s));
}

static void test_bad_rows(void)
{
    static const char good[] = "{\"source\": \"a\", \"target\": \"b\"}\n";
    static const char *const bad_rows[][2] = {
        {"{\"source\": \"a\"}", "no field 'target'"},
        {"{\"text\": \"a\"}", "no field 'source' with 'target', or 'translation'"},
        {"{\"source\": \" \", \"target\": \"b\"}", "'source' is empty"},
        {"{\"source\": \"a\", \"target\": \"\"}", "'target' is empty"},
        {"{\"source\": \"a\", \"target\": 1}", "'target' is not a string"},
        {"{\"translation\": {\"en\": \"a\"}}", "no field 'es'"},
        {"{\"translation\": \"a\"}", "'translation' is not an object"},
        {"{\"source\": \"0123456789\", \"target\": \"b\"}",
         "the source has 11 tokens, more than 8 (--sequence-length)"},
        {"{\"source\": \"a\", \"target\": \"0123456789\"}", "the target has 11 tokens"},
    };
    struct prepare_report report;
    char rows[1024];
    for (int i = 0; i < COUNT(bad_rows); i++) {
        struct prepare_options o = {
            .sequence_tokens = 8, .source_language = "en", .target_language = "es"};
        snprintf(rows, sizeof rows, "%s%s\n%s", good, bad_rows[i][0], good);
        char *path = write_text("bad.jsonl", rows);
        CHECK_FAILS(prepare_file(path, NULL, "bad", o, &report), STATUS_DATA, "bad.jsonl:2: ");
        CHECK_FAILS(prepare_file(path, NULL, "bad", o, &report), STATUS_DATA, bad_rows[i][1]);
        CHECK(!file_exists(folder_file("bad/train-00000-of-00001.h5")));
        o.skip_bad_rows = true;
        CHECK_OK(prepare_file(path, NULL, "skipped", o, &report));
        CHECK(report.bad_rows == 1 && report.examples == 2);
    }
}

/* ---- aligned files ---- */

static void test_aligned(void)
{
    struct prepare_report report;
    struct prepare_options o = {0};
    struct shard *s;
    char *source = write_text("a.en", "\xEF\xBB\xBFthe list\r\n{\"a\": 1}\nof files");
    char *target = write_text("a.es", "la lista\nun objeto\nde archivos\n");
    CHECK_OK(prepare_file(source, target, "aligned", o, &report));
    CHECK(report.examples == 3 && report.bytes == 30 + 31);
    CHECK_OK(shard_open(folder_file("aligned/train-00000-of-00001.h5"), &s));
    check_example(tokenizer, s, 0, "the list" END, "la lista" END);
    check_example(tokenizer, s, 1, "{\"a\": 1}" END, "un objeto" END);
    check_example(tokenizer, s, 2, "of files" END, "de archivos" END);
    CHECK_OK(shard_close(&s));

    target = write_text("b.es", "la lista\n");
    CHECK_FAILS(prepare_file(source, target, "aligned", o, &report), STATUS_DATA, "a.en:2: ");
    CHECK_FAILS(prepare_file(source, target, "aligned", o, &report), STATUS_DATA,
                "b.es has no line 2, but");
    o.skip_bad_rows = true;
    CHECK_OK(prepare_file(source, target, "aligned", o, &report));
    CHECK(report.examples == 1 && report.bad_rows == 2);
    target = write_text("c.es", "la\n\nde\nmas\n");
    CHECK_OK(prepare_file(source, target, "aligned", o, &report));
    CHECK(report.examples == 2 && report.bad_rows == 2); /* an empty line, and one too many */
    target = write_text("d.es", "la\n\xff\nde\n");
    o.skip_bad_rows = false;
    CHECK_FAILS(prepare_file(source, target, "aligned", o, &report), STATUS_DATA,
                "d.es:2: the line is not valid UTF-8");
    /* The error names the file with the empty line. */
    target = write_text("e.es", "la\n \r\nde\n");
    CHECK_FAILS(prepare_file(source, target, "aligned", o, &report), STATUS_DATA,
                "e.es:2: the line is empty");
    CHECK_FAILS(prepare_file(target, source, "aligned", o, &report), STATUS_DATA,
                "e.es:2: the line is empty");
}

/* ---- batches ---- */

enum { PAIRS = 23, START = 7 };

static void make_pairs(void)
{
    static char rows[64 << 10];
    size_t used = 0;
    uint64_t key = random_key(5, RANDOM_TEST, 0, 0);
    for (int i = 0; i < PAIRS; i++) {
        used += (size_t)snprintf(rows + used, sizeof rows - used,
                                 "{\"source\": \"s%d%.*s\", \"target\": \"t%d%.*s\"}\n", i,
                                 (int)random_below(key, (uint64_t)i, 12), "zyxwvutsrqpo", i,
                                 (int)random_below(key, (uint64_t)(100 + i), 12), "zyxwvutsrqpo");
    }
    struct prepare_report report;
    struct prepare_options o = {
        .sequence_tokens = LAYOUT_TOKENS, .validation_fraction = 0.2, .shard_tokens = 300};
    CHECK_OK(prepare_file(write_text("pairs.jsonl", rows), NULL, "pairs", o, &report));
    CHECK(report.train_shards > 1 && report.validation_tokens > 0);
}

/* Writes example i of a batch as text, with the global numbers of its rows. */
static void describe_example(const struct batch *b, int64_t i, char *out, size_t bytes)
{
    const struct batch_source *s = &b->source;
    CHECK(b->kind == BATCH_SEQ2SEQ && b->segments == b->sequences);
    CHECK_EQUAL(b->tokens_seen, b->rows + s->rows);
    size_t used = (size_t)snprintf(out, bytes, "from %d:", (int)s->first_row + s->cu_rows[i]);
    for (int32_t row = s->cu_rows[i]; row < s->cu_rows[i + 1]; row++) {
        CHECK_EQUAL(s->positions[row], row - s->cu_rows[i]);
        used += (size_t)snprintf(out + used, bytes - used, " %d", s->inputs[row]);
    }
    used += (size_t)snprintf(out + used, bytes - used,
                             " | from %d:", (int)b->first_row + b->cu_rows[i]);
    for (int32_t row = b->cu_rows[i]; row < b->cu_rows[i + 1]; row++) {
        int32_t before = row > b->cu_rows[i] ? b->targets[row - 1] : START;
        CHECK_EQUAL(b->positions[row], row - b->cu_rows[i]);
        CHECK_EQUAL(b->inputs[row], before);
        used += (size_t)snprintf(out + used, bytes - used, " %d", b->targets[row]);
    }
    CHECK_EQUAL(b->targets[b->cu_rows[i + 1] - 1], tokenizer_eos(tokenizer));
}

static struct loader_options make_options(void)
{
    struct loader_options o = layout_options(EXAMPLE_SEQ2SEQ, tokenizer_vocab_size(tokenizer));
    o.decoder_start = START;
    return o;
}

static void set_interleaving(struct loader_options *layout)
{
    layout->interleave_micro_batches = layout->ranks % 2 == 0 && layout->first_sample == 0;
}

/* Sets the number of tokens of a source in a shard. */
static void set_source(const char *path, hsize_t example, int64_t tokens)
{
    const hsize_t one = 1;
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    CHECK(file >= 0);
    hid_t set = H5Dopen2(file, "source", H5P_DEFAULT), all = H5Dget_space(set);
    hid_t element = H5Screate_simple(1, &one, NULL);
    CHECK(H5Sselect_hyperslab(all, H5S_SELECT_SET, &example, NULL, &one, NULL) >= 0);
    CHECK(H5Dwrite(set, H5T_NATIVE_INT64, element, all, H5P_DEFAULT, &tokens) >= 0);
    H5Sclose(element);
    H5Sclose(all);
    H5Dclose(set);
    H5Fclose(file);
}

/* A damaged shard with an empty source or target is refused. Readers of batches rely on this. */
static void test_empty_sides(void)
{
    struct loader *l;
    struct shard *s;
    int64_t range[2];
    struct loader_source source = {folder_file("rows/train-00000-of-00001.h5"), 1};
    struct loader_options o = make_options();
    o.sources = &source;
    CHECK_OK(shard_open(source.path, &s));
    CHECK_OK(shard_read_documents(s, 1, 2, range));
    CHECK_OK(shard_close(&s));
    set_source(source.path, 1, 0);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "tokens and a source of 0");
    set_source(source.path, 1, range[1] - range[0]);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "example 1 has ");
}

static void test_refused(void)
{
    struct loader *l;
    struct loader_options o = make_options();
    o.sequence_tokens = 12;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "--sequence-length 12");
    o = make_options();
    o.kind = EXAMPLE_TEXT;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "'seq2seq', not 'text'");
    struct prepare_report report;
    struct tokenizer *characters;
    char *text = folder_file("text");
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, &text, 1, 1, &characters));
    struct prepare_options without_end = {.tokenizer = characters};
    CHECK_FAILS(prepare_file(text, text, "none", without_end, &report), STATUS_DATA,
                "the tokenizer has no end token");
    CHECK_OK(tokenizer_destroy(&characters));
}

int main(void)
{
    folder_make();
    make_tokenizers();
    test_rows();
    test_bad_rows();
    test_aligned();
    make_pairs();
    check_layouts(&(struct layout_test){make_options(), set_interleaving, describe_example});
    test_refused();
    test_empty_sides();
    CHECK_OK(tokenizer_destroy(&wordpiece));
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
