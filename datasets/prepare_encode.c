/* Encoding by several threads, in order.
 *
 * A ring of slots: the calling thread fills the slot at `head` with pieces, workers take filled slots at
 * `next`, and the calling thread empties them at `tail` into the output. Slots go round in one order, so
 * the output does not depend on which worker was faster. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "datasets/prepare_impl.h"

enum {
    SLOT_PIECES = 1024,
    SLOT_FULL_BYTES = 64 << 10,
    SLOT_BYTES = SLOT_FULL_BYTES + PREPARE_PIECE_BYTES
};

struct piece {
    size_t text_end; /* in the slot */
    int64_t tokens_end;
    bool ends_document;
    struct origin origin;
};

struct slot {
    char *text; /* [SLOT_BYTES] */
    size_t bytes;
    struct piece pieces[SLOT_PIECES];
    int count;
    struct token_list tokens;
    bool done;
    struct status_note note;
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct sink sink;
    int32_t begin, eos; /* around a document; -1: none */
    bool inside;        /* of a document whose first piece was written */
    int slots, workers;
    struct slot *ring;
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    int64_t head, next, tail; /* slots filled, taken by workers, emptied; in all */
    bool stop;
};

static status encode_sentences(struct encoder *e, struct slot *s, const char *text, size_t bytes,
                               bool stops)
{
    for (size_t at = 0; at < bytes;) {
        size_t end = sentence_end(text, bytes, at, stops);
        TRY(tokenizer_encode(e->tokenizer, text + at, end - at, false, &s->tokens));
        TRY(token_list_reserve(&s->tokens, 1));
        s->tokens.ids[s->tokens.count++] = PREPARE_SENTENCE_END;
        at = end;
    }
    return STATUS_OK;
}

/* The tokenizer counts bytes from the piece's start; the user knows the file. */
static status encode_piece(struct encoder *e, struct slot *s, const struct piece *p, size_t begin)
{
    const char *text = s->text + begin;
    size_t bytes = p->text_end - begin;
    status result = e->sink.sentences
                        ? encode_sentences(e, s, text, bytes, p->origin.stops)
                        : tokenizer_encode(e->tokenizer, text, bytes, false, &s->tokens);
    if (result == STATUS_OK) {
        return STATUS_OK;
    }
    struct status_note inner;
    status_take(&inner);
    RAISE(result, "%s: in the text that begins at %s %lld: %.1500s", p->origin.path,
          p->origin.is_line ? "line" : "byte", (long long)p->origin.place, inner.text);
}

static void encode_slot(struct encoder *e, struct slot *s)
{
    size_t begin = 0;
    s->tokens.count = 0;
    s->note.code = STATUS_OK;
    for (int i = 0; i < s->count; i++) {
        if (encode_piece(e, s, &s->pieces[i], begin) != STATUS_OK) {
            status_take(&s->note);
            return;
        }
        s->pieces[i].tokens_end = s->tokens.count;
        begin = s->pieces[i].text_end;
    }
}

static void *work(void *argument)
{
    struct encoder *e = argument;
    pthread_mutex_lock(&e->mutex);
    for (;;) {
        while (!e->stop && e->next == e->head) {
            pthread_cond_wait(&e->work, &e->mutex);
        }
        if (e->stop) {
            break;
        }
        struct slot *s = &e->ring[e->next++ % e->slots];
        pthread_mutex_unlock(&e->mutex);
        encode_slot(e, s);
        pthread_mutex_lock(&e->mutex);
        s->done = true;
        pthread_cond_signal(&e->finished);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}

static status start_workers(struct encoder *e, int workers)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (e->workers < workers && failed == 0) {
        failed = pthread_create(&e->threads[e->workers], NULL, work, e);
        e->workers += failed == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start %d encoding threads: %s", workers,
            strerror(failed));
    return STATUS_OK;
}

