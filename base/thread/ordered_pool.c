/* The slots form a ring. The calling thread fills them, worker threads process them, and the
 * calling thread consumes them. The order of the slots is fixed, so the output does not depend on
 * the speed of the workers. */
#include "base/thread/ordered_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread/cores.h"
#include "base/thread/thread.h"

struct ordered_pool {
    const struct ordered_pool_callbacks *callbacks;
    void *user;
    int slot_count, opened_slots, worker_count;
    char *slot_memory; /* [slot_count] of callbacks->slot_bytes each */
    bool *processed;   /* [slot_count] set by the worker */
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t slot_submitted, slot_processed;
    int64_t submitted, taken, consumed; /* numbers of slots so far; taken: by workers */
    bool stop;
};

static void *find_slot(const struct ordered_pool *p, int64_t number)
{
    return p->slot_memory + (size_t)(number % p->slot_count) * p->callbacks->slot_bytes;
}

static void *run_worker(void *argument)
{
    struct ordered_pool *p = argument;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (!p->stop && p->taken == p->submitted) {
            pthread_cond_wait(&p->slot_submitted, &p->mutex);
        }
        if (p->stop) {
            break;
        }
        int64_t number = p->taken++;
        pthread_mutex_unlock(&p->mutex);
        p->callbacks->process_slot(p->user, find_slot(p, number));
        pthread_mutex_lock(&p->mutex);
        p->processed[number % p->slot_count] = true;
        pthread_cond_signal(&p->slot_processed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static status start_workers(struct ordered_pool *p, int workers)
{
    int failed = 0;
    while (p->worker_count < workers && failed == 0) {
        failed = thread_start(&p->threads[p->worker_count], run_worker, p);
        p->worker_count += failed == 0;
    }
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start %d worker threads: %s", workers,
            strerror(failed));
    return STATUS_OK;
}

static status start_pool(struct ordered_pool *p, int workers)
{
    p->slot_memory = calloc((size_t)p->slot_count, p->callbacks->slot_bytes);
    p->processed = calloc((size_t)p->slot_count, sizeof *p->processed);
    p->threads = calloc((size_t)workers, sizeof *p->threads);
    REQUIRE(p->slot_memory != NULL && p->processed != NULL && p->threads != NULL, STATUS_INTERNAL,
            "out of memory for %d worker threads", workers);
    for (; p->opened_slots < p->slot_count; p->opened_slots++) {
        TRY(p->callbacks->open_slot != NULL ? p->callbacks->open_slot(find_slot(p, p->opened_slots))
                                            : STATUS_OK);
    }
    return start_workers(p, workers);
}

status ordered_pool_open(const struct ordered_pool_callbacks *callbacks, void *user, int workers,
                         struct ordered_pool **out)
{
    *out = NULL;
    workers = workers > 0 ? workers : cores_allowed();
    struct ordered_pool *p = NULL;
    TRY(ALLOCATE(p, 1, "worker threads"));
    p->callbacks = callbacks;
    p->user = user;
    p->slot_count = 2 * workers + 2;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->slot_submitted, NULL);
    pthread_cond_init(&p->slot_processed, NULL);
    status result = start_pool(p, workers);
    if (result != STATUS_OK) {
        ordered_pool_close(&p);
        return result;
    }
    *out = p;
    return STATUS_OK;
}

void *ordered_pool_slot(const struct ordered_pool *p)
{
    return find_slot(p, p->submitted);
}

/* Waits for the oldest slot and consumes it; the slot is free afterwards. */
static status consume_oldest(struct ordered_pool *p)
{
    bool *done = &p->processed[p->consumed % p->slot_count];
    pthread_mutex_lock(&p->mutex);
    while (!*done) {
        pthread_cond_wait(&p->slot_processed, &p->mutex);
    }
    pthread_mutex_unlock(&p->mutex);
    *done = false;
    return p->callbacks->consume_slot(p->user, find_slot(p, p->consumed++));
}

status ordered_pool_submit(struct ordered_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    p->submitted++;
    pthread_cond_signal(&p->slot_submitted);
    pthread_mutex_unlock(&p->mutex);
    return p->submitted - p->consumed == p->slot_count ? consume_oldest(p) : STATUS_OK;
}

status ordered_pool_drain(struct ordered_pool *p)
{
    while (p->consumed < p->submitted) {
        TRY(consume_oldest(p));
    }
    return STATUS_OK;
}

void ordered_pool_close(struct ordered_pool **ordered_pool)
{
    struct ordered_pool *p = *ordered_pool;
    if (p == NULL) {
        return;
    }
    *ordered_pool = NULL;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_broadcast(&p->slot_submitted);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->worker_count; i++) {
        pthread_join(p->threads[i], NULL);
    }
    pthread_mutex_destroy(&p->mutex);
    pthread_cond_destroy(&p->slot_submitted);
    pthread_cond_destroy(&p->slot_processed);
    for (int i = 0; i < p->opened_slots; i++) {
        p->callbacks->close_slot(find_slot(p, i));
    }
    free(p->slot_memory);
    free(p->processed);
    free(p->threads);
    free(p);
}
