/* Tests of thread.h: each item runs once, in its own thread if one can be started. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "base/thread/thread.h"

#include <signal.h>

#include "base/memory.h"
#include "tests/check.h"

enum { ITEMS = 17 };

struct item {
    int number, runs;
    pthread_t thread;
    bool blocks_signals;
};

static void run_item(void *user)
{
    struct item *item = user;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    item->runs++;
    item->thread = pthread_self();
    item->blocks_signals =
        sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGINT) == 1;
}

/* Runs `count` items. If threads can be started, each item but the first has its own thread. */
static void run_and_check(int count, bool has_threads)
{
    struct item items[ITEMS] = {0};
    for (int i = 0; i < ITEMS; i++) {
        items[i].number = i;
    }
    thread_run_each(run_item, items, sizeof *items, count);
    for (int i = 0; i < ITEMS; i++) {
        bool is_own = i > 0 && has_threads;
        CHECK_EQUAL(items[i].number, i);
        CHECK_EQUAL(items[i].runs, i < count);
        CHECK(i >= count || !pthread_equal(items[i].thread, pthread_self()) == is_own);
        CHECK(i >= count || items[i].blocks_signals == is_own);
    }
}

static void *do_nothing(void *user)
{
    return user;
}

/* No thread can start, because its stack is larger than the address space. */
static void forbid_threads(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, (size_t)1 << 52) == 0);
    CHECK(pthread_setattr_default_np(&attributes) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
    CHECK(thread_start(&thread, do_nothing, NULL) != 0);
}

int main(void)
{
    const int counts[] = {0, 1, 2, ITEMS};
    for (int i = 0; i < COUNT(counts); i++) {
        run_and_check(counts[i], true);
    }
    CHECK_OK(thread_check_count(3));
    forbid_threads();
    for (int i = 0; i < COUNT(counts); i++) {
        run_and_check(counts[i], false);
    }
    CHECK_FAILS(thread_check_count(3), STATUS_INTERNAL, "cannot start thread 1 of 3");
    return 0;
}
