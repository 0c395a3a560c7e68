/* GEMMs by oneDNN. This is the only file that includes the library.
 *
 * Blocking  The output is split into units by a rule that depends on the shape. One thread computes
 *           a unit with a plan for one thread. The prologue and epilogue of the unit (an
 *           activation, for example) find it in the cache of that core.
 * Plans     A plan is a oneDNN primitive for one shape, layout and pair of dtypes. It is created at
 *           its first use and kept. So only the first training step creates or allocates anything.
 * Versions  Debian 12 has oneDNN 2.6 and Debian 13 has 3.7. They create descriptors differently;
 *           the functions library_* hide this. */
#include "kernels/cpu/matmul.h"

#include "base/memory.h"
#include "kernels/cpu/divisions.h"

#include <inttypes.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- differences between the versions of the library ---- */

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

#define TRY_DNNL(result, label, call)                                                              \
    do {                                                                                           \
        dnnl_status_t library_status = (call);                                                     \
        REQUIRE_GOTO(result, label, library_status == dnnl_success, STATUS_INTERNAL,               \
                     "oneDNN failed in %s (dnnl status %d)", #call, library_status);               \
    } while (0)

/* ---- plans ---- */

/* The key of a plan. Keys are compared byte by byte, so there is no padding. */
struct plan_key {
    int64_t rows, inner, columns;
    int64_t stride_a, stride_b, stride_c;
    int32_t threads; /* 1: for one thread; the other threads use the plan too, for other blocks */
    uint8_t type_ab, type_c, transpose_a, transpose_b, accumulate, bias, unused[6];
};

_Static_assert(sizeof(struct plan_key) == 64, "padding in a key that is compared byte by byte");

/* The memory handles with which one thread runs a plan. They hold the thread's pointers. */
struct plan_handles {
    dnnl_memory_t a, b, c, bias, scratch;
};

struct plan {
    struct plan_key key;
    uint64_t used; /* time of the last use; the least recently used plan is replaced */
    dnnl_primitive_t primitive;
    size_t library_bytes;         /* of a thread's scratchpad; copies of single columns follow it */
    struct plan_handles *handles; /* one per thread */
};

/* The state of one thread. All plans share its scratchpad. */
struct thread_state {
    dnnl_stream_t stream;
    void *scratch;
};

enum { PLANS = 256 };

struct matmul {
    struct device *device;
    dnnl_engine_t engine;
    int threads;
    struct thread_state *states;
    size_t scratch_bytes; /* of each thread */
    uint64_t clock;
    int plans;
    struct plan plan[PLANS];
    struct divisions divisions;
};

status matmul_create(struct kernels *k, struct matmul **out)
{
    struct matmul *m = calloc(1, sizeof *m);
    *out = m;
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory for oneDNN plans");
    status result = STATUS_OK;
    m->device = k->device;
    m->threads = k->threads;
    m->states = calloc((size_t)m->threads, sizeof *m->states);
    REQUIRE_GOTO(result, fail, m->states != NULL, STATUS_INTERNAL, "out of memory for %d threads",
                 m->threads);
    TRY_DNNL(result, fail, dnnl_engine_create(&m->engine, dnnl_cpu, 0));
    for (int i = 0; i < m->threads; i++) {
        TRY_DNNL(result, fail,
                 dnnl_stream_create(&m->states[i].stream, m->engine, dnnl_stream_default_flags));
    }
    return STATUS_OK;
fail:
    matmul_destroy(out);
    return result;
}

static void destroy_plan(const struct matmul *m, struct plan *p)
{
    for (int i = 0; p->handles != NULL && i < m->threads; i++) {
        dnnl_memory_destroy(p->handles[i].a);
        dnnl_memory_destroy(p->handles[i].b);
        dnnl_memory_destroy(p->handles[i].c);
        dnnl_memory_destroy(p->handles[i].bias);
        dnnl_memory_destroy(p->handles[i].scratch);
    }
    free(p->handles);
    dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

void matmul_destroy(struct matmul **out)
{
    struct matmul *m = *out;
    if (m != NULL) {
        for (int i = 0; i < m->plans; i++) {
            destroy_plan(m, &m->plan[i]);
        }
        for (int i = 0; m->states != NULL && i < m->threads; i++) {
            dnnl_stream_destroy(m->states[i].stream);
            device_release(m->device, m->states[i].scratch, m->scratch_bytes);
        }
        dnnl_engine_destroy(m->engine);
        free(m->states);
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

static dnnl_data_type_t get_library_type(int dtype)
{
    return dtype == DTYPE_F32 ? dnnl_f32 : dnnl_bf16;
}

/* Creates the layout of a matrix as the GEMM reads it, from the stride of its memory. */
static dnnl_status_t make_layout(library_layout *out, int64_t rows, int64_t columns, int64_t stride,
                                 bool transposed, int dtype)
{
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return library_layout_create(out, dims, get_library_type(dtype), strides);
}

static status make_attributes(const struct plan_key *key, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t operations = NULL;
    status result = STATUS_OK;
    TRY_DNNL(result, done, dnnl_primitive_attr_create(out));
    TRY_DNNL(result, done,
             dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    if (key->accumulate) {
        TRY_DNNL(result, done, dnnl_post_ops_create(&operations));
        TRY_DNNL(result, done, library_append_sum(operations));
        TRY_DNNL(result, done, dnnl_primitive_attr_set_post_ops(*out, operations));
    }
done:
    dnnl_post_ops_destroy(operations);
    return result;
}

/* Grows the scratchpad of every thread to the size that a new plan needs. */
static status grow_scratch(struct matmul *m, size_t bytes)
{
    if (bytes <= m->scratch_bytes) {
        return STATUS_OK;
    }
    for (int i = 0; i < m->threads; i++) {
        device_release(m->device, m->states[i].scratch, m->scratch_bytes);
        m->states[i].scratch = NULL;
    }
    m->scratch_bytes = bytes;
    for (int i = 0; i < m->threads; i++) {
        TRY(device_allocate(m->device, bytes, "the scratchpad of a GEMM", &m->states[i].scratch));
    }
    return STATUS_OK;
}

struct layouts {
    library_layout a, b, c, bias;
};

static status create_layouts(const struct plan_key *key, struct layouts *l)
{
    status result = STATUS_OK;
    TRY_DNNL(
        result, done,
        make_layout(&l->a, key->rows, key->inner, key->stride_a, key->transpose_a, key->type_ab));
    TRY_DNNL(result, done,
             make_layout(&l->b, key->inner, key->columns, key->stride_b, key->transpose_b,
                         key->type_ab));
    TRY_DNNL(result, done,
             make_layout(&l->c, key->rows, key->columns, key->stride_c, false, key->type_c));
    if (key->bias) {
        TRY_DNNL(result, done,
                 make_layout(&l->bias, 1, key->columns, key->columns, false, DTYPE_F32));
    }
done:
    return result;
}

static void destroy_layouts(struct layouts *l)
{
    library_layout_destroy(&l->a);
    library_layout_destroy(&l->b);
    library_layout_destroy(&l->c);
    library_layout_destroy(&l->bias);
}

/* The lengths of operands that are single columns in memory; 0 for other operands. */
struct single_columns {
    int64_t a, b, c;
};

static struct single_columns find_single_columns(const struct plan_key *key)
{
    return (struct single_columns){
        .a = (key->transpose_a ? key->rows : key->inner) > 1 ? 0
             : key->transpose_a                              ? key->inner
                                                             : key->rows,
        .b = (key->transpose_b ? key->inner : key->columns) > 1 ? 0
             : key->transpose_b                                 ? key->columns
                                                                : key->inner,
        .c = key->columns > 1 ? 0 : key->rows,
    };
}

static size_t compute_single_columns_bytes(const struct plan_key *key)
{
    struct single_columns n = find_single_columns(key);
    return (size_t)(n.a + n.b + n.c) * sizeof(float);
}

static status create_handles(struct matmul *m, struct plan *p, struct layouts *l,
                             const_dnnl_primitive_desc_t description)
{
    status result = STATUS_OK;
    p->handles = calloc((size_t)m->threads, sizeof *p->handles);
    REQUIRE(p->handles != NULL, STATUS_INTERNAL, "out of memory for a oneDNN plan");
    library_query scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    p->library_bytes = cpu_scratch_align(dnnl_memory_desc_get_size(scratch));
    TRY(grow_scratch(m, p->library_bytes + compute_single_columns_bytes(&p->key)));
    for (int i = 0; i < m->threads; i++) {
        struct plan_handles *h = &p->handles[i];
        TRY_DNNL(result, done, library_memory_create(&h->a, &l->a, m->engine));
        TRY_DNNL(result, done, library_memory_create(&h->b, &l->b, m->engine));
        TRY_DNNL(result, done, library_memory_create(&h->c, &l->c, m->engine));
        TRY_DNNL(result, done,
                 dnnl_memory_create(&h->scratch, scratch, m->engine, DNNL_MEMORY_NONE));
        if (p->key.bias) {
            TRY_DNNL(result, done, library_memory_create(&h->bias, &l->bias, m->engine));
        }
    }
done:
    return result;
}

static status create_plan(struct matmul *m, const struct plan_key *key, struct plan *p)
{
    struct layouts l = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    status result = STATUS_OK;
    *p = (struct plan){.key = *key};
    omp_set_num_threads(key->threads);
    TRY_GOTO(result, done, create_layouts(key, &l));
    TRY_GOTO(result, done, make_attributes(key, &attributes));
    TRY_DNNL(result, done,
             library_describe(&description, m->engine, &l.a, &l.b, key->bias ? &l.bias : NULL, &l.c,
                              attributes));
    TRY_DNNL(result, done, dnnl_primitive_create(&p->primitive, description));
    TRY_GOTO(result, done, create_handles(m, p, &l, description));
done:
    destroy_layouts(&l);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(description);
    if (result != STATUS_OK) {
        destroy_plan(m, p);
    }
    return result;
}

static status find_plan(struct matmul *m, const struct plan_key *key, struct plan **out)
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
    TRY(create_plan(m, key, &made));
    if (m->plans < PLANS) {
        oldest = m->plans++;
    } else {
        destroy_plan(m, &m->plan[oldest]);
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

static dnnl_status_t execute_plan(struct matmul *m, const struct plan *p, int thread,
                                  const struct operands *o)
{
    const struct plan_handles *l = &p->handles[thread];
    dnnl_status_t results[] = {
        dnnl_memory_set_data_handle(l->a, o->a),
        dnnl_memory_set_data_handle(l->b, o->b),
        dnnl_memory_set_data_handle(l->c, o->c),
        dnnl_memory_set_data_handle(l->scratch, m->states[thread].scratch),
        p->key.bias ? dnnl_memory_set_data_handle(l->bias, o->bias) : dnnl_success,
    };
    for (int i = 0; i < COUNT(results); i++) {
        if (results[i] != dnnl_success) {
            return results[i];
        }
    }
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, l->a},
                                   {DNNL_ARG_WEIGHTS, l->b},
                                   {DNNL_ARG_DST, l->c},
                                   {DNNL_ARG_SCRATCHPAD, l->scratch},
                                   {DNNL_ARG_BIAS, l->bias}};
    dnnl_stream_t stream = m->states[thread].stream;
    dnnl_status_t result =
        dnnl_primitive_execute(p->primitive, stream, p->key.bias ? 5 : 4, arguments);
    return result == dnnl_success ? dnnl_stream_wait(stream) : result;
}

static void copy_column(char *to, int64_t to_stride, const char *from, int64_t from_stride,
                        int64_t rows, size_t size)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + (size_t)(i * to_stride) * size, from + (size_t)(i * from_stride) * size, size);
    }
}

/* Returns a pointer to a column without gaps: the column itself, or a copy in *memory. */
static void *gather_column(char **memory, void *from, int64_t stride, int64_t count, size_t size)
{
    if (count == 0 || stride == 1) {
        return from;
    }
    char *to = *memory;
    copy_column(to, 1, from, stride, count, size);
    *memory += (size_t)count * size;
    return to;
}

/* Runs a plan on the calling thread, number `thread`. It raises no error; the caller combines the
 * results of all threads. oneDNN 3.7 ignores the stride of a matrix with one column, so such a
 * matrix is copied to a dense column. */
static dnnl_status_t run_plan(struct matmul *m, const struct plan *p, int thread,
                              const struct operands *o)
{
    struct single_columns n = find_single_columns(&p->key);
    size_t size = dtype_bytes((enum dtype)p->key.type_ab);
    size_t size_c = dtype_bytes((enum dtype)p->key.type_c);
    char *memory = (char *)m->states[thread].scratch + p->library_bytes;
    struct operands dense = *o;
    dense.c = gather_column(&memory, o->c, o->stride_c, n.c, size_c);
    dense.a = gather_column(&memory, o->a, o->stride_a, n.a, size);
    dense.b = gather_column(&memory, o->b, o->stride_b, n.b, size);
    dnnl_status_t result = execute_plan(m, p, thread, &dense);
    if (dense.c != o->c) {
        copy_column(o->c, o->stride_c, dense.c, 1, n.c, size_c);
    }
    return result;
}

/* ---- GEMMs in units ---- */

size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    /* Measured at widths of 128 to 768. A call packs panels for a block of 384 (bf16: 512) of the
     * inner size and some columns, and frees them afterwards. malloc retains about ten such buffers
     * per thread, between the allocations of the first step's GEMMs. */
    enum { COLUMNS = 160, DEPTH = 384, BF16_DEPTH = 512, BUFFERS = 10 };
    int64_t rows = limits->rows < GRID_UNIT_ROWS ? limits->rows : GRID_UNIT_ROWS;
    int64_t depth = dtype == DTYPE_F32 ? DEPTH : BF16_DEPTH, inner = limits->width * 3 / 4;
    int64_t panels = (rows + COLUMNS) * (inner < depth ? inner : depth);
    size_t sums = dtype == DTYPE_F32 ? 0 : (size_t)(rows * GRID_UNIT_COLUMNS) * sizeof(float);
    return (size_t)threads * (sums + BUFFERS * (size_t)panels * dtype_bytes(dtype)) +
           divisions_bytes(threads, limits);
}

