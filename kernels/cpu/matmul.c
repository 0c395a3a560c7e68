/* Matrix products by oneDNN: the only file that knows the library.
 *
 * A plan is a primitive for one shape, layout and pair of types, made at its first use and kept, so
 * that a training step creates and allocates nothing after the first one. Debian 12 has oneDNN 2.6
 * and Debian 13 has 3.7, whose interfaces differ in how descriptors are made: the functions
 * library_* hide it. */
#include "kernels/cpu/matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ---- what differs between the library's versions ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t library_layout;

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
    uint8_t type_ab, type_c, transpose_a, transpose_b, accumulate, bias, unused[2];
};

struct plan {
    struct plan_key key;
    uint64_t used; /* when last: the plan unused for longest makes room */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias;
};

enum { PLANS = 192 };

struct matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint64_t clock;
    int plans;
    struct plan plan[PLANS];
};

status matmul_create(struct kernels *k, struct matmul **out)
{
    struct matmul *m = calloc(1, sizeof *m);
    *out = m;
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory for the matrix library's plans");
    omp_set_num_threads(k->threads);
    status result = STATUS_OK;
    LIBRARY(result, fail, dnnl_engine_create(&m->engine, dnnl_cpu, 0));
    LIBRARY(result, fail, dnnl_stream_create(&m->stream, m->engine, dnnl_stream_default_flags));
    return STATUS_OK;
fail:
    matmul_destroy(out);
    return result;
}

static void plan_destroy(struct plan *p)
{
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->b);
    dnnl_memory_destroy(p->c);
    dnnl_memory_destroy(p->bias);
    dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

void matmul_destroy(struct matmul **m)
{
    if (*m != NULL) {
        for (int i = 0; i < (*m)->plans; i++) {
            plan_destroy(&(*m)->plan[i]);
        }
        dnnl_stream_destroy((*m)->stream);
        dnnl_engine_destroy((*m)->engine);
        free(*m);
        *m = NULL;
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
    if (key->accumulate) {
        LIBRARY(result, done, dnnl_post_ops_create(&operations));
        LIBRARY(result, done, library_append_sum(operations));
        LIBRARY(result, done, dnnl_primitive_attr_set_post_ops(*out, operations));
    }
done:
    dnnl_post_ops_destroy(operations);
    return result;
}

static status plan_create(struct matmul *m, const struct plan_key *key, struct plan *p)
{
    library_layout a = {0}, b = {0}, c = {0}, bias = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    status result = STATUS_OK;
    *p = (struct plan){.key = *key};
    LIBRARY(result, done,
            layout_make(&a, key->rows, key->inner, key->stride_a, key->transpose_a, key->type_ab));
    LIBRARY(
        result, done,
        layout_make(&b, key->inner, key->columns, key->stride_b, key->transpose_b, key->type_ab));
    LIBRARY(result, done,
            layout_make(&c, key->rows, key->columns, key->stride_c, false, key->type_c));
    if (key->bias) {
        LIBRARY(result, done, layout_make(&bias, 1, key->columns, key->columns, false, DTYPE_F32));
        LIBRARY(result, done, library_memory_create(&p->bias, &bias, m->engine));
    }
    TRY_GOTO(result, done, plan_attributes(key, &attributes));
    LIBRARY(result, done,
            library_describe(&description, m->engine, &a, &b, key->bias ? &bias : NULL, &c,
                             attributes));
    LIBRARY(result, done, dnnl_primitive_create(&p->primitive, description));
    LIBRARY(result, done, library_memory_create(&p->a, &a, m->engine));
    LIBRARY(result, done, library_memory_create(&p->b, &b, m->engine));
    LIBRARY(result, done, library_memory_create(&p->c, &c, m->engine));
done:
    library_layout_destroy(&a);
    library_layout_destroy(&b);
    library_layout_destroy(&c);
    library_layout_destroy(&bias);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(description);
    if (result != STATUS_OK) {
        plan_destroy(p);
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
        plan_destroy(&m->plan[oldest]);
    }
    made.used = ++m->clock;
    m->plan[oldest] = made;
    *out = &m->plan[oldest];
    return STATUS_OK;
}

static status plan_run(struct matmul *m, struct plan *p, void *c, void *a, void *b, void *bias)
{
    status result = STATUS_OK;
    LIBRARY(result, done, dnnl_memory_set_data_handle(p->a, a));
    LIBRARY(result, done, dnnl_memory_set_data_handle(p->b, b));
    LIBRARY(result, done, dnnl_memory_set_data_handle(p->c, c));
    if (p->key.bias) {
        LIBRARY(result, done, dnnl_memory_set_data_handle(p->bias, bias));
    }
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->a},
                                   {DNNL_ARG_WEIGHTS, p->b},
                                   {DNNL_ARG_DST, p->c},
                                   {DNNL_ARG_BIAS, p->bias}};
    int count = p->key.bias ? 4 : 3;
    LIBRARY(result, done, dnnl_primitive_execute(p->primitive, m->stream, count, arguments));
    LIBRARY(result, done, dnnl_stream_wait(m->stream));
