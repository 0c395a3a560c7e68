/* Tests how operations other than GEMMs are divided over 1 to 64 threads.
 *
 * Attention  The idle share of each model is computed from the work items of attention_division.h.
 *            The time of a thread is the number of products of query and key rows that it computes.
 * Others     The idle share of operations of GPT-2 124M that are limited by the memory bandwidth is
 *            computed from their units. The time of a unit is its number of elements. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "kernels/cpu/attention/attention_division.h"
#include "kernels/cpu/classifier.h"
#include "tests/check.h"

enum { THREADS_MAX = 64, SEQUENCES_MAX = 8, TOKENS_MAX = 512, HEADS_MAX = 32 };

/* The size of a tile of queries in the backward pass. */
enum { QUERY_TILE = 64, QUERY_TILES = TOKENS_MAX / QUERY_TILE };

struct model {
    const char *name;
    int sequences;
    int64_t tokens;
    int heads, kv_heads;
    bool causal;
    double forward, tiles, backward; /* the largest idle shares that are allowed; tiles: the forward
                                      * pass with AMX, which has larger groups of rows */
};

/* All models have 1,024 rows, as in test_gemm_threads.c. Attention of BERT has equal items, so one
 * item more than a multiple of the threads costs a whole round. Llama has few key-value heads. */
static const struct model models[] = {
    {"gpt2_124m", 4, 256, 12, 12, true, 0.10, 0.12, 0.10},
    {"bert_base", 8, 128, 12, 12, false, 0.05, 0.08, 0.16},
    {"bert_large", 8, 128, 16, 16, false, 0.05, 0.06, 0.17},
    {"llama_1b", 4, 256, 32, 4, true, 0.05, 0.05, 0.34},
};

enum { MODELS = COUNT(models) };

static struct attention make_attention(const struct model *m)
{
    static int32_t offsets[SEQUENCES_MAX + 1];
    for (int i = 0; i <= m->sequences; i++) {
        offsets[i] = (int32_t)(i * m->tokens);
    }
    return (struct attention){
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_width = 64,
        .causal = m->causal,
        .sequences = m->sequences,
        .cu_q = offsets,
        .cu_k = offsets,
        .longest_q = m->tokens,
        .longest_k = m->tokens,
    };
}

static struct attention_head make_head(const struct attention *a, int64_t sequence, int64_t head)
{
    const struct attention_distances none = {0};
    return attention_make_head(a, &none, sequence, head);
}

/* Counts the products of rows [first, last) with the keys [key, end). */
static double count_products(const struct attention_head *h, int64_t first, int64_t last,
                             int64_t key, int64_t end)
{
    int64_t products = 0;
    for (int64_t row = first; row < last; row++) {
        struct cpu_range visible = attention_visible_keys(h, row);
        int64_t low = number_max(visible.first, key);
        int64_t high = number_min(visible.last, end);
        products += high > low ? high - low : 0;
    }
    return (double)products;
}

/* The time at which the last thread ends, and the sum of the times of all threads. */
struct schedule {
    double end, work;
};

/* Adds the rows of one thread. Marks the rows in seen[head * tokens + row]. */
static double run_range(const struct attention *a, int64_t group, int thread, int threads,
                        uint8_t *seen)
{
    struct attention_position begin = attention_range_begin(a, group, thread, threads);
    struct attention_position end = attention_range_begin(a, group, thread + 1, threads);
    double time = 0;
    for (int64_t i = begin.head; i <= end.head && i < a->sequences * a->heads; i++) {
        struct attention_head h = make_head(a, i / a->heads, i % a->heads);
        int64_t first = i == begin.head ? begin.row : 0;
        int64_t last = i == end.head ? end.row : h.queries;
        time += count_products(&h, first, last, 0, h.keys);
        for (int64_t row = first; row < last; row++) {
            seen[i * a->longest_q + row]++;
        }
    }
    return time;
}

/* Computes the forward pass, and checks that each row has one thread. */
static struct schedule run_forward(const struct attention *a, int64_t group, int threads)
{
    struct schedule s = {0, 0};
    size_t rows = (size_t)(a->sequences * a->heads * a->longest_q);
    uint8_t *seen = calloc(rows, 1);
    CHECK(seen != NULL);
    for (int i = 0; i < threads; i++) {
        double time = run_range(a, group, i, threads, seen);
        s.work += time;
        s.end = fmax(s.end, time);
    }
    for (size_t i = 0; i < rows; i++) {
        CHECK(seen[i] == 1);
    }
    free(seen);
    return s;
}

/* The state of the backward pass: when each thread is idle, and when the last products were added
 * to the sums of each tile of queries of each head. */
struct backward {
    double idle[THREADS_MAX];
    double added[SEQUENCES_MAX][HEADS_MAX][QUERY_TILES];
    double work;
};

static int find_idle_thread(const struct backward *b, int threads)
{
    int best = 0;
    for (int i = 1; i < threads; i++) {
        best = b->idle[i] < b->idle[best] ? i : best;
    }
    return best;
}

/* Runs the keys [key, end) of a head on a thread. One of the five GEMMs adds to the sums of dq; it
 * waits until the earlier keys have been added. */