static void *get_element(struct tensor t, int64_t row, int64_t column, bool transposed)
{
    int64_t at = transposed ? column * t.stride + row : row * t.stride + column;
    return t.data == NULL ? NULL : (char *)t.data + (size_t)at * dtype_bytes(t.dtype);
}

static status find_block_plan(struct matmul *m, const struct matmul_call *call,
                              struct matmul_block block, int threads, struct plan **out)
{
    struct plan_key key = {
        .rows = block.rows,
        .inner = matmul_inner_size(call),
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
    struct single_columns single = find_single_columns(&key);
    key.stride_a = single.a > 0 ? 1 : key.stride_a;
    key.stride_b = single.b > 0 ? 1 : key.stride_b;
    key.stride_c = single.c > 0 ? 1 : key.stride_c;
    return find_plan(m, &key, out);
}

/* The plans of inner units and of units at the lower and right edges: [is lower][is right]. */
struct plans {
    struct plan *plan[2][2];
};

static status find_grid_plans(struct matmul *m, const struct matmul_call *call,
                              const struct grid *g, struct plans *out)
{
    int64_t corner = g->rows * g->columns - 1;
    int64_t edges[2][2] = {{0, (g->columns - 1) * g->rows}, {g->rows - 1, corner}};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            struct matmul_block block = grid_block(g, &call->c, edges[i][j]);
            TRY(find_block_plan(m, call, block, 1, &out->plan[i][j]));
        }
    }
    return STATUS_OK;
}