status encoder_open(const struct tokenizer *tokenizer, int workers, struct sink sink,
                    struct encoder **out)
{
    *out = NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    workers = workers > 0 ? workers : cores > 0 ? (int)cores : 1;
    struct encoder *e = calloc(1, sizeof *e);
    REQUIRE(e != NULL, STATUS_INTERNAL, "out of memory: an encoder");
    e->tokenizer = tokenizer;
    e->sink = sink;
    e->begin = sink.sentences ? -1 : tokenizer_begin(tokenizer);
    e->eos = sink.sentences ? -1 : tokenizer_eos(tokenizer);
    e->slots = 2 * workers + 2;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->finished, NULL);
    e->ring = calloc((size_t)e->slots, sizeof *e->ring);
    e->threads = calloc((size_t)workers, sizeof *e->threads);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed, e->ring != NULL && e->threads != NULL, STATUS_INTERNAL,
                 "out of memory: %d encoding threads", workers);
    for (int i = 0; i < e->slots; i++) {
        e->ring[i].text = malloc(SLOT_BYTES);
        REQUIRE_GOTO(result, failed, e->ring[i].text != NULL, STATUS_INTERNAL,
                     "out of memory: %d encoding threads", workers);
    }
    TRY_GOTO(result, failed, start_workers(e, workers));
    *out = e;
    return STATUS_OK;
failed:
    encoder_close(&e);
    return result;
}

static status write_slot(struct encoder *e, struct slot *s)
{
    TRY(status_restore(&s->note));
    int64_t begin = 0;
    for (int i = 0; i < s->count; i++) {
        const struct piece *p = &s->pieces[i];
        if (!e->inside && e->begin >= 0) {
            TRY(e->sink.tokens(e->sink.to, &e->begin, 1));
        }
        TRY(e->sink.tokens(e->sink.to, s->tokens.ids + begin, p->tokens_end - begin));
        begin = p->tokens_end;
        e->inside = !p->ends_document;
        if (p->ends_document) {
            TRY(e->sink.tokens(e->sink.to, &e->eos, e->eos >= 0 ? 1 : 0));
            TRY(e->sink.end_document(e->sink.to));
        }
    }
    return STATUS_OK;
}

/* Wait for the oldest slot, write it, and make it the next free one. */
static status empty_oldest(struct encoder *e)
{
    struct slot *s = &e->ring[e->tail % e->slots];
    pthread_mutex_lock(&e->mutex);
    while (!s->done) {
        pthread_cond_wait(&e->finished, &e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    status result = write_slot(e, s);
    s->done = false;
    s->count = 0;
    s->bytes = 0;
    e->tail++;
    return result;
}

static status submit(struct encoder *e)
{
    pthread_mutex_lock(&e->mutex);
    e->head++;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->mutex);
    return e->head - e->tail == e->slots ? empty_oldest(e) : STATUS_OK;
}

status encoder_piece(struct encoder *e, const char *text, size_t bytes, bool ends_document,
                     struct origin origin)
{
    struct slot *s = &e->ring[e->head % e->slots];
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
    s->pieces[s->count++] = (struct piece){s->bytes, 0, ends_document, origin};
    bool full = s->bytes >= SLOT_FULL_BYTES || s->count == SLOT_PIECES;
    return full ? submit(e) : STATUS_OK;
}

status encoder_drain(struct encoder *e)
{
    if (e->ring[e->head % e->slots].count > 0) {
        TRY(submit(e));
    }
    while (e->tail < e->head) {
        TRY(empty_oldest(e));
    }
    return STATUS_OK;
}

void encoder_close(struct encoder **encoder)
{
    struct encoder *e = *encoder;
    if (e == NULL) {
        return;
    }
    *encoder = NULL;
    pthread_mutex_lock(&e->mutex);
    e->stop = true;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->mutex);
    for (int i = 0; i < e->workers; i++) {
        pthread_join(e->threads[i], NULL);
    }
    pthread_mutex_destroy(&e->mutex);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->finished);
    for (int i = 0; e->ring != NULL && i < e->slots; i++) {
        free(e->ring[i].text);
        token_list_free(&e->ring[i].tokens);
    }
    free(e->ring);
    free(e->threads);
    free(e);
}
