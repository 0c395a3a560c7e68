/* Documents for tests of sentence pairs. The vocabulary has one token for each word of the text.
 * Words are numbered, so that an id identifies its document and position. */
#pragma once

#include "base/random.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"

enum { SPECIALS = 5, CLS = 2, SEP = 3, MASK = 4, WORDS_MAX = 12 * 1300, PAIR_TOKENS_MAX = 64 };

static int word_count;
static int document_of[WORDS_MAX];

/* Writes a line of new words of a document. Returns the number of the first word. */
static inline int write_sentence(FILE *text, int document, int words)
{
    int first = word_count;
    CHECK(word_count + words <= WORDS_MAX);
    for (int w = 0; w < words; w++) {
        document_of[word_count] = document;
        fprintf(text, "%sw%d", w > 0 ? " " : "", word_count++);
    }
    fprintf(text, "\n");
    return first;
}

/* Creates the tokenizer of all words and of a period. */
static inline struct tokenizer *make_word_tokenizer(void)
{
    struct tokenizer *tokenizer;
    CHECK_OK(file_make_folders(folder_file("tokenizer")));
    FILE *vocab = fopen(folder_file("tokenizer/vocab.txt"), "wb");
    CHECK(vocab != NULL);
    fprintf(vocab, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
    for (int w = 0; w < word_count; w++) {
        fprintf(vocab, "w%d\n", w);
    }
    fprintf(vocab, ".\n");
    CHECK(fclose(vocab) == 0);
    CHECK_OK(tokenizer_open(folder_file("tokenizer"), &tokenizer));
    return tokenizer;
}

/* Checks that the ids are consecutive words of one document, and returns that document. */
static inline int check_segment(const int32_t *ids, int64_t count)
{
    CHECK(count > 0 && ids[0] >= SPECIALS);
    int document = document_of[ids[0] - SPECIALS];
    for (int64_t i = 0; i < count; i++) {
        CHECK_EQUAL(ids[i], ids[0] + i);
        CHECK_EQUAL(document_of[ids[i] - SPECIALS], document);
    }
    return document;
}

/* Calls `use` for each pair of a shard. first: tokens of the first segment with [CLS] and [SEP];
 * label: the one of the next sentence. */
static inline void read_pairs(const char *path,
                              void (*use)(void *user, const int32_t *ids, int64_t count,
                                          int64_t first, bool label),
                              void *user)
{
    struct shard *s;
    CHECK_OK(shard_open(path, &s));
    CHECK_OK(shard_verify(s));
    CHECK_EQUAL(shard_get_header(s)->kind, EXAMPLE_SENTENCE_PAIRS);
    for (int64_t e = 0; e < shard_get_header(s)->documents; e++) {
        int64_t range[2];
        uint32_t first, label;
        int32_t ids[PAIR_TOKENS_MAX];
        CHECK_OK(shard_read_documents(s, e, 2, range));
        int64_t count = range[1] - range[0];
        CHECK(count <= PAIR_TOKENS_MAX);
        CHECK_OK(shard_read(s, range[0], count, ids));
        CHECK_OK(shard_read_column(s, EXAMPLE_FIRST_SEGMENT, e, 1, &first));
        CHECK_OK(shard_read_column(s, EXAMPLE_NEXT_SENTENCE, e, 1, &label));
        use(user, ids, count, first, label == 1);
    }
    CHECK_OK(shard_close(&s));
}
