/* Matrix products by oneDNN: the only file that knows the library.
 *
 * A product is divided into units of the output by a rule of its shape; each unit is run by
 * one thread with a plan made for one thread, and what goes before and after it (an activation, say)
 * finds its block in that core's cache. A plan is a primitive for one shape, layout and pair of
 * types, made at its first use and kept, so that a training step creates and allocates nothing after
 * the first one. Debian 12 has oneDNN 2.6
 * and Debian 13 has 3.7, whose interfaces differ in how descriptors are made: the functions
 * library_* hide it. */
#include "kernels/cpu/matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what differs between the library's versions ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t library_layout;
typedef const_dnnl_memory_desc_t library_query;

static dnnl_status_t library_layout_create(library_layout *out, const dnnl_dims_t dims,
                                           dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static void library_layout_destroy(library_layout *layout)
{
    if (*layout != NULL) {
        dnnl_memory_desc_destroy(*layout);
    }
}

static dnnl_status_t library_memory_create(dnnl_memory_t *out, library_layout *layout,
                                           dnnl_engine_t engine)
{
    return dnnl_memory_create(out, *layout, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t library_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t library_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      library_layout *a, library_layout *b, library_layout *bias,
                                      library_layout *c, dnnl_primitive_attr_t attributes)
{
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, bias == NULL ? NULL : *bias, *c,
                                             attributes);
}

#else
typedef dnnl_memory_desc_t library_layout;
typedef const dnnl_memory_desc_t *library_query;

static dnnl_status_t library_layout_create(library_layout *out, const dnnl_dims_t dims,
                                           dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static void library_layout_destroy(library_layout *layout)
{
    (void)layout;
}

static dnnl_status_t library_memory_create(dnnl_memory_t *out, library_layout *layout,
                                           dnnl_engine_t engine)
{
    return dnnl_memory_create(out, layout, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t library_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f);
}

static dnnl_status_t library_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      library_layout *a, library_layout *b, library_layout *bias,
                                      library_layout *c, dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t description;
    dnnl_status_t result = dnnl_matmul_desc_init(&description, a, b, bias, c);
    if (result == dnnl_success) {
        result = dnnl_primitive_desc_create(out, &description, attributes, engine, NULL);
    }
    return result;
}
#endif

#define LIBRARY(result, label, call)                                                               \
    do {                                                                                           \
        dnnl_status_t library_status = (call);                                                     \
        REQUIRE_GOTO(result, label, library_status == dnnl_success, STATUS_INTERNAL,               \
                     "the matrix library refused %s (its status %d)", #call, library_status);      \
    } while (0)

/* ---- plans ---- */

/* What a plan is made for; compared byte by byte, so it has no padding. */
struct plan_key {
    int64_t rows, inner, columns;
    int64_t stride_a, stride_b, stride_c;
    int32_t threads; /* 1: one thread runs it, and others run it too, on other blocks */
    uint8_t type_ab, type_c, transpose_a, transpose_b, accumulate, bias, unused[6];
};

_Static_assert(sizeof(struct plan_key) == 64, "padding in a key that is compared byte by byte");

/* What one thread needs to run a plan: handles that carry its pointers. */
struct plan_lane {
    dnnl_memory_t a, b, c, bias, scratch;
};

struct plan {
    struct plan_key key;
    uint64_t used; /* when last: the plan unused for longest makes room */
    dnnl_primitive_t primitive;
    size_t library_bytes;    /* of a lane's working memory; behind them: single columns */
    struct plan_lane *lanes; /* one a thread */
};

/* A thread's own: the library's working memory is shared by all plans. */
struct lane {
    dnnl_stream_t stream;
    void *scratch;
};

enum { PLANS = 256 };

struct matmul {
    struct device *device;
    dnnl_engine_t engine;
    int threads;
    struct lane *lanes;
    size_t scratch_bytes; /* of each lane */
    uint64_t clock;
    int plans;
    struct plan plan[PLANS];
};

status matmul_create(struct kernels *k, struct matmul **out)
{
    struct matmul *m = calloc(1, sizeof *m);
    *out = m;
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory for the matrix library's plans");
    status result = STATUS_OK;
    m->device = k->device;
    m->threads = k->threads;
    m->lanes = calloc((size_t)m->threads, sizeof *m->lanes);
    REQUIRE_GOTO(result, fail, m->lanes != NULL, STATUS_INTERNAL, "out of memory for %d threads",
                 m->threads);
    LIBRARY(result, fail, dnnl_engine_create(&m->engine, dnnl_cpu, 0));
    for (int i = 0; i < m->threads; i++) {
        LIBRARY(result, fail,
                dnnl_stream_create(&m->lanes[i].stream, m->engine, dnnl_stream_default_flags));
    }
    return STATUS_OK;
fail:
    matmul_destroy(out);
    return result;
}

static void plan_destroy(const struct matmul *m, struct plan *p)
{
    for (int i = 0; p->lanes != NULL && i < m->threads; i++) {
        dnnl_memory_destroy(p->lanes[i].a);
        dnnl_memory_destroy(p->lanes[i].b);
        dnnl_memory_destroy(p->lanes[i].c);
        dnnl_memory_destroy(p->lanes[i].bias);
        dnnl_memory_destroy(p->lanes[i].scratch);
    }
    free(p->lanes);
    dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

void matmul_destroy(struct matmul **out)
{
    struct matmul *m = *out;
    if (m != NULL) {
        for (int i = 0; i < m->plans; i++) {
            plan_destroy(m, &m->plan[i]);
        }
        for (int i = 0; m->lanes != NULL && i < m->threads; i++) {
            dnnl_stream_destroy(m->lanes[i].stream);
            device_release(m->device, m->lanes[i].scratch, m->scratch_bytes);
        }
        dnnl_engine_destroy(m->engine);
        free(m->lanes);
        free(m);
        *out = NULL;
    }
}

const char *matmul_description(void)
{
    static char text[40];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

bool matmul_supports(enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        return true;
    }
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    const dnnl_cpu_isa_t bf16_isa = dnnl_cpu_isa_avx512_core_bf16;
    return (isa & bf16_isa) == bf16_isa;
}

static dnnl_data_type_t library_type(int dtype)
{
    return dtype == DTYPE_F32 ? dnnl_f32 : dnnl_bf16;
}

/* The strides of the matrix that the product sees, where its memory has it the other way round. */
static dnnl_status_t layout_make(library_layout *out, int64_t rows, int64_t columns, int64_t stride,
                                 bool transposed, int dtype)
{
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return library_layout_create(out, dims, library_type(dtype), strides);
}

static status plan_attributes(const struct plan_key *key, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t operations = NULL;
    status result = STATUS_OK;
    LIBRARY(result, done, dnnl_primitive_attr_create(out));
    LIBRARY(result, done, dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    if (key->accumulate) {
        LIBRARY(result, done, dnnl_post_ops_create(&operations));
        LIBRARY(result, done, library_append_sum(operations));
        LIBRARY(result, done, dnnl_primitive_attr_set_post_ops(*out, operations));
    }
done:
    dnnl_post_ops_destroy(operations);
    return result;
}

/* Every lane's working memory grows to what the new plan needs. */
static status scratch_grow(struct matmul *m, size_t bytes)
{
    if (bytes <= m->scratch_bytes) {
        return STATUS_OK;
    }
    for (int i = 0; i < m->threads; i++) {
        device_release(m->device, m->lanes[i].scratch, m->scratch_bytes);
        m->lanes[i].scratch = NULL;
    }
    m->scratch_bytes = bytes;
    for (int i = 0; i < m->threads; i++) {
        TRY(device_allocate(m->device, bytes, "a matrix product", &m->lanes[i].scratch));
    }
    return STATUS_OK;
}

struct layouts {
    library_layout a, b, c, bias;
};

static status layouts_create(const struct plan_key *key, struct layouts *l)
{
    status result = STATUS_OK;
    LIBRARY(
        result, done,
        layout_make(&l->a, key->rows, key->inner, key->stride_a, key->transpose_a, key->type_ab));
    LIBRARY(result, done,
            layout_make(&l->b, key->inner, key->columns, key->stride_b, key->transpose_b,
                        key->type_ab));
    LIBRARY(result, done,
            layout_make(&l->c, key->rows, key->columns, key->stride_c, false, key->type_c));
    if (key->bias) {
        LIBRARY(result, done,
                layout_make(&l->bias, 1, key->columns, key->columns, false, DTYPE_F32));
    }
done:
    return result;
}

static void layouts_destroy(struct layouts *l)
{
    library_layout_destroy(&l->a);
    library_layout_destroy(&l->b);
    library_layout_destroy(&l->c);
    library_layout_destroy(&l->bias);
}

/* Single columns in memory: how long they are, 0 where an operand has several. */
struct columns {
    int64_t a, b, c;
};

static struct columns columns_of(const struct plan_key *key)
{
    return (struct columns){
        .a = (key->transpose_a ? key->rows : key->inner) > 1 ? 0
             : key->transpose_a                              ? key->inner
                                                             : key->rows,
        .b = (key->transpose_b ? key->inner : key->columns) > 1 ? 0
             : key->transpose_b                                 ? key->columns
                                                                : key->inner,
        .c = key->columns > 1 ? 0 : key->rows,
    };
}

static size_t columns_bytes(const struct plan_key *key)
{
    struct columns n = columns_of(key);
    return (size_t)(n.a + n.b + n.c) * sizeof(float);
}

static status plan_lanes(struct matmul *m, struct plan *p, struct layouts *l,
                         const_dnnl_primitive_desc_t description)
{
    status result = STATUS_OK;
    p->lanes = calloc((size_t)m->threads, sizeof *p->lanes);
    REQUIRE(p->lanes != NULL, STATUS_INTERNAL, "out of memory for a plan");
    library_query scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    p->library_bytes = cpu_scratch_rounded(dnnl_memory_desc_get_size(scratch));
    TRY(scratch_grow(m, p->library_bytes + columns_bytes(&p->key)));
    for (int i = 0; i < m->threads; i++) {
        struct plan_lane *lane = &p->lanes[i];
        LIBRARY(result, done, library_memory_create(&lane->a, &l->a, m->engine));
        LIBRARY(result, done, library_memory_create(&lane->b, &l->b, m->engine));
        LIBRARY(result, done, library_memory_create(&lane->c, &l->c, m->engine));
        LIBRARY(result, done,
                dnnl_memory_create(&lane->scratch, scratch, m->engine, DNNL_MEMORY_NONE));
        if (p->key.bias) {
            LIBRARY(result, done, library_memory_create(&lane->bias, &l->bias, m->engine));
        }
    }
done:
    return result;
}

static status plan_create(struct matmul *m, const struct plan_key *key, struct plan *p)
{
    struct layouts l = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    status result = STATUS_OK;
    *p = (struct plan){.key = *key};
    omp_set_num_threads(key->threads);
    TRY_GOTO(result, done, layouts_create(key, &l));
    TRY_GOTO(result, done, plan_attributes(key, &attributes));
    LIBRARY(result, done,
            library_describe(&description, m->engine, &l.a, &l.b, key->bias ? &l.bias : NULL, &l.c,
                             attributes));
    LIBRARY(result, done, dnnl_primitive_create(&p->primitive, description));
    TRY_GOTO(result, done, plan_lanes(m, p, &l, description));
done:
    layouts_destroy(&l);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(description);
    if (result != STATUS_OK) {
        plan_destroy(m, p);
    }
    return result;
}

static status plan_find(struct matmul *m, const struct plan_key *key, struct plan **out)
{
    int oldest = 0;
    for (int i = 0; i < m->plans; i++) {
        if (memcmp(&m->plan[i].key, key, sizeof *key) == 0) {
            m->plan[i].used = ++m->clock;
            *out = &m->plan[i];
            return STATUS_OK;
        }
        oldest = m->plan[i].used < m->plan[oldest].used ? i : oldest;
    }
    struct plan made;
    TRY(plan_create(m, key, &made));
    if (m->plans < PLANS) {
        oldest = m->plans++;
    } else {
        plan_destroy(m, &m->plan[oldest]);
    }
    made.used = ++m->clock;
    m->plan[oldest] = made;
    *out = &m->plan[oldest];
    return STATUS_OK;
}

struct operands {
    void *c, *a, *b, *bias;
    int64_t stride_a, stride_b, stride_c;
};

static dnnl_status_t plan_execute(struct matmul *m, const struct plan *p, int lane,
                                  const struct operands *o)
{
    const struct plan_lane *l = &p->lanes[lane];
    dnnl_status_t results[] = {
        dnnl_memory_set_data_handle(l->a, o->a),
        dnnl_memory_set_data_handle(l->b, o->b),
        dnnl_memory_set_data_handle(l->c, o->c),
        dnnl_memory_set_data_handle(l->scratch, m->lanes[lane].scratch),
        p->key.bias ? dnnl_memory_set_data_handle(l->bias, o->bias) : dnnl_success,
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i] != dnnl_success) {
            return results[i];
        }
    }
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, l->a},
                                   {DNNL_ARG_WEIGHTS, l->b},
                                   {DNNL_ARG_DST, l->c},
                                   {DNNL_ARG_SCRATCHPAD, l->scratch},
                                   {DNNL_ARG_BIAS, l->bias}};
    dnnl_stream_t stream = m->lanes[lane].stream;
    dnnl_status_t result =
        dnnl_primitive_execute(p->primitive, stream, p->key.bias ? 5 : 4, arguments);
    return result == dnnl_success ? dnnl_stream_wait(stream) : result;
}

