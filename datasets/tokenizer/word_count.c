#include "datasets/tokenizer/word_count.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread/thread.h"
#include "base/utf8.h"
#include "datasets/rows/corpus.h"

/* The state of one thread. */
struct count_worker {
    const struct pretokenizer *pretokenizer; /* one of these three is set */
    const struct bert_text_options *bert;
    size_t longest; /* > 0: words begin at spaces and have at most this many bytes */
    struct corpus *corpus;
    struct word_count words;
    struct status_note note;
};

void word_count_free(struct word_count *words)
{
    text_map_free(&words->map);
    text_store_free(&words->store);
}

static status add_word(struct word_count *words, const char *text, size_t bytes, int64_t count)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(&words->map, &words->store, text, bytes, &slot, &is_new));
    slot->value += count;
    return STATUS_OK;
}

static status add_bert_word(void *context, const char *word, size_t bytes, size_t characters)
{
    (void)characters;
    return add_word(context, word, bytes, 1);
}

static status count_chunk(struct pretokenizer_scanner *scanner, const struct corpus_chunk *chunk,
                          struct word_count *words)
{
    pretokenizer_scanner_start(scanner, chunk->text, chunk->bytes);
    for (;;) {
        size_t start = 0, end = 0;
        TRY(pretokenizer_scanner_next(scanner, &start, &end));
        if (start == end) {
            return STATUS_OK;
        }
        TRY(add_word(words, chunk->text + start, end - start, 1));
    }
}

/* A word of a text with U+2581 for its space. */
struct space_word {
    char *text; /* [longest + 4] */
    size_t bytes, longest;
    struct word_count *words;
};

static status end_space_word(struct space_word *w)
{
    size_t bytes = w->bytes;
    w->bytes = 0;
    return bytes > 0 && bytes <= w->longest ? add_word(w->words, w->text, bytes, 1) : STATUS_OK;
}

static void add_to_space_word(struct space_word *w, const char *text, size_t bytes)
{
    if (w->bytes + bytes <= w->longest) {
        memcpy(w->text + w->bytes, text, bytes);
        w->bytes += bytes;
    } else {
        w->bytes = w->longest + 1; /* too long */
    }
}

static status split_spaces(struct space_word *w, const struct corpus_chunk *chunk)
{
    static const char space[] = "\xE2\x96\x81";
    if (chunk->offset == 0 && chunk->bytes > 0) {
        add_to_space_word(w, space, sizeof space - 1);
    }
    for (size_t i = 0; i < chunk->bytes;) {
        uint32_t code = 0;
        size_t bytes = utf8_read(chunk->text + i, chunk->bytes - i, &code);
        if (bytes == 0 || code <= ' ' || code == 0x7F) {
            TRY(end_space_word(w));
        }
        if (code == ' ') {
            add_to_space_word(w, space, sizeof space - 1);
        } else if (code > ' ' && code != 0x7F) {
            add_to_space_word(w, chunk->text + i, bytes);
        }
        i += bytes > 0 ? bytes : 1;
    }
    return end_space_word(w);
}

static status count_spaces(const struct corpus_chunk *chunk, size_t longest,
                           struct word_count *words)
{
    struct space_word w = {.longest = longest, .words = words};
    TRY(ALLOCATE(w.text, longest + 4, "a word"));
    status result = split_spaces(&w, chunk);
    free(w.text);
    return result;
}

static status count_chunks(struct count_worker *c)
{
    struct pretokenizer_scanner *scanner = NULL;
    TRY(c->pretokenizer != NULL ? pretokenizer_scanner_create(c->pretokenizer, &scanner)
                                : STATUS_OK);
    struct corpus_chunk chunk = {0};
    status result = STATUS_OK;
    do {
        TRY_GOTO(result, done, corpus_next(c->corpus, &chunk));
        TRY_GOTO(result, done,
                 c->longest > 0    ? count_spaces(&chunk, c->longest, &c->words)
                 : c->bert == NULL ? count_chunk(scanner, &chunk, &c->words)
                                   : bert_text_split_words(c->bert, chunk.text, chunk.bytes,
                                                           add_bert_word, &c->words));
    } while (chunk.bytes > 0);
done:
    corpus_chunk_free(&chunk);
    pretokenizer_scanner_destroy(scanner);
    return result;
}

/* Counts the words of chunks until no chunk is left. */
static void run_worker(void *item)
{
    struct count_worker *c = item;
    count_chunks(c);
    status_take(&c->note);
}

static status merge_counts(struct count_worker *count_workers, int workers, struct word_count *out)
{
    status result = STATUS_OK;
    for (int i = 0; i < workers; i++) {
        KEEP_FIRST(result, status_restore(&count_workers[i].note));
    }
    *out = count_workers[0].words;
    for (int i = 1; i < workers; i++) {
        struct word_count *worker_words = &count_workers[i].words;
        for (size_t s = 0; s < worker_words->map.capacity && result == STATUS_OK; s++) {
            const struct text_slot *slot = &worker_words->map.slots[s];
            if (slot->text != NULL) {
                result = add_word(out, slot->text, slot->bytes, slot->value);
            }
        }
        word_count_free(worker_words);
    }
    return result;
}

static status run_workers(struct count_worker template, int workers, struct word_count *out)
{
    struct count_worker *count_workers = NULL;
    TRY(ALLOCATE(count_workers, workers, "workers"));
    for (int i = 0; i < workers; i++) {
        count_workers[i] = template;
    }
    thread_run_each(run_worker, count_workers, sizeof *count_workers, workers);
    status result = merge_counts(count_workers, workers, out);
    free(count_workers);
    return result;
}

static status count_files(struct count_worker template, const struct corpus_source *source,
                          int workers, struct word_count *out)
{
    *out = (struct word_count){0};
    TRY(corpus_open(source, &template.corpus));
    status result = run_workers(template, workers < 1 ? 1 : workers, out);
    corpus_close(template.corpus);
    if (result != STATUS_OK) {
        word_count_free(out);
    }
    return result;
}

status word_count_files(enum pretokenizer_pattern pattern, const struct corpus_source *source,
                        int workers, struct word_count *out)
{
    struct pretokenizer *pretokenizer = NULL;
    TRY(pretokenizer_create(pattern, &pretokenizer));
    struct count_worker template = {.pretokenizer = pretokenizer};
    status result = count_files(template, source, workers, out);
    pretokenizer_destroy(pretokenizer);
    return result;
}

status word_count_bert(const struct bert_text_options *options, const struct corpus_source *source,
                       int workers, struct word_count *out)
{
    struct count_worker template = {.bert = options};
    return count_files(template, source, workers, out);
}

status word_count_spaces(size_t longest, const struct corpus_source *source, int workers,
                         struct word_count *out)
{
    struct count_worker template = {.longest = longest};
    return count_files(template, source, workers, out);
}
