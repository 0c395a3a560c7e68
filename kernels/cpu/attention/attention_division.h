/* The division of attention over the threads.
 *
 * Forward   The rows of all queries are in the order of their sequences, heads and numbers. Each
 *           thread has one range of them. The ranges have almost equal work. The work is the number
 *           of scores that are computed. The rows of a group are computed together: ATTENTION_GROUP
 *           rows, or ATTENTION_TILE rows with AMX. A range begins at the first row of a group, so
 *           the groups are the same with any number of threads.
 * Backward  With few threads, a work item is a key-value head of a sequence. Otherwise a work item
 *           is a tile of keys of such a head, and a thread takes the next item when it is idle. If
 *           there are still few items, each of them has fewer keys. */
#pragma once

#include "base/number.h"
#include "kernels/cpu/attention/attention_head.h"

/* ---- forward ---- */

/* A row of a head. The heads of all sequences are numbered: sequence * H + head. */
struct attention_position {
    int64_t head, row;
};

/* attention_next_group - return the first row after the group of `group` rows that begins at
 * `row`. */
static inline int64_t attention_next_group(const struct attention_head *h, int64_t group,
                                           int64_t row)
{
    int64_t block = row / ATTENTION_QUERIES * ATTENTION_QUERIES;
    int64_t next = block + ((row - block) / group + 1) * group;
    next = number_min(next, block + ATTENTION_QUERIES);
    return number_min(next, h->queries);
}

/* attention_group_work - return the number of scores of the group of rows that begins at `row`. A
 * row without keys counts as one score. */
static inline int64_t attention_group_work(const struct attention_head *h, int64_t group,
                                           int64_t row)
{
    int64_t next = attention_next_group(h, group, row);
    int64_t first = attention_visible_keys(h, row).first;
    int64_t keys = attention_visible_keys(h, next - 1).last - first;
    return (next - row) * (keys > 0 ? keys : 1);
}

/* attention_head_work - return the number of scores of a head. */
static inline int64_t attention_head_work(const struct attention_head *h, int64_t group)
{
    int64_t work = 0;
    for (int64_t row = 0; row < h->queries; row = attention_next_group(h, group, row)) {
        work += attention_group_work(h, group, row);
    }
    return work;
}

/* attention_find_row - return the row of a head before which `work` scores are computed, rounded to
 * the nearest group. */
static inline int64_t attention_find_row(const struct attention_head *h, int64_t group,
                                         int64_t work)
{
    int64_t row = 0, done = 0;
    while (row < h->queries) {
        int64_t next = attention_group_work(h, group, row);
        if (2 * (work - done) <= next) {
            break;
        }
        done += next;
        row = attention_next_group(h, group, row);
    }
    return row;
}

/* attention_range_begin - return where the rows of a thread begin. They end where the rows of the
 * next thread begin. */
static inline struct attention_position
attention_range_begin(const struct attention *a, int64_t group, int thread, int threads)
{
    const struct attention_distances none = {0};
    int64_t total = 0;
    for (int64_t i = 0; i < a->sequences; i++) {
        struct attention_head h = attention_make_head(a, &none, i, 0);
        total += attention_head_work(&h, group) * a->heads;
    }
    int64_t before = total / threads * thread + total % threads * thread / threads;
    for (int64_t i = 0; i < a->sequences; i++) {
        struct attention_head h = attention_make_head(a, &none, i, 0);
        int64_t work = attention_head_work(&h, group);
        if (before < work * a->heads) {
            int64_t row = attention_find_row(&h, group, before % work);
            return (struct attention_position){i * a->heads + before / work, row};
        }
        before -= work * a->heads;
    }
    return (struct attention_position){a->sequences * a->heads, 0};
}

/* ---- backward ---- */

/* The sequences i, i + ATTENTION_BIAS_PARTS, ... have the same thread if whole heads are items
 * (attention_bias.h). */
enum { ATTENTION_BIAS_PARTS = 64 };

/* attention_head_thread - return the thread of a key-value head if whole heads are work items. */
static inline int attention_head_thread(const struct attention *a, int64_t sequence,
                                        int64_t kv_head, int threads)
{
    return (int)((sequence % ATTENTION_BIAS_PARTS * a->kv_heads + kv_head) % threads);
}

/* A work item: the keys from `key` on. */
struct attention_item {
    int64_t sequence, kv_head, key;
};

/* attention_count_items - return the number of work items with at most `keys` keys. */
static inline int64_t attention_count_items(const struct attention *a, int64_t keys)
{
    return number_divide_up(a->longest_k, keys) * a->sequences * a->kv_heads;
}

/* attention_get_item - return work item `index`.
 *
 * The items are in the order of their keys: the first tile of keys of every head comes first.
 * Therefore a thread waits only for items that another thread has taken before. With a causal mask,
 * the items with the most queries come first. */
static inline struct attention_item attention_get_item(const struct attention *a, int64_t keys,
                                                       int64_t index)
{
    int64_t heads = a->sequences * a->kv_heads;
    return (struct attention_item){index % heads / a->kv_heads, index % a->kv_heads,
                                   index / heads * keys};
}

enum { ATTENTION_ITEMS_PER_THREAD = 8 };

/* attention_most_sequences - return an upper bound on the number of sequences of a call with `rows`
 * queries for which attention_divide_further returns true. */
static inline int64_t attention_most_sequences(int64_t rows, int threads)
{
    return number_min(rows / ATTENTION_STEP, (int64_t)ATTENTION_ITEMS_PER_THREAD * threads);
}

/* attention_divide_further - return whether whole heads are too few work items for the threads. One
 * or two threads need no further division. More threads need none if each one gets the same number
 * of equal items. Sequences of less than ATTENTION_STEP queries on average are not divided, even if
 * they have many keys, because the padding of their packed queries would need too much scratch
 * memory. The gradient of a bias and shared prefixes need whole heads. */
static inline bool attention_divide_further(const struct attention *a, int threads)
{
    int64_t items = a->sequences * a->kv_heads;
    int64_t rows = a->cu_q[a->sequences] - a->cu_q[0];
    bool are_equal = rows == a->sequences * a->longest_q;
    bool are_long = rows >= a->sequences * ATTENTION_STEP;
    bool is_possible = a->bias.gradient.data == NULL && a->shared_prefix_offsets == NULL;
    return is_possible && are_long && threads > 2 &&
           items < (int64_t)ATTENTION_ITEMS_PER_THREAD * threads &&
           !(are_equal && items % threads == 0);
}

/* attention_item_keys - return the largest number of keys of a work item; 0: whole heads are items.
 * Half a tile costs 4 to 25 % more CPU time than a tile, and a quarter costs 28 to 63 % more. A
 * quarter is therefore slower even if fewer threads are idle. The number of keys is a multiple of
 * ATTENTION_STEP, so that it does not change the order of additions with AMX. */
static inline int64_t attention_item_keys(const struct attention *a, int threads)
{
    enum { KEYS_MIN = ATTENTION_STEP, ITEMS_PER_THREAD = 5 };
    int64_t keys = ATTENTION_KEYS;
    if (!attention_divide_further(a, threads)) {
        return 0;
    }
    while (keys > KEYS_MIN &&
           attention_count_items(a, keys) < (int64_t)ITEMS_PER_THREAD * threads) {
        keys /= 2;
    }
    return keys;
}