static void column_copy(char *to, int64_t to_stride, const char *from, int64_t from_stride,
                        int64_t rows, size_t size)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + (size_t)(i * to_stride) * size, from + (size_t)(i * from_stride) * size, size);
    }
}

/* column_gather - where a single column lies without gaps: where it is, or moved to *memory. */
static void *column_gather(char **memory, void *from, int64_t stride, int64_t count, size_t size)
{
    if (count == 0 || stride == 1) {
        return from;
    }
    char *to = *memory;
    column_copy(to, 1, from, stride, count, size);
    *memory += (size_t)count * size;
    return to;
}

/* Runs in the thread that owns `lane`; raises nothing, as its caller gathers the threads' results.
 * oneDNN 3.7 reads and writes a matrix of one column as if it had no gaps: so it has none. */
static dnnl_status_t plan_run(struct matmul *m, const struct plan *p, int lane,
                              const struct operands *o)
{
    struct columns n = columns_of(&p->key);
    size_t size = dtype_bytes((enum dtype)p->key.type_ab);
    size_t size_c = dtype_bytes((enum dtype)p->key.type_c);
    char *memory = (char *)m->lanes[lane].scratch + p->library_bytes;
    struct operands dense = *o;
    dense.c = column_gather(&memory, o->c, o->stride_c, n.c, size_c);
    dense.a = column_gather(&memory, o->a, o->stride_a, n.a, size);
    dense.b = column_gather(&memory, o->b, o->stride_b, n.b, size);
    dnnl_status_t result = plan_execute(m, p, lane, &dense);
    if (dense.c != o->c) {
        column_copy(o->c, o->stride_c, dense.c, 1, n.c, size_c);
    }
    return result;
}

