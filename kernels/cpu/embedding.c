/* Lookup of token and position embeddings, and the gradients of the tables.
 *
 * Forward: threads process rows of y. Backward: the pairs (id, row) are sorted by id with a stable
 * radix sort. Then one thread adds all rows of an id, in the order of the rows. Therefore the bits
 * do not depend on the number of threads, and no atomic addition is needed. Sorting takes 4 passes
 * over N pairs, which is little compared with N C additions. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/vector.h"

struct forward {
    struct tensor y, token_table, position_table;
    int64_t first_token;
    const int32_t *tokens, *positions;
    struct dropout dropout;
};

CPU_INLINE void embed_row(const struct forward *f, enum dtype dtype, int64_t n)
{
    int64_t columns = f->y.columns, row = f->tokens[n] - f->first_token;
    bool in_table = row >= 0 && row < f->token_table.rows;
    struct dropout_row factors;
    dropout_begin(&factors, f->dropout, n * columns);
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        int64_t count = columns - c;
        vector sum = {0};
        if (in_table) {
            sum = vector_get(f->token_table.data, dtype, row * f->token_table.stride + c, count);
        }
        if (f->position_table.data != NULL) {
            int64_t position = f->positions[n] * f->position_table.stride;
            sum += vector_get(f->position_table.data, dtype, position + c, count);
        }
        if (dropout_active(f->dropout)) {
            sum *= dropout_next(&factors);
        }
        vector_put(f->y.data, dtype, n * f->y.stride + c, sum, count);
    }
}

status CPU(embedding_forward)(struct kernels *k, struct tensor y, const int32_t *tokens,
                              const int32_t *positions, struct tensor token_table,
                              int64_t first_token, struct tensor position_table,
                              struct dropout dropout)
{
    struct forward f = {y, token_table, position_table, first_token, tokens, positions, dropout};
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < y.rows; n++) {
        if (y.dtype == DTYPE_F32) {
            embed_row(&f, DTYPE_F32, n);
        } else {
            embed_row(&f, DTYPE_BF16, n);
        }
    }
    return STATUS_OK;
}

struct pair {
    int32_t id, row;
};

size_t CPU(embedding_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)dtype;
    (void)threads;
    return limits->training ? 2 * cpu_scratch_align((size_t)limits->rows * sizeof(struct pair)) : 0;
}

/* Sorts by one byte in each of four passes; the result is in `pairs` again. */
static void sort_by_id(struct pair *pairs, struct pair *other, int64_t count)
{
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t starts[257] = {0};
        for (int64_t i = 0; i < count; i++) {
            starts[((pairs[i].id >> shift) & 255) + 1]++;
        }
        for (int digit = 0; digit < 256; digit++) {
            starts[digit + 1] += starts[digit];
        }
        for (int64_t i = 0; i < count; i++) {
            other[starts[(pairs[i].id >> shift) & 255]++] = pairs[i];
        }
        struct pair *swap = pairs;
        pairs = other;
        other = swap;
    }
}

CPU_INLINE void add_gradient_row(struct tensor table, struct tensor dy, struct pair pair,
                                 enum dtype dtype, struct dropout dropout)
{
    float *sums = (float *)table.data + pair.id * table.stride;
    struct dropout_row factors;
    dropout_begin(&factors, dropout, pair.row * dy.columns);
    for (int64_t c = 0; c < dy.columns; c += VECTOR_LANES) {
        int64_t count = dy.columns - c;
        vector part = vector_get(dy.data, dtype, pair.row * dy.stride + c, count);
        if (dropout_active(dropout)) {
            part *= dropout_next(&factors);
        }
        vector_put(sums, DTYPE_F32, c, part + vector_get(sums, DTYPE_F32, c, count), count);
    }
}

/* Adds the gradients of the ids that start in this thread's range. The last such id may end
 * after it. */
static void add_thread_range(struct tensor table, struct tensor dy, const struct pair *pairs,
                             int64_t count, struct cpu_range range, struct dropout dropout)
{
    int64_t i = range.first;
    while (i > 0 && i < range.last && pairs[i].id == pairs[i - 1].id) {
        i++;
    }
    if (i == range.last) {
        return;
    }
    for (; i < count && (i < range.last || pairs[i].id == pairs[i - 1].id); i++) {
        if (dy.dtype == DTYPE_F32) {
            add_gradient_row(table, dy, pairs[i], DTYPE_F32, dropout);
        } else {
            add_gradient_row(table, dy, pairs[i], DTYPE_BF16, dropout);
        }
    }
}

static status add_gradient_rows(struct kernels *k, struct tensor table, int64_t first,
                                struct tensor dy, const int32_t *ids, struct dropout dropout)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    size_t bytes = (size_t)dy.rows * sizeof(struct pair);
    void *memory, *buffer;
    TRY(arena_take(scratch, bytes, &memory));
    TRY(arena_take(scratch, bytes, &buffer));
    struct pair *pairs = memory;
    int64_t count = 0;
    for (int64_t i = 0; i < dy.rows; i++) {
        if (ids[i] >= first && ids[i] - first < table.rows) {
            pairs[count++] = (struct pair){(int32_t)(ids[i] - first), (int32_t)i};
        }
    }
    sort_by_id(pairs, buffer, count);
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int thread = 0; thread < k->threads; thread++) {
        add_thread_range(table, dy, pairs, count, cpu_thread_range(count, 1, thread, k->threads),
                         dropout);
    }
    arena_release(scratch, mark);
    return STATUS_OK;
}

status CPU(embedding_backward)(struct kernels *k, struct tensor d_token_table, int64_t first_token,
                               struct tensor d_position_table, struct tensor dy,
                               const int32_t *tokens, const int32_t *positions,
                               struct dropout dropout)
{
    if (d_token_table.data != NULL) {
        TRY(add_gradient_rows(k, d_token_table, first_token, dy, tokens, dropout));
    }
    if (d_position_table.data != NULL) {
        TRY(add_gradient_rows(k, d_position_table, 0, dy, positions, dropout));
    }
    return STATUS_OK;
}