static void run_keys(struct backward *b, const struct attention_head *h, int64_t sequence,
                     int thread, int64_t key, int64_t end)
{
    const double share = 0.2;
    for (int64_t query = 0; query < h->queries; query += QUERY_TILE) {
        int64_t last = number_min(query + QUERY_TILE, h->queries);
        double products = count_products(h, query, last, key, end);
        double *added = &b->added[sequence][h->head][query / QUERY_TILE];
        if (products > 0) {
            double ready = b->idle[thread] + (1 - share) * products;
            *added = fmax(ready, *added) + share * products;
            b->idle[thread] = *added;
            b->work += products;
        }
    }
}

/* Runs all query heads of a key-value head with the keys of an item. */
static void run_item(struct backward *b, const struct attention *a, struct attention_item item,
                     int thread, int64_t keys)
{
    int group = a->heads / a->kv_heads;
    for (int i = 0; i < group; i++) {
        struct attention_head h = make_head(a, item.sequence, item.kv_head * group + i);
        int64_t end = number_min(item.key + keys, h.keys);
        run_keys(b, &h, item.sequence, thread, item.key, end);
    }
}

static struct schedule run_backward(const struct attention *a, int threads)
{
    static struct backward b;
    memset(&b, 0, sizeof b);
    int64_t keys = attention_item_keys(a, threads);
    int64_t item_keys = keys > 0 ? keys : a->longest_k;
    int64_t items = attention_count_items(a, item_keys);
    for (int64_t i = 0; i < items; i++) {
        struct attention_item item = attention_get_item(a, item_keys, i);
        int thread = keys > 0 ? find_idle_thread(&b, threads)
                              : attention_head_thread(a, item.sequence, item.kv_head, threads);
        run_item(&b, a, item, thread, item_keys);
    }
    struct schedule s = {0, b.work};
    for (int i = 0; i < threads; i++) {
        s.end = fmax(s.end, b.idle[i]);
    }
    return s;
}

static double compute_idle_share(struct schedule s, int threads)
{
    return 1 - s.work / (s.end * threads);
}

/* Checks the idle shares of a model, and that no product is lost. */
static void check_model(const struct model *m, bool print)
{
    enum { SHARES = 3 };
    struct attention a = make_attention(m);
    struct attention_head h = make_head(&a, 0, 0);
    double products = count_products(&h, 0, h.queries, 0, h.keys) * a.heads * (double)a.sequences;
    double worst[SHARES] = {0};
    for (int threads = 1; threads <= THREADS_MAX; threads++) {
        struct schedule forward = run_forward(&a, ATTENTION_GROUP, threads);
        struct schedule tiles = run_forward(&a, ATTENTION_TILE, threads); /* with AMX */
        struct schedule backward = run_backward(&a, threads);
        double shares[SHARES] = {compute_idle_share(forward, threads),
                                 compute_idle_share(tiles, threads),
                                 compute_idle_share(backward, threads)};
        CHECK(forward.work == products && tiles.work == products && backward.work == products);
        if (print) {
            printf("%s, %d threads, idle: forward %.1f %%, with AMX %.1f %%, backward %.1f %%, %d "
                   "keys\n",
                   m->name, threads, 100 * shares[0], 100 * shares[1], 100 * shares[2],
                   (int)attention_item_keys(&a, threads));
        }
        for (int i = 0; i < SHARES; i++) {
            worst[i] = fmax(worst[i], shares[i]);
        }
    }
    printf("%s, attention: at most %.1f %% idle forward, %.1f %% with AMX, %.1f %% backward\n",
           m->name, 100 * worst[0], 100 * worst[1], 100 * worst[2]);
    CHECK(worst[0] <= m->forward && worst[1] <= m->tiles && worst[2] <= m->backward);
}

/* ---- operations that are limited by the memory bandwidth ---- */

/* The sizes of GPT-2 124M. */
enum { ROWS = 1024, WIDTH = 768, VOCABULARY = 50304, BLOCKS = 12 };

/* Returns the time of equal units; static: each thread has the same number, or one more. */
static double count_rounds(int64_t units, int threads)
{
    return (double)number_divide_up(units, threads);
}

static double compute_unit_share(int64_t units, int threads)
{
    return 1 - (double)units / (count_rounds(units, threads) * threads);
}

static double compute_row_share(int threads)
{
    return compute_unit_share(ROWS, threads);
}

/* Returns the larger share of the two passes if the backward pass of a norm has two. */
static double compute_norm_backward_share(int threads)
{
    int64_t size = division_norm_rows(ROWS), blocks = number_divide_up(ROWS, size);
    if (!division_splits_norm(ROWS, threads)) {
        return compute_unit_share(blocks, threads);
    }
    int64_t strips = number_divide_up(WIDTH, DIVISION_NORM_COLUMNS);
    return fmax(compute_unit_share(blocks * strips, threads), compute_row_share(threads));
}

static double compute_merge_share(int threads)
{
    return compute_unit_share(CLASSIFIER_CHUNK, threads);
}