/* ---- products in units ---- */

/* Measured on two cores of Zen 5 with oneDNN 2.6.3 at GPT-2's shapes and 1,024 rows, one thread a unit: large
 * units are faster, as less is packed again, by 4 to 9 % over 512 x 384; but where b lies as it is
 * multiplied and the inner size is long, wider units than 384 read it with long strides at two thirds of
 * the speed. The library's own division of a product between two threads halves some. Packing b beforehand
 * gained nothing with these units. */
enum {
    UNIT_ROWS = 1024,
    UNIT_COLUMNS = 768,
    UNIT_NARROW = 384,
    UNIT_MULTIPLE = 64,
    UNITS_LEAST = 4
};
enum { F32_INNER_LONG = 1024, BF16_INNER_LONG = 4096 };

size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    /* Measured at widths of 128 to 768: a call's panels are those of a block of 384 (bf16: 512) of the inner size
     * and some columns, freed behind it; malloc holds about ten of a thread, between what was made with the first
     * step's products. */
    enum { COLUMNS = 160, DEPTH = 384, BF16_DEPTH = 512, HELD = 10 };
    int64_t rows = limits->rows < UNIT_ROWS ? limits->rows : UNIT_ROWS;
    int64_t depth = dtype == DTYPE_F32 ? DEPTH : BF16_DEPTH, inner = limits->width * 3 / 4;
    int64_t panels = (rows + COLUMNS) * (inner < depth ? inner : depth);
    size_t sums = dtype == DTYPE_F32 ? 0 : (size_t)(rows * UNIT_COLUMNS) * sizeof(float);
    return (size_t)threads * (sums + HELD * (size_t)panels * dtype_bytes(dtype));
}

