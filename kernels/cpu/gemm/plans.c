/* The plans of oneDNN. Only this file uses the library.
 *
 * Versions  Debian 12 has oneDNN 2.6 and Debian 13 has 3.7. They create descriptors differently;
 *           the functions library_* hide this. */
#include "kernels/cpu/gemm/plans.h"

#include "base/memory.h"
#include "kernels/cpu/gemm/divisions.h"
#include "kernels/cpu/gemm/panels.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- differences between the versions of oneDNN ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t library_layout;
typedef const_dnnl_memory_desc_t library_query;

static inline dnnl_status_t library_layout_create(library_layout *out, const dnnl_dims_t dims,
                                                  dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static inline void library_layout_destroy(library_layout *layout)
{
    if (*layout != NULL) {
        dnnl_memory_desc_destroy(*layout);
    }
}

static inline dnnl_status_t library_memory_create(dnnl_memory_t *out, library_layout *layout,
                                                  dnnl_engine_t engine)
{
    return dnnl_memory_create(out, *layout, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t library_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t library_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                             library_layout *a, library_layout *b,
                                             library_layout *bias, library_layout *c,
                                             dnnl_primitive_attr_t attributes)
{
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, bias == NULL ? NULL : *bias, *c,
                                             attributes);
}

#else
typedef dnnl_memory_desc_t library_layout;
typedef const dnnl_memory_desc_t *library_query;

static inline dnnl_status_t library_layout_create(library_layout *out, const dnnl_dims_t dims,
                                                  dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static inline void library_layout_destroy(library_layout *layout)
{
    (void)layout;
}

static inline dnnl_status_t library_memory_create(dnnl_memory_t *out, library_layout *layout,
                                                  dnnl_engine_t engine)
{
    return dnnl_memory_create(out, layout, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t library_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f);
}

static inline dnnl_status_t library_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                             library_layout *a, library_layout *b,
                                             library_layout *bias, library_layout *c,
                                             dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t description;
    dnnl_status_t result = dnnl_matmul_desc_init(&description, a, b, bias, c);
    if (result == dnnl_success) {
        result = dnnl_primitive_desc_create(out, &description, attributes, engine, NULL);
    }
    return result;
}
#endif

/* ---- plans ---- */

#define TRY_DNNL(result, label, call)                                                              \
    do {                                                                                           \
        dnnl_status_t library_status = (call);                                                     \
        REQUIRE_GOTO(result, label, library_status == dnnl_success, STATUS_INTERNAL,               \
                     "oneDNN failed in %s (dnnl status %d)", #call, library_status);               \
    } while (0)

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

/* The buffers of a thread: the scratchpad of all plans, and copies of operands. */
enum buffer { BUFFER_SCRATCH, BUFFER_COPIES, BUFFERS };

/* The state of one thread. Its buffers are NULL until they are needed. */
struct thread_state {
    dnnl_stream_t stream;
    void *buffer[BUFFERS];
};

/* A slot contains the index of the plan that was found last for a hash of keys. */
enum { PLANS = 1024, SLOTS = 2048 };

struct matmul {
    struct device *device;
    dnnl_engine_t engine;
    int threads;
    struct thread_state *states;
    size_t buffer_bytes[BUFFERS]; /* of each thread */
    uint64_t clock;
    int plans;
    struct plan plan[PLANS];
    uint16_t slot[SLOTS];
    struct divisions divisions;
    const struct panels *panels; /* NULL: oneDNN computes all GEMMs */
};

status matmul_create(struct kernels *k, struct matmul **out)
{
    TRY(ALLOCATE(*out, 1, "oneDNN plans"));
    struct matmul *m = *out;
    status result = STATUS_OK;
    m->device = k->device;
    m->threads = k->threads;
    m->panels = cpu_get_state(k)->variant->uses_amx ? panels_find() : NULL;
    TRY_GOTO(result, fail, ALLOCATE(m->states, m->threads, "the states of the threads"));
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
            for (int j = 0; j < BUFFERS; j++) {
                device_release(m->device, m->states[i].buffer[j], m->buffer_bytes[j]);
            }
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

bool matmul_permits_amx(void)
{
    const dnnl_cpu_isa_t amx = dnnl_cpu_isa_avx512_core_amx;
    return (dnnl_get_effective_cpu_isa() & amx) == amx && panels_find() != NULL;
}

/* Returns whether oneDNN adds in different orders in large and small units of this dtype, and both
 * orders are known. */
static bool has_inner_blocks(enum dtype dtype)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    const dnnl_cpu_isa_t avx2 = dnnl_cpu_isa_avx2, avx512 = dnnl_cpu_isa_avx512_core;
    return dtype == DTYPE_F32 && (isa & avx2) == avx2 && (isa & avx512) != avx512;
}

int64_t matmul_inner_block(const struct matmul_call *call, int64_t rows, int64_t columns)
{
    enum { BLOCK = 192 };
    const double packed_limit = 0.0038;
    int64_t inner = matmul_inner_size(call);
    if (!has_inner_blocks(call->a.dtype) || call->c.dtype != DTYPE_F32) {
        return 0;
    }
    if (1 / (double)rows + 1 / (double)columns >= packed_limit) {
        return call->transpose_a ? 0 : inner;
    }
    return inner <= MATMUL_INNER_BLOCK ? inner : inner < 2 * BLOCK ? (inner + 1) / 2 : BLOCK;
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

/* Grows a buffer of every thread to the size that a plan needs. After an error all threads keep the
 * smaller buffers, which earlier plans use. */
static status grow_buffer(struct matmul *m, enum buffer which, size_t bytes)
{
    const char *name =
        which == BUFFER_SCRATCH ? "the scratchpad of a GEMM" : "copies of operands of a GEMM";
    size_t old_bytes = m->buffer_bytes[which];
    if (bytes <= old_bytes) {
        return STATUS_OK;
    }
    void **buffers = NULL; /* of each thread: the new one, then the one that is released */
    TRY(ALLOCATE(buffers, m->threads, name));
    status result = STATUS_OK;
    for (int i = 0; i < m->threads && result == STATUS_OK; i++) {
        result = device_allocate(m->device, bytes, name, &buffers[i]);
    }
    for (int i = 0; i < m->threads && result == STATUS_OK; i++) {
        void *grown = buffers[i];
        buffers[i] = m->states[i].buffer[which];
        m->states[i].buffer[which] = grown;
    }
    m->buffer_bytes[which] = result == STATUS_OK ? bytes : old_bytes;
    for (int i = 0; i < m->threads; i++) {
        device_release(m->device, buffers[i], result == STATUS_OK ? old_bytes : bytes);
    }
    free(buffers);
    return result;
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
    TRY(ALLOCATE(p->handles, m->threads, "a oneDNN plan"));
    library_query scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    p->library_bytes = cpu_scratch_align(dnnl_memory_desc_get_size(scratch));
    TRY(grow_buffer(m, BUFFER_SCRATCH, p->library_bytes + compute_single_columns_bytes(&p->key)));
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

static bool equal_keys(const struct plan_key *a, const struct plan_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static size_t hash_key(const struct plan_key *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0;
    memcpy(words, key, sizeof words);
    for (int i = 0; i < COUNT(words); i++) {
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
        hash ^= hash >> 32;
    }
    return hash % SLOTS;
}

status plans_find(struct matmul *m, struct plan_key key, struct plan **out)
{
    struct single_columns single = find_single_columns(&key);
    key.stride_a = single.a > 0 ? 1 : key.stride_a;
    key.stride_b = single.b > 0 ? 1 : key.stride_b;
    key.stride_c = single.c > 0 ? 1 : key.stride_c;
    uint16_t *slot = &m->slot[hash_key(&key)];
    int oldest = 0, found = equal_keys(&m->plan[*slot].key, &key) ? *slot : -1;
    for (int i = 0; i < m->plans && found < 0; i++) {
        found = equal_keys(&m->plan[i].key, &key) ? i : -1;
        oldest = m->plan[i].used < m->plan[oldest].used ? i : oldest;
    }
    if (found >= 0) {
        m->plan[found].used = ++m->clock;
        *slot = (uint16_t)found;
        *out = &m->plan[found];
        return STATUS_OK;
    }
    struct plan made;
    TRY(create_plan(m, &key, &made));
    if (m->plans < PLANS) {
        oldest = m->plans++;
    } else {
        destroy_plan(m, &m->plan[oldest]);
    }
    made.used = ++m->clock;
    m->plan[oldest] = made;
    *slot = (uint16_t)oldest;
    *out = &m->plan[oldest];
    return STATUS_OK;
}

static dnnl_status_t execute_plan(struct matmul *m, const struct plan *p, int thread,
                                  const struct plan_operands *o)
{
    const struct plan_handles *l = &p->handles[thread];
    dnnl_status_t results[] = {
        dnnl_memory_set_data_handle(l->a, o->a),
        dnnl_memory_set_data_handle(l->b, o->b),
        dnnl_memory_set_data_handle(l->c, o->c),
        dnnl_memory_set_data_handle(l->scratch, m->states[thread].buffer[BUFFER_SCRATCH]),
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

/* oneDNN 3.7 ignores the stride of a matrix with one column, so such a matrix is copied to a dense
 * column. */
int plans_run(struct matmul *m, const struct plan *p, int thread, const struct plan_operands *o)
{
    struct single_columns n = find_single_columns(&p->key);
    size_t size = dtype_bytes((enum dtype)p->key.type_ab);
    size_t size_c = dtype_bytes((enum dtype)p->key.type_c);
    char *memory = (char *)m->states[thread].buffer[BUFFER_SCRATCH] + p->library_bytes;
    struct plan_operands dense = *o;
    dense.c = gather_column(&memory, o->c, o->stride_c, n.c, size_c);
    dense.a = gather_column(&memory, o->a, o->stride_a, n.a, size);
    dense.b = gather_column(&memory, o->b, o->stride_b, n.b, size);
    dnnl_status_t result = execute_plan(m, p, thread, &dense);
    if (dense.c != o->c) {
        copy_column(o->c, o->stride_c, dense.c, 1, n.c, size_c);
    }
    return result;
}

status plans_reserve_copies(struct matmul *m, size_t bytes)
{
    return grow_buffer(m, BUFFER_COPIES, bytes);
}

void *plans_copy_memory(const struct matmul *m, int thread)
{
    return m->states[thread].buffer[BUFFER_COPIES];
}

const struct panels *plans_panels(const struct matmul *m)
{
    return m->panels;
}

struct divisions *plans_divisions(struct matmul *m)
{
    return &m->divisions;
}
