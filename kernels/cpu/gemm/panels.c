#include "kernels/cpu/gemm/panels.h"

#ifdef CPU_AMX
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "kernels/cpu/gemm/amx.h"

/* Measured with the shapes of GPT-2 on a Xeon with L1 and L2 caches of 48 KiB and 2 MiB
 * (docs/benchmarks/gemm_amx_xeon-amx_2026-11-28.md). A panel of a with the inner size INNER_BLOCK
 * fits into the L1 cache. GROUP_BLOCKS blocks of b with COLUMNS columns fit into the L2 cache. A
 * unit has at most ROWS rows. */
enum { INNER_BLOCK = 384, GROUP_BLOCKS = 2, COLUMNS = 768, ROWS = 2048 };

/* A block of the inner size. */
struct inner_block {
    int64_t first, inner;
    bool is_first, is_last;
    bf16 *a, *b; /* the panels */
};

/* The state of a unit. While some of its columns are computed, `column` and `columns` are their
 * range. */
struct unit {
    const struct matmul_call *call;
    struct matmul_block block;
    int64_t column, columns;
    int64_t inner, inner_block; /* the inner size, and the size of its blocks except the last */
    bool has_sums;              /* the sums of an inner block are stored in `sums`, not in c */
    bool keeps_sums;            /* `sums` has all rows of the unit, not only those of one panel */
    bool has_row_calls;         /* `after` is called for the rows of each panel */
    bf16 *a, *b;
    float *tile, *bias, *sums; /* tile: a block of the output */
};

static int64_t get_inner_block(int64_t inner)
{
    int64_t blocks = number_divide_up(inner, INNER_BLOCK);
    return number_round_up(number_divide_up(inner, blocks), AMX_INNER);
}

/* Sets the sizes of a unit and divides its memory. Returns the size of the memory. If memory is
 * NULL, it only computes the size. */
static size_t prepare_unit(struct unit *u, char *memory)
{
    const struct matmul_call *call = u->call;
    bool holds_sums = call->c.dtype == DTYPE_F32 && call->private_elements == 0;
    u->inner = matmul_inner_size(call);
    u->inner_block = get_inner_block(u->inner);
    u->has_sums = !holds_sums && u->inner > u->inner_block;
    u->keeps_sums = u->has_sums && u->inner > GROUP_BLOCKS * u->inner_block;
    u->has_row_calls = !call->keep_units && u->block.columns <= COLUMNS;
    int64_t columns = number_round_up(number_min(u->block.columns, COLUMNS), AMX_SIDE);
    int64_t rows = !u->has_sums ? 0 : u->keeps_sums ? u->block.rows : AMX_SIDE;
    int64_t panel = amx_panel_elems(u->inner_block);
    const size_t bytes[] = {
        (size_t)(GROUP_BLOCKS * panel) * sizeof(bf16),
        (size_t)(GROUP_BLOCKS * (columns / AMX_SIDE) * panel) * sizeof(bf16),
        AMX_SIDE * AMX_SIDE * sizeof(float),
        (size_t)columns * sizeof(float),
        (size_t)(number_round_up(rows, AMX_SIDE) * columns) * sizeof(float),
    };
    size_t at[COUNT(bytes) + 1] = {0};
    for (int i = 0; i < COUNT(bytes); i++) {
        at[i + 1] = at[i] + cpu_scratch_align(bytes[i]);
    }
    if (memory != NULL) {
        u->a = (bf16 *)(memory + at[0]);
        u->b = (bf16 *)(memory + at[1]);
        u->tile = (float *)(memory + at[2]);
        u->bias = (float *)(memory + at[3]);
        u->sums = (float *)(memory + at[4]);
    }
    return at[COUNT(bytes)];
}

static size_t compute_bytes(const struct matmul_call *call, int64_t rows, int64_t columns)
{
    struct unit u = {.call = call, .block = {.rows = rows, .columns = columns}};
    return prepare_unit(&u, NULL);
}

size_t panels_library_bytes(const struct kernels_limits *limits)
{
    /* This inner size has the largest inner blocks and needs the sums of all rows. Larger inner
     * sizes can have smaller blocks. */
    int64_t rows = number_max(number_max(limits->inner, limits->width), limits->rows);
    struct matmul_call call = {.c.dtype = DTYPE_BF16,
                               .a.columns = (GROUP_BLOCKS + 1) * INNER_BLOCK};
    return compute_bytes(&call, number_min(rows, ROWS), COLUMNS);
}

/* Estimates the time of a unit, as a multiple of the time of one element of the output. Packing one
 * row of a or one column of b takes as long as PACKING elements. */