size_t matmul_taken_bytes(const struct kernels *k)
{
    const struct matmul *m = cpu_of(k)->matmul;
    return (size_t)m->threads * m->scratch_bytes;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The size of `count` things in `parts` parts of whole multiples of 64, but for the last part. */
static int64_t part_size(int64_t count, int64_t parts)
{
    return divide_up(divide_up(count, parts), UNIT_MULTIPLE) * UNIT_MULTIPLE;
}

/* How a product is divided: by its shape, so that results do not depend on the threads; only where there
 * are more of them than units are the units made smaller. */
struct grid {
    int64_t unit_rows, unit_columns, rows, columns; /* sizes, then how many */
};

static int64_t inner_size(const struct matmul_call *call)
{
    return call->transpose_a ? call->a.rows : call->a.columns;
}

static int64_t unit_columns_most(const struct matmul_call *call)
{
    bool f32 = call->a.dtype == DTYPE_F32;
    bool narrow = f32 ? !call->transpose_b && inner_size(call) > F32_INNER_LONG
                      : inner_size(call) > BF16_INNER_LONG;
    return narrow ? UNIT_NARROW : UNIT_COLUMNS;
}

/* At least so many parts that units are small enough; somewhat more where these are equal and make an even
 * number of units, so that none of two or more threads waits for another. */
static int64_t row_parts(int64_t rows, int64_t columns, int64_t least)
{
    int64_t parts = divide_up(rows, UNIT_ROWS);
    while (parts * columns < least && parts * UNIT_MULTIPLE < rows) {
        parts++;
    }
    for (int64_t more = parts; more < parts + 4; more++) {
        if (part_size(rows, more) * more == rows && more * columns % 2 == 0) {
            return more;
        }
    }
    return parts;
}

static struct grid grid_make(const struct matmul_call *call, int threads)
{
    int64_t least = threads > UNITS_LEAST ? threads : UNITS_LEAST;
    struct grid g = {call->unit_rows, call->unit_columns, 0, 0};
    if (g.unit_columns == 0) {
        g.unit_columns =
            part_size(call->c.columns, divide_up(call->c.columns, unit_columns_most(call)));
    }
    g.columns = divide_up(call->c.columns, g.unit_columns);
    if (g.unit_rows == 0) {
        g.unit_rows = part_size(call->c.rows, row_parts(call->c.rows, g.columns, least));
    }
    g.rows = divide_up(call->c.rows, g.unit_rows);
    return g;
}

/* Unit `index`, counted down the columns first: neighbours share their part of b. */
static struct matmul_block grid_block(const struct grid *g, const struct tensor *c, int64_t index)
{
    int64_t row = index % g->rows * g->unit_rows, column = index / g->rows * g->unit_columns;
    int64_t rows = c->rows - row, columns = c->columns - column;
    return (struct matmul_block){row, rows < g->unit_rows ? rows : g->unit_rows, column,
                                 columns < g->unit_columns ? columns : g->unit_columns, 0};
}

static void *element(struct tensor t, int64_t row, int64_t column, bool transposed)
{
    int64_t at = transposed ? column * t.stride + row : row * t.stride + column;
    return t.data == NULL ? NULL : (char *)t.data + (size_t)at * dtype_bytes(t.dtype);
}

static status block_plan(struct matmul *m, const struct matmul_call *call,
                         struct matmul_block block, int threads, struct plan **out)
{
    struct plan_key key = {
        .rows = block.rows,
        .inner = inner_size(call),
        .columns = block.columns,
        .stride_a = call->a.stride,
        .stride_b = call->b.stride,
        .stride_c = call->c.stride,
        .threads = threads,
        .type_ab = (uint8_t)call->a.dtype,
        .type_c = (uint8_t)call->c.dtype,
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .accumulate = call->accumulate,
        .bias = call->bias.data != NULL,
    };
    struct columns single = columns_of(&key);
    key.stride_a = single.a > 0 ? 1 : key.stride_a;
    key.stride_b = single.b > 0 ? 1 : key.stride_b;
    key.stride_c = single.c > 0 ? 1 : key.stride_c;
    return plan_find(m, &key, out);
}

/* The plans of inner units and of those at the lower and right edges: [at lower][at right]. */
struct plans {
    struct plan *plan[2][2];
};

static status grid_plans(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                         struct plans *out)
{
    int64_t corner = g->rows * g->columns - 1;
    int64_t edges[2][2] = {{0, (g->columns - 1) * g->rows}, {g->rows - 1, corner}};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            struct matmul_block block = grid_block(g, &call->c, edges[i][j]);
            TRY(block_plan(m, call, block, 1, &out->plan[i][j]));
        }
    }
    return STATUS_OK;
}

