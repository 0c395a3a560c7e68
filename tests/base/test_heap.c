/* Tests of heap.h: items come out in order, also if pushes and pops alternate. */
#include "base/heap.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/check.h"

enum { ITEMS = 997 };

struct item {
    int64_t key;
    int number;
};

static bool is_before(const void *first, const void *second)
{
    const struct item *a = first, *b = second;
    return a->key != b->key ? a->key < b->key : a->number < b->number;
}

/* Items with few different keys: equal keys are ordered by their numbers. */
static struct item make_item(int number)
{
    return (struct item){.key = (int64_t)random_below(7, (uint64_t)number, 50), .number = number};
}

/* Removes the first item and compares it with a search of all items. */
static void pop_and_compare(struct item *items, int64_t *count)
{
    struct item expected = items[0], popped;
    for (int64_t i = 1; i < *count; i++) {
        expected = is_before(&items[i], &expected) ? items[i] : expected;
    }
    heap_pop(items, *count, &popped, sizeof popped, is_before);
    CHECK_EQUAL(popped.key, expected.key);
    CHECK_EQUAL(popped.number, expected.number);
    *count -= 1;
}

int main(void)
{
    struct item items[ITEMS + 1] = {[ITEMS] = {.key = -1}}; /* the last one is a guard */
    int64_t count = 0;
    for (int i = 0; i < ITEMS; i++) {
        struct item item = make_item(i);
        heap_push(items, count++, &item, sizeof item, is_before);
        if (i % 3 == 2) {
            pop_and_compare(items, &count);
        }
    }
    CHECK_EQUAL(count, ITEMS - ITEMS / 3);
    while (count > 0) {
        pop_and_compare(items, &count);
    }
    CHECK_EQUAL(items[ITEMS].key, -1);
    return 0;
}