static dnnl_status_t run_block(struct matmul *m, const struct matmul_call *call,
                               const struct plan *plan, struct matmul_block block)
{
    if (call->before != NULL) {
        call->before(call->context, block);
    }
    bool private = call->private_elements > 0;
    struct operands o = {
        .c = private ? get_element(call->c, 0, block.thread * call->private_elements, false)
                     : get_element(call->c, block.row, block.column, false),
        .a = get_element(call->a, block.row, 0, call->transpose_a),
        .b = get_element(call->b, 0, block.column, call->transpose_b),
        .bias = get_element(call->bias, 0, block.column, false),
        .stride_a = call->a.stride,
        .stride_b = call->b.stride,
        .stride_c = call->c.stride,
    };
    dnnl_status_t result = run_plan(m, plan, block.thread, &o);
    if (call->after != NULL) {
        call->after(call->context, block);
    }
    return result;
}

status matmul_run_grid(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                       int threads)
{
    struct plans plans;
    TRY(find_grid_plans(m, call, g, &plans));
    int64_t units = g->rows * g->columns;
    int failure = dnnl_success;
    omp_set_num_threads(1); /* oneDNN reads it in a team of one thread */
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : failure)
    for (int64_t i = 0; i < units; i++) {
        bool lower = i % g->rows == g->rows - 1, right = i / g->rows == g->columns - 1;
        const struct plan *plan = plans.plan[lower][right];
        struct matmul_block block = grid_block(g, &call->c, i);
        block.thread = omp_get_thread_num();
        int result = (int)run_block(m, call, plan, block);
        failure = result > failure ? result : failure;
    }
    REQUIRE(failure == dnnl_success, STATUS_INTERNAL,
            "oneDNN failed in a GEMM of %" PRId64 " x %" PRId64 " x %" PRId64 " (dnnl status %d)",
            call->c.rows, matmul_inner_size(call), call->c.columns, failure);
    return STATUS_OK;
}

status matmul_run(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_get_state(k)->matmul;
    if (call->c.rows == 0 || call->c.columns == 0 || matmul_inner_size(call) == 0) {
        return STATUS_OK;
    }
    struct grid g;
    TRY(divisions_choose(&m->divisions, m, call, k->threads, &g));
    return matmul_run_grid(m, call, &g, k->threads);
}

status matmul_run_unsplit(struct kernels *k, const struct matmul_call *call)
{
    struct matmul *m = cpu_get_state(k)->matmul;
    struct matmul_block block = {0, call->c.rows, 0, call->c.columns, 0};
    struct plan *plan = NULL;
    TRY(find_block_plan(m, call, block, k->threads, &plan));
    omp_set_num_threads(k->threads);
    dnnl_status_t result = run_block(m, call, plan, block);
    REQUIRE(result == dnnl_success, STATUS_INTERNAL,
            "oneDNN failed in a GEMM of %" PRId64 " x %" PRId64 " x %" PRId64 " (dnnl status %d)",
            call->c.rows, matmul_inner_size(call), call->c.columns, (int)result);
    return STATUS_OK;
}
