/* Tests the pairs of `bireme prepare --sentence-order`: two segments of one document that follow
 * one another, in their order or swapped.
 *
 * The vocabulary has one token for each word of the text. Words are numbered, so that an id
 * identifies its position. */
#include "base/random.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/shard.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"

enum {
    SPECIALS = 5,
    CLS = 2,
    SEP = 3,
    LONG_DOCUMENTS = 40,
    SENTENCES = 30, /* of a long document */
    SINGLES = 3,    /* documents of one sentence: SINGLE_WORDS words, two words, one word */
    SINGLE_WORDS = 9,
    MAX_WORDS = 12 * LONG_DOCUMENTS * SENTENCES + SINGLE_WORDS + 3,
    T = 48
};

static int word_count;
static int document_of[MAX_WORDS];

static void write_sentence(FILE *text, int document, int words)
{
    for (int w = 0; w < words; w++) {
        document_of[word_count] = document;
        fprintf(text, "%sw%d", w > 0 ? " " : "", word_count++);
    }
    fprintf(text, "\n");
}

static struct tokenizer *make_files(void)
{
    struct tokenizer *tokenizer;
    FILE *text = fopen(folder_file("text.txt"), "wb");
    CHECK(text != NULL);
    uint64_t draws = 0;
    for (int d = 0; d < LONG_DOCUMENTS; d++) {
        for (int s = 0; s < SENTENCES; s++) {
            write_sentence(text, d, 1 + (int)random_below(78, draws++, 12));
        }
        fprintf(text, "\n");
    }
    static const int singles[SINGLES] = {SINGLE_WORDS, 2, 1};
    for (int i = 0; i < SINGLES; i++) {
        write_sentence(text, LONG_DOCUMENTS + i, singles[i]);
        fprintf(text, "\n");
    }
    CHECK(fclose(text) == 0);
    CHECK_OK(file_make_folders(folder_file("tokenizer")));
    FILE *vocab = fopen(folder_file("tokenizer/vocab.txt"), "wb");
    CHECK(vocab != NULL);
    fprintf(vocab, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
    for (int w = 0; w < word_count; w++) {
        fprintf(vocab, "w%d\n", w);
    }
    CHECK(fclose(vocab) == 0);
    CHECK_OK(tokenizer_open(folder_file("tokenizer"), &tokenizer));
    return tokenizer;
}

struct counts {
    int64_t examples, swapped, untruncated;
    bool documents[LONG_DOCUMENTS + SINGLES];
};

/* Checks that the ids are consecutive words of one document, and returns that document. */
static int check_segment(const int32_t *ids, int64_t count)
{
    CHECK(count > 0 && ids[0] >= SPECIALS);
    for (int64_t i = 0; i < count; i++) {
        CHECK_EQUAL(ids[i], ids[0] + i);
        CHECK_EQUAL(document_of[ids[i] - SPECIALS], document_of[ids[0] - SPECIALS]);
    }
    return document_of[ids[0] - SPECIALS];
}

static void check_example(const int32_t *ids, int64_t count, int64_t first, bool swapped,
                          struct counts *counts)
{
    CHECK(count <= T && first >= 3 && first < count - 1);
    CHECK(ids[0] == CLS && ids[first - 1] == SEP && ids[count - 1] == SEP);
    int a = check_segment(ids + 1, first - 2), b = check_segment(ids + first, count - first - 1);
    CHECK_EQUAL(a, b);
    int32_t end = swapped ? ids[count - 2] : ids[first - 2]; /* of the segment that comes first */
    int32_t next = swapped ? ids[1] : ids[first];
    CHECK(next > end);
    CHECK(count == T || next == end + 1); /* only truncated segments have a gap between them */
    counts->examples++;
    counts->swapped += swapped;
    counts->untruncated += count < T;
    counts->documents[a] = true;
}

static void read_examples(const char *path, struct counts *counts)
{
    struct shard *s;
    CHECK_OK(shard_open(path, &s));
    for (int64_t e = 0; e < shard_get_header(s)->documents; e++) {
        int64_t range[2];
        uint32_t first, swapped;
        int32_t ids[T];
        CHECK_OK(shard_read_documents(s, e, 2, range));
        CHECK(range[1] - range[0] <= T);
        CHECK_OK(shard_read(s, range[0], range[1] - range[0], ids));
        CHECK_OK(shard_read_column(s, EXAMPLE_FIRST_SEGMENT, e, 1, &first));
        CHECK_OK(shard_read_column(s, EXAMPLE_NEXT_SENTENCE, e, 1, &swapped));
        check_example(ids, range[1] - range[0], first, swapped == 1, counts);
    }
    CHECK_OK(shard_close(&s));
}

int main(void)
{
    folder_make();
    struct tokenizer *tokenizer = make_files();
    char *inputs[] = {folder_file("text.txt")};
    const struct prepare_options options = {.tokenizer = tokenizer,
                                            .inputs = inputs,
                                            .input_count = 1,
                                            .output = folder_file("pairs"),
                                            .document_unit = PREPARE_DOCUMENT_PARAGRAPH,
                                            .sentence_rule = PREPARE_SENTENCE_LINES,
                                            .shard_tokens = 1000000,
                                            .workers = 2,
                                            .sequence_tokens = T,
                                            .short_fraction = 0.5,
                                            .pair_seed = 3,
                                            .sentence_order = true};
    struct prepare_report report;
    struct counts counts = {0};
    CHECK_OK(prepare_mlm(&options, &report));
    CHECK_EQUAL(report.train_shards, 1);
    read_examples(folder_file("pairs/train-00000-of-00001.h5"), &counts);
    CHECK_EQUAL(counts.examples, report.examples);
    double share = (double)counts.swapped / (double)counts.examples;
    CHECK(share > 0.4 && share < 0.6);
    CHECK(counts.untruncated > counts.examples / 4);
    for (int d = 0; d < LONG_DOCUMENTS + SINGLES; d++) { /* the last document has one word */
        CHECK(counts.documents[d] == (d + 1 < LONG_DOCUMENTS + SINGLES));
    }
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