/* Returns the share of dz of the classifier, if it is computed before the GEMM of dw. */
static double compute_gradient_share(int threads)
{
    int64_t ids = classifier_gradient_ids(VOCABULARY, threads);
    return classifier_has_few_tiles(VOCABULARY, threads)
               ? compute_unit_share(number_divide_up(VOCABULARY, ids), threads)
               : 0;
}

/* Adds `count` tensors of `elements` elements, which AdamW updates one by one. */
static void add_adamw(struct schedule *s, int count, int64_t elements, int threads)
{
    int64_t blocks = number_divide_up(elements, ADAMW_PARTS_BLOCK);
    double rounds = count_rounds(blocks, threads) * ADAMW_PARTS_BLOCK;
    s->end += count * (blocks == 1 ? (double)elements : rounds);
    s->work += count * (double)elements;
}

static double compute_adamw_share(int threads)
{
    struct schedule s = {0, 0};
    add_adamw(&s, 1, (int64_t)VOCABULARY * WIDTH, threads);
    add_adamw(&s, 1, (int64_t)ROWS * WIDTH, threads);
    add_adamw(&s, 2, WIDTH, threads);
    add_adamw(&s, BLOCKS, (int64_t)3 * WIDTH * WIDTH, threads);
    add_adamw(&s, BLOCKS, (int64_t)WIDTH * WIDTH, threads);
    add_adamw(&s, 2 * BLOCKS, (int64_t)4 * WIDTH * WIDTH, threads);
    add_adamw(&s, BLOCKS, (int64_t)3 * WIDTH, threads);
    add_adamw(&s, BLOCKS, (int64_t)4 * WIDTH, threads);
    add_adamw(&s, 6 * BLOCKS, WIDTH, threads);
    return compute_idle_share(s, threads);
}

/* Adds the two passes of column sums if the threads split the blocks of rows (column_sums.c). */
static void add_sum_rounds(struct schedule *s, int64_t columns, int threads)
{
    const int64_t unit = (int64_t)DIVISION_SUM_ROWS * DIVISION_SUM_UNIT;
    int64_t width = division_sum_stride(columns) / DIVISION_SUM_UNIT;
    int64_t blocks = ROWS / DIVISION_SUM_ROWS, most = division_sum_blocks(columns);
    for (int64_t first = 0; first < blocks; first += most) {
        int64_t count = number_min(most, blocks - first);
        double parts = (double)(count * DIVISION_SUM_UNIT); /* the second pass, of one unit */
        s->end += count_rounds(count * width, threads) * (double)unit;
        s->end += count_rounds(width, threads) * parts;
        s->work += (double)(count * width * unit) + (double)width * parts;
    }
}

/* Returns the largest share of the biases of a block. */
static double compute_bias_share(int threads, int lanes)
{
    const int64_t columns[] = {3 * WIDTH, WIDTH, 4 * WIDTH};
    double worst = 0;
    for (int i = 0; i < COUNT(columns); i++) {
        int64_t unit = (int64_t)8 * lanes, units = number_divide_up(columns[i], unit);
        struct schedule s = {count_rounds(units, threads), (double)units};
        if (division_splits_sums(ROWS, columns[i], unit, threads)) {
            s = (struct schedule){0, 0};
            add_sum_rounds(&s, columns[i], threads);
        }
        worst = fmax(worst, compute_idle_share(s, threads));
    }
    return worst;
}

static double compute_avx512_bias_share(int threads)
{
    return compute_bias_share(threads, 16);
}

static double compute_avx2_bias_share(int threads)
{
    return compute_bias_share(threads, 8);
}

/* `most` is the largest idle share that is allowed. */
static const struct operation {
    const char *name;
    double (*compute_share)(int threads);
    double most;
} operations[] = {
    {"operations by rows", compute_row_share, 0.10},
    {"norm, backward", compute_norm_backward_share, 0.10},
    {"classifier, merging", compute_merge_share, 0.10},
    {"classifier, gradient of logits", compute_gradient_share, 0.10},
    {"AdamW", compute_adamw_share, 0.10},
    {"column sums, AVX-512", compute_avx512_bias_share, 0.10},
    {"column sums, AVX2", compute_avx2_bias_share, 0.10},
};

static void check_operation(const struct operation *o, bool print)
{
    double worst = 0;
    for (int threads = 1; threads <= THREADS_MAX; threads++) {
        double share = o->compute_share(threads);
        worst = fmax(worst, share);
        if (print) {
            printf("gpt2_124m, %d threads, %s: %.1f %% idle\n", threads, o->name, 100 * share);
        }
    }
    printf("gpt2_124m, %s: at most %.1f %% idle\n", o->name, 100 * worst);
    CHECK(worst <= o->most);
}

/* With the argument `list`, also prints the shares of each number of threads. */
int main(int argc, char **argv)
{
    bool print = argc == 2 && strcmp(argv[1], "list") == 0;
    for (int i = 0; i < MODELS; i++) {
        check_model(&models[i], print);
    }
    for (int i = 0; i < COUNT(operations); i++) {
        check_operation(&operations[i], print);
    }
    return 0;
}
