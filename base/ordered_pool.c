/* Work by several threads whose results are taken in order.
 *
 * The calling thread fills the slot at `head`, workers take filled slots at `next`, and the calling thread empties them
 * at `tail`. Slots go round in one order, so that the output does not depend on which worker was faster. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/thread.h"
#include "datasets/prepare/input.h"

struct ring {
    const struct ring_work *work;
    void *user;
    int slots, opened, workers;
    char *slot; /* [slots] of work->slot_bytes each */
    bool *done; /* [slots] by its worker */
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t filled, finished;
    int64_t head, next, tail; /* slots filled, taken by workers, emptied; in all */
    bool stop;
};

static void *slot_at(const struct ring *r, int64_t number)
{
    return r->slot + (size_t)(number % r->slots) * r->work->slot_bytes;
}

static void *work(void *argument)
{
    struct ring *r = argument;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->stop && r->next == r->head) {
            pthread_cond_wait(&r->filled, &r->mutex);
        }
        if (r->stop) {
            break;
        }
        int64_t number = r->next++;
        pthread_mutex_unlock(&r->mutex);
        r->work->run(r->user, slot_at(r, number));
        pthread_mutex_lock(&r->mutex);
        r->done[number % r->slots] = true;
        pthread_cond_signal(&r->finished);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static status start_workers(struct ring *r, int workers)
{
    int failed = 0;
    while (r->workers < workers && failed == 0) {
        failed = thread_start(&r->threads[r->workers], work, r);
        r->workers += failed == 0;
    }
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start %d encoding threads: %s", workers,
            strerror(failed));
    return STATUS_OK;
}

static status fill_ring(struct ring *r, int workers)
{
    r->slot = calloc((size_t)r->slots, r->work->slot_bytes);
    r->done = calloc((size_t)r->slots, sizeof *r->done);
    r->threads = calloc((size_t)workers, sizeof *r->threads);
    REQUIRE(r->slot != NULL && r->done != NULL && r->threads != NULL, STATUS_INTERNAL,
            "out of memory: %d encoding threads", workers);
    for (; r->opened < r->slots; r->opened++) {
        TRY(r->work->open != NULL ? r->work->open(slot_at(r, r->opened)) : STATUS_OK);
    }
    return start_workers(r, workers);
}

status ring_open(const struct ring_work *work, void *user, int workers, struct ring **out)
{
    *out = NULL;
    workers = workers > 0 ? workers : cores_allowed();
    struct ring *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory: encoding threads");
    r->work = work;
    r->user = user;
    r->slots = 2 * workers + 2;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->filled, NULL);
    pthread_cond_init(&r->finished, NULL);
    status result = fill_ring(r, workers);
    if (result != STATUS_OK) {
        ring_close(&r);
        return result;
    }
    *out = r;
    return STATUS_OK;
}

void *ring_slot(const struct ring *r)
{
    return slot_at(r, r->head);
}

/* Wait for the oldest slot, empty it, and make it the next free one. */
static status empty_oldest(struct ring *r)
{
    bool *done = &r->done[r->tail % r->slots];
    pthread_mutex_lock(&r->mutex);
    while (!*done) {
        pthread_cond_wait(&r->finished, &r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    *done = false;
    return r->work->empty(r->user, slot_at(r, r->tail++));
}

status ring_submit(struct ring *r)
{
    pthread_mutex_lock(&r->mutex);
    r->head++;
    pthread_cond_signal(&r->filled);
    pthread_mutex_unlock(&r->mutex);
    return r->head - r->tail == r->slots ? empty_oldest(r) : STATUS_OK;
}

status ring_drain(struct ring *r)
{
    while (r->tail < r->head) {
        TRY(empty_oldest(r));
    }
    return STATUS_OK;
}

void ring_close(struct ring **ring)
{
    struct ring *r = *ring;
    if (r == NULL) {
        return;
    }
    *ring = NULL;
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->filled);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->workers; i++) {
        pthread_join(r->threads[i], NULL);
    }
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->filled);
    pthread_cond_destroy(&r->finished);
    for (int i = 0; i < r->opened; i++) {
        r->work->close(slot_at(r, i));
    }
    free(r->slot);
    free(r->done);
    free(r->threads);
    free(r);
}