static double estimate_time(int64_t rows, int64_t columns)
{
    enum { PACKING = 150 };
    return (double)rows * (double)columns + (double)(PACKING * (rows + columns));
}

/* Divides the output into units. It compares several numbers of units in a row, with up to
 * ROUNDS_MAX units per thread, and selects the division with the shortest estimated time. The
 * narrowest units have COLUMNS_MIN columns. */
static struct grid divide_output(const struct matmul_call *call, int threads)
{
    enum { ROUNDS_MAX = 4, COLUMNS_MIN = 64 };
    const struct tensor *c = &call->c;
    struct grid best = {0};
    double best_time = 0;
    if (call->keep_units) {
        return grid_make(call);
    }
    int64_t narrowest =
        number_divide_up(c->columns, call->keep_columns ? call->unit_columns : COLUMNS_MIN);
    int64_t across = call->keep_columns ? narrowest : number_divide_up(c->columns, COLUMNS);
    int64_t most = number_min(narrowest, across + (int64_t)ROUNDS_MAX * threads);
    for (; across <= most; across++) {
        int64_t columns = number_round_up(number_divide_up(c->columns, across), AMX_SIDE);
        columns = call->keep_columns ? call->unit_columns : columns;
        for (int rounds = 1; rounds <= ROUNDS_MAX; rounds++) {
            int64_t down = number_max(rounds * threads / across, number_divide_up(c->rows, ROWS));
            int64_t rows = number_round_up(number_divide_up(c->rows, down), AMX_SIDE);
            struct grid g = grid_divide(rows, columns, c);
            double time = (double)number_divide_up(grid_units(&g), threads) *
                          estimate_time(number_min(rows, c->rows), columns);
            if (best_time == 0 || time < best_time) {
                best = g;
                best_time = time;
            }
        }
    }
    return best;
}

/* Returns an element of an operand. */
static bf16 *get_element(struct tensor t, int64_t row, int64_t column)
{
    return (bf16 *)t.data + row * t.stride + column;
}

static void pack_columns(const struct unit *u, const struct inner_block *s)
{
    const struct tensor *b = &u->call->b;
    bool transposed = !u->call->transpose_b; /* a row of b holds one inner index */
    amx_pack_b(s->b, &(struct amx_source){
                         .from = transposed ? get_element(*b, s->first, u->column)
                                            : get_element(*b, u->column, s->first),
                         .stride = b->stride,
                         .transposed = transposed,
                         .count = u->columns,
                         .inner = s->inner,
                     });
}

static void pack_rows(const struct unit *u, const struct inner_block *s, int64_t row, int64_t rows)
{
    const struct tensor *a = &u->call->a;
    bool transposed = u->call->transpose_a;
    amx_pack_a(s->a, &(struct amx_source){
                         .from = transposed ? get_element(*a, s->first, row)
                                            : get_element(*a, row, s->first),
                         .stride = a->stride,
                         .transposed = transposed,
                         .count = rows,
                         .inner = s->inner,
                     });
}

/* The output of the rows of one panel. */
struct target {
    void *c; /* the element of the first row and of the first column of the unit's range */
    int64_t row, rows;
    float *sums;
};

static struct target find_target(const struct unit *u, int64_t row)
{
    const struct tensor *c = &u->call->c;
    int64_t left = u->block.row + u->block.rows - row, at = row * c->stride + u->column;
    if (u->call->private_elements > 0) {
        int64_t private_row = u->has_row_calls ? 0 : row - u->block.row;
        at = u->block.thread * u->call->private_elements + private_row * c->stride + u->column -
             u->block.column;
    }
    int64_t columns = number_round_up(u->columns, AMX_SIDE);
    return (struct target){
        .c = (char *)c->data + (size_t)at * dtype_bytes(c->dtype),
        .row = row,
        .rows = number_min(left, AMX_SIDE),
        .sums = u->sums + (u->keeps_sums ? (row - u->block.row) * columns : 0),
    };
}

static void copy_values(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                        int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)columns * sizeof(float));
    }
}

/* Computes a block of an f32 output. If the unit has no `sums`, the output holds the sums of the
 * previous inner blocks. */
static void run_f32_block(const struct unit *u, const struct inner_block *s, float *c, int64_t rows,
                          int64_t columns, const bf16 *b, struct amx_start start)
{
    int64_t stride = u->call->c.stride;
    bool adds = u->call->accumulate || (!s->is_first && !u->has_sums);
    bool is_whole = rows == AMX_SIDE && columns == AMX_SIDE;
    if (adds && !is_whole) {
        copy_values(u->tile, AMX_SIDE, c, stride, rows, columns);
        start = (struct amx_start){u->tile, AMX_SIDE};
    } else if (adds) {
        start = (struct amx_start){c, stride};
    }
    if (is_whole) {
        amx_multiply(c, stride, s->a, b, s->inner, start);
        return;
    }
    amx_multiply(u->tile, AMX_SIDE, s->a, b, s->inner, start);
    copy_values(c, stride, u->tile, AMX_SIDE, rows, columns);
}

