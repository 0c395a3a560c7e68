#include "datasets/tokenizer/word_count.h"

#include <pthread.h>
#include <stdlib.h>

#include "datasets/tokenizer/corpus.h"

struct counter {                             /* one thread's part */
    const struct pretokeniser *pretokeniser; /* NULL: BERT's words */
    const struct bert_text_options *bert;
    struct corpus *corpus;
    struct word_count words;
    pthread_t thread;
    bool started;
    status result;
    struct status_note note;
};

void word_count_free(struct word_count *words)
{
    text_map_free(&words->map);
    text_store_free(&words->store);
}

static status add(struct word_count *words, const char *text, size_t bytes, int64_t times)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_slot(&words->map, &words->store, text, bytes, &slot, &is_new));
    slot->value += times;
    return STATUS_OK;
}

static status add_bert_word(void *context, const char *word, size_t bytes, size_t characters)
{
    (void)characters;
    return add(context, word, bytes, 1);
}

static status count_piece(struct scanner *scanner, const struct corpus_piece *piece,
                          struct word_count *words)
{
    scanner_start(scanner, piece->text, piece->bytes);
    for (;;) {
        size_t start = 0, end = 0;
        TRY(scanner_next(scanner, &start, &end));
        if (start == end) {
            return STATUS_OK;
        }
        TRY(add(words, piece->text + start, end - start, 1));
    }
}

static status count_pieces(struct counter *c)
{
    struct scanner *scanner = NULL;
    TRY(c->bert == NULL ? scanner_create(c->pretokeniser, &scanner) : STATUS_OK);
    struct corpus_piece piece = {0};
    status result = STATUS_OK;
    do {
        TRY_GOTO(result, done, corpus_next(c->corpus, &piece));
        TRY_GOTO(result, done,
                 c->bert == NULL
                     ? count_piece(scanner, &piece, &c->words)
                     : bert_text_words(c->bert, piece.text, piece.bytes, add_bert_word, &c->words));
    } while (piece.bytes > 0);
done:
    corpus_piece_free(&piece);
    scanner_destroy(scanner);
    return result;
}

static void *counter_main(void *argument)
{
    struct counter *c = argument;
    c->result = count_pieces(c);
    status_take(&c->note);
    return NULL;
}

static status join(struct counter *counters, int workers, struct word_count *out)
{
    status result = STATUS_OK;
    for (int i = 0; i < workers; i++) {
        if (counters[i].started) {
            pthread_join(counters[i].thread, NULL);
        }
        KEEP_FIRST(result, status_restore(&counters[i].note));
    }
    *out = counters[0].words;
    for (int i = 1; i < workers; i++) {
        struct word_count *part = &counters[i].words;
        for (size_t s = 0; s < part->map.capacity && result == STATUS_OK; s++) {
            const struct text_slot *slot = &part->map.slots[s];
            if (slot->text != NULL) {
                result = add(out, slot->text, slot->bytes, slot->value);
            }
        }
        word_count_free(part);
    }
    return result;
}

static status count_all(struct counter what, int workers, struct word_count *out)
{
    struct counter *counters = calloc((size_t)workers, sizeof *counters);
    REQUIRE(counters != NULL, STATUS_INTERNAL, "out of memory: %d workers", workers);
    for (int i = 0; i < workers; i++) {
        counters[i] = what;
    }
    for (int i = 1; i < workers; i++) { /* one that cannot start leaves its share to the others */
        counters[i].started =
            pthread_create(&counters[i].thread, NULL, counter_main, &counters[i]) == 0;
    }
    counter_main(&counters[0]);
    status result = join(counters, workers, out);
    free(counters);
    return result;
}

static status count_files(struct counter what, char *const *files, int count, int workers,
                          struct word_count *out)
{
    *out = (struct word_count){0};
    TRY(corpus_open(files, count, &what.corpus));
    status result = count_all(what, workers < 1 ? 1 : workers, out);
    corpus_close(what.corpus);
    if (result != STATUS_OK) {
        word_count_free(out);
    }
    return result;
}

status word_count_files(enum pretokenise_pattern pattern, char *const *files, int count,
                        int workers, struct word_count *out)
{
    struct pretokeniser *pretokeniser = NULL;
    TRY(pretokeniser_create(pattern, &pretokeniser));
    struct counter what = {.pretokeniser = pretokeniser};
    status result = count_files(what, files, count, workers, out);
    pretokeniser_destroy(pretokeniser);
    return result;
}

status word_count_bert(const struct bert_text_options *options, char *const *files, int count,
                       int workers, struct word_count *out)
{
    struct counter what = {.bert = options};
    return count_files(what, files, count, workers, out);
}
