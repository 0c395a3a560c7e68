/* Tests the pairs of `bireme prepare --sentence-order`: two consecutive segments of one document,
 * in their order or swapped. */
#include "datasets/prepare/prepare.h"
#include "tests/datasets/word_documents.h"

enum {
    LONG_DOCUMENTS = 40,
    SENTENCES = 30, /* of a long document */
    SINGLES = 3,    /* documents of one sentence: SINGLE_WORDS words, two words, one word */
    SINGLE_WORDS = 9,
    T = 48
};

static struct tokenizer *make_files(void)
{
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
    return make_word_tokenizer();
}

struct counts {
    int64_t examples, swapped, untruncated;
    bool documents[LONG_DOCUMENTS + SINGLES];
};

static void check_example(void *user, const int32_t *ids, int64_t count, int64_t first,
                          bool swapped)
{
    struct counts *counts = user;
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
    read_pairs(folder_file("pairs/train-00000-of-00001.h5"), check_example, &counts);
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