static dnnl_status_t block_run(struct matmul *m, const struct matmul_call *call,
                               const struct plan *plan, struct matmul_block block)
{
    if (call->before != NULL) {
        call->before(call->context, block);
    }
    bool private = call->private_elements > 0;
    struct operands o = {
        .c = private ? element(call->c, 0, block.thread * call->private_elements, false)
                     : element(call->c, block.row, block.column, false),
        .a = element(call->a, block.row, 0, call->transpose_a),
        .b = element(call->b, 0, block.column, call->transpose_b),
        .bias = element(call->bias, 0, block.column, false),
        .stride_a = call->a.stride,
        .stride_b = call->b.stride,
        .stride_c = call->c.stride,
    };
    dnnl_status_t result = plan_run(m, plan, block.thread, &o);
    if (call->after != NULL) {
        call->after(call->context, block);
    }
    return result;
}

status matmul_product(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_of(k)->matmul;
    if (call->c.rows == 0 || call->c.columns == 0 || inner_size(call) == 0) {
        return STATUS_OK;
    }
    struct grid g = grid_make(call, k->threads);
    struct plans plans;
    TRY(grid_plans(m, call, &g, &plans));
    int64_t units = g.rows * g.columns;
    int failure = dnnl_success;
#pragma omp parallel for num_threads(k->threads) schedule(static) reduction(max : failure)
    for (int64_t i = 0; i < units; i++) {
        bool lower = i % g.rows == g.rows - 1, right = i / g.rows == g.columns - 1;
        const struct plan *plan = plans.plan[lower][right];
        struct matmul_block block = grid_block(&g, &call->c, i);
        block.thread = omp_get_thread_num();
        int result = (int)block_run(m, call, plan, block);
        failure = result > failure ? result : failure;
    }
    REQUIRE(failure == dnnl_success, STATUS_INTERNAL,
            "the matrix library failed in a product of %lld x %lld x %lld (its status %d)",
            (long long)call->c.rows, (long long)inner_size(call), (long long)call->c.columns,
            failure);
    return STATUS_OK;
}

status matmul_product_whole(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_of(k)->matmul;
    struct matmul_block block = {0, call->c.rows, 0, call->c.columns, 0};
    struct plan *plan = NULL;
    TRY(block_plan(m, call, block, k->threads, &plan));
    omp_set_num_threads(k->threads);
    dnnl_status_t result = block_run(m, call, plan, block);
    REQUIRE(result == dnnl_success, STATUS_INTERNAL,
            "the matrix library failed in a product of %lld x %lld x %lld (its status %d)",
            (long long)call->c.rows, (long long)inner_size(call), (long long)call->c.columns,
            (int)result);
    return STATUS_OK;
}