done:
    return result;
}

status matmul_product(struct kernels *k, struct tensor c, struct tensor a, bool transpose_a,
                      struct tensor b, bool transpose_b, struct tensor bias, bool accumulate)
{
    struct matmul *m = cpu_of(k)->matmul;
    int64_t inner = transpose_a ? a.rows : a.columns;
    if (c.rows == 0 || c.columns == 0 || inner == 0) {
        return STATUS_OK;
    }
    struct plan_key key = {
        .rows = c.rows,
        .inner = inner,
        .columns = c.columns,
        .stride_a = a.stride,
        .stride_b = b.stride,
        .stride_c = c.stride,
        .type_ab = (uint8_t)a.dtype,
        .type_c = (uint8_t)c.dtype,
        .transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .accumulate = accumulate,
        .bias = bias.data != NULL,
    };
    omp_set_num_threads(k->threads);
    struct plan *p = NULL;
    TRY(plan_find(m, &key, &p));
    return plan_run(m, p, c.data, a.data, b.data, bias.data);
}

/* ---- the floor ---- */

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of one product with operands in memory: [c, a, b] as matmul_product takes them. */
static status product_time(struct kernels *k, double *seconds, struct tensor c, struct tensor a,
                           bool transpose_a, struct tensor b, bool transpose_b, int repeats)
{
    double *times = malloc((size_t)repeats * sizeof *times);
    REQUIRE(times != NULL, STATUS_INTERNAL, "out of memory for %d timings", repeats);
    status result =
        matmul_product(k, c, a, transpose_a, b, transpose_b, tensor_absent(), false); /* warm up */
    for (int i = 0; i < repeats && result == STATUS_OK; i++) {
        double start = clock_seconds();
        result = matmul_product(k, c, a, transpose_a, b, transpose_b, tensor_absent(), false);
        times[i] = clock_seconds() - start;
    }
    qsort(times, (size_t)repeats, sizeof *times, double_compare);
    *seconds = times[repeats / 2];
    free(times);
    return result;
}

static status product_floor(struct kernels *k, double *seconds, const struct product *p, void *wide,
                            void *narrow, void *weight, int repeats)
{
    struct tensor y = tensor_view(wide, k->dtype, p->rows, p->outputs);
    struct tensor x = tensor_view(narrow, k->dtype, p->rows, p->inner);
    struct tensor w = tensor_view(weight, k->dtype, p->outputs, p->inner);
    struct tensor dw = tensor_view(weight, DTYPE_F32, p->outputs, p->inner);
    switch (p->kind) {
    case PRODUCT_FORWARD:
        return product_time(k, seconds, y, x, false, w, true, repeats);
    case PRODUCT_INPUT:
        return product_time(k, seconds, x, y, false, w, false, repeats);
    case PRODUCT_WEIGHT:
        return product_time(k, seconds, dw, y, true, x, false, repeats);
    }
    return STATUS_OK;
}

/* Small values that are not zero: some processors multiply zeros faster. */
static void operand_fill(void *data, size_t bytes, enum dtype dtype)
{
    size_t count = bytes / dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        float value = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
        if (dtype == DTYPE_F32) {
            ((float *)data)[i] = value;
        } else {
            ((bf16 *)data)[i] = f32_to_bf16(value);
        }
    }
}

status matmul_floor(struct kernels *k, double *seconds, const struct product *products, int count,
                    int repeats)
{
    size_t bytes[3] = {0};
    for (int i = 0; i < count; i++) {
        const struct product *p = &products[i];
        size_t sizes[3] = {(size_t)(p->rows * p->outputs) * 4, (size_t)(p->rows * p->inner) * 4,
                           (size_t)(p->outputs * p->inner) * 4};
        for (int j = 0; j < 3; j++) {
            bytes[j] = sizes[j] > bytes[j] ? sizes[j] : bytes[j];
        }
    }
    void *operands[3] = {NULL};
    status result = STATUS_OK;
    *seconds = 0;
    for (int j = 0; j < 3; j++) {
        TRY_GOTO(result, done,
                 device_allocate(k->device, bytes[j], "the floor's operands", &operands[j]));
        operand_fill(operands[j], bytes[j], k->dtype);
    }
    for (int i = 0; i < count; i++) {
        double each = 0;
        TRY_GOTO(
            result, done,
            product_floor(k, &each, &products[i], operands[0], operands[1], operands[2], repeats));
        *seconds += each * (double)products[i].count;
    }
done:
    for (int j = 0; j < 3; j++) {
        device_release(k->device, operands[j], bytes[j]);
    }
    return result;
}