/* Computes the block of the output that begins `column` columns after the target. */
static void run_block(const struct unit *u, const struct inner_block *s, const struct target *t,
                      int64_t column)
{
    const bf16 *b = s->b + column / AMX_SIDE * amx_panel_elems(s->inner);
    int64_t left = u->columns - column, columns = number_min(left, AMX_SIDE);
    float *sums = t->sums + column * AMX_SIDE; /* dense blocks, one after the other */
    struct amx_start start = {0};
    if (s->is_first && u->call->bias.data != NULL) {
        start = (struct amx_start){u->bias + column, 0};
    } else if (u->has_sums && !s->is_first) {
        start = (struct amx_start){sums, AMX_SIDE};
    }
    if (u->has_sums && !s->is_last) {
        amx_multiply(sums, AMX_SIDE, s->a, b, s->inner, start);
    } else if (u->call->c.dtype == DTYPE_F32) {
        run_f32_block(u, s, (float *)t->c + column, t->rows, columns, b, start);
    } else {
        amx_multiply(u->tile, AMX_SIDE, s->a, b, s->inner, start);
        amx_store((bf16 *)t->c + column, u->call->c.stride, u->tile, t->rows, columns,
                  u->call->accumulate);
    }
}

static void call_back(const struct unit *u, matmul_callback *function, int64_t row, int64_t rows)
{
    if (function != NULL) {
        struct matmul_block block = u->block;
        block.row = row;
        block.rows = rows;
        function(u->call->context, block);
    }
}

/* Blocks of the inner size. Their panels are packed together. */
struct group {
    struct inner_block block[GROUP_BLOCKS];
    int count;
};

static void run_group(const struct unit *u, struct group *g)
{
    int64_t end = u->block.row + u->block.rows, panel = amx_panel_elems(u->inner_block);
    int64_t panels = number_divide_up(u->columns, AMX_SIDE);
    for (int i = 0; i < g->count; i++) {
        g->block[i].a = u->a + i * panel;
        g->block[i].b = u->b + i * panels * panel;
        pack_columns(u, &g->block[i]);
    }
    for (int64_t row = u->block.row; row < end; row += AMX_SIDE) {
        struct target t = find_target(u, row);
        for (int i = 0; i < g->count; i++) {
            pack_rows(u, &g->block[i], row, t.rows);
            for (int64_t column = 0; column < u->columns; column += AMX_SIDE) {
                run_block(u, &g->block[i], &t, column);
            }
        }
        if (u->has_row_calls && g->block[g->count - 1].is_last) {
            call_back(u, u->call->after, row, t.rows);
        }
    }
}

/* Computes the columns of the unit's range. */
static void run_columns(const struct unit *u)
{
    if (u->call->bias.data != NULL) {
        const float *bias = (const float *)u->call->bias.data + u->column;
        memcpy(u->bias, bias, (size_t)u->columns * sizeof(float));
    }
    struct group g = {0};
    for (int64_t first = 0; first < u->inner; first += u->inner_block) {
        int64_t left = u->inner - first, inner = number_min(left, u->inner_block);
        bool is_last = inner == left;
        g.block[g.count++] = (struct inner_block){
            .first = first, .inner = inner, .is_first = first == 0, .is_last = is_last};
        if (g.count == GROUP_BLOCKS || is_last) {
            run_group(u, &g);
            g.count = 0;
        }
    }
}

static void run_unit(const struct matmul_call *call, struct matmul_block unit, void *memory)
{
    struct unit u = {.call = call, .block = unit};
    (void)prepare_unit(&u, memory);
    call_back(&u, call->before, unit.row, unit.rows);
    amx_begin();
    for (int64_t column = 0; column < unit.columns; column += COLUMNS) {
        int64_t left = unit.columns - column;
        u.column = unit.column + column;
        u.columns = number_min(left, COLUMNS);
        run_columns(&u);
    }
    amx_end();
    if (!u.has_row_calls) {
        call_back(&u, call->after, unit.row, unit.rows);
    }
}

const struct panels *panels_find(void)
{
    static const struct panels panels = {divide_output, compute_bytes, run_unit};
    return amx_is_available() ? &panels : NULL;
}
#else
const struct panels *panels_find(void)
{
    return NULL;
}

size_t panels_library_bytes(const struct kernels_limits *limits)
{
    (void)limits;
    return 0;
}
#endif
