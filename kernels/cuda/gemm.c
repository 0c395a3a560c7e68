/* Matrix products by cuBLASLt, and what follows them: by the library in the same pass or by kernels of ours.
 *
 * Plans     a way and an algorithm for each shape (products.h), asked for once and kept
 * Memory    one workspace: products run on the context's stream, one after the other */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/gemm.h"

/* ---- the context's ---- */

/* "GPU 0 (NVIDIA H200)" is "NVIDIA H200" whichever it is. */
static void name_machine(struct cuda_products *p)
{
    const char *name = device_name(p->device), *open = strchr(name, '('), *end = strrchr(name, ')');
    const char *from = open != NULL && end > open ? open + 1 : name;
    int length = (int)(open != NULL && end > open ? (size_t)(end - from) : strlen(name));
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    snprintf(p->machine, sizeof p->machine, "%.*s, driver %d.%d, %s", length < 64 ? length : 64,
             from, driver / 1000, driver % 1000 / 10, p->name);
}

static status open_products(struct kernels *k, struct cuda_products *p)
{
    TRY(cublaslt_open(&p->library));
    size_t version = p->library.cublasLtGetVersion();
    snprintf(p->name, sizeof p->name, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100,
             version % 100);
    PRODUCT_CHECK(p, "opening it", p->library.cublasLtCreate(&p->handle));
    p->workspace_bytes = p->library.workspace_bytes + cuda_product_vector_bytes(&k->limits);
    TRY(device_allocate(p->device, p->workspace_bytes, "the products' workspace", &p->workspace));
    name_machine(p);
    product_file_read(p);
    return STATUS_OK;
}

status cuda_products_create(struct kernels *k, struct cuda_products **out)
{
    struct cuda_products *p = calloc(1, sizeof *p);
    *out = NULL;
    REQUIRE(p != NULL, STATUS_INTERNAL, "out of memory for products");
    p->device = k->device;
    status result = open_products(k, p);
    if (result != STATUS_OK) {
        cuda_products_destroy(&p);
    }
    *out = p;
    return result;
}

void cuda_products_destroy(struct cuda_products **products)
{
    struct cuda_products *p = *products;
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->count; i++) {
        product_plan_forget(p, &p->plans[i]);
    }
    if (p->handle != NULL) {
        (void)p->library.cublasLtDestroy(p->handle);
    }
    device_release(p->device, p->workspace, p->workspace_bytes);
    cublaslt_close(&p->library);
    free(p);
    *products = NULL;
}

const char *cuda_products_library(const struct cuda_products *products)
{
    return products->name;
}

/* ---- plans ---- */

static status raise_impossible(const struct cuda_product *p)
{
    RAISE(STATUS_INTERNAL, "cuBLASLt has no way to multiply [%lld, %lld]%s by [%lld, %lld]%s",
          (long long)p->a.rows, (long long)p->a.columns, p->transpose_a ? "^T" : "",
          (long long)p->b.rows, (long long)p->b.columns, p->transpose_b ? "^T" : "");
}

/* Rows of the batch, which differ from one micro-batch to the next where there is no padding. */
static int64_t *batch_rows(struct product_key *key)
{
    return key->transpose_a ? &key->rows[1] : &key->rows[0];
}

/* Equal but for the rows of the batch. */
static bool is_alike(const struct product_key *one, const struct product_key *other,
                     int64_t *distance)
{
    struct product_key keys[2] = {*one, *other};
    int64_t rows = *batch_rows(&keys[0]) - *batch_rows(&keys[1]);
    *distance = rows < 0 ? -rows : rows;
    for (int i = 0; i < 2; i++) {
        struct product_key *key = &keys[i];
        int64_t *second = key->transpose_a ? &key->rows[2] : &key->rows[1];
        *second = *batch_rows(key) = 0;
        memset(key->alignment, 0, sizeof key->alignment);
    }
    return memcmp(&keys[0], &keys[1], sizeof keys[0]) == 0;
}

/* What was fastest for the nearest number of rows; where nothing was timed, the first way. */
static int untimed_way(const struct cuda_products *products, const struct product_key *key,
                       int first)
{
    int64_t nearest = INT64_MAX, distance;
    int way = first;
    for (int i = 0; i < products->count; i++) {
        const struct product_plan *plan = &products->plans[i];
        if (plan->timed && is_alike(&plan->key, key, &distance) && distance < nearest) {
            nearest = distance;
            way = plan->fused;
        }
    }
    return way;
}

static status try_way(struct cuda_products *products, struct product_plan *plan,
                      const struct cuda_product *p, int way, bool *found)
{
    int count = 0;
    plan->fused = way;
    TRY(product_plan_describe(products, plan, p));
    TRY(product_plan_algorithms(products, plan, 1, &plan->algorithm, &count));
    *found = count == 1;
    if (!*found) {
        product_plan_forget(products, plan);
    }
    return STATUS_OK;
}

static status choose_untimed(struct cuda_products *products, struct product_plan *plan,
                             const struct cuda_product *p)
{
    int ways[PRODUCT_WAYS_MAX + 1], count = product_plan_ways(&plan->key, ways + 1);
    bool found = false;
    ways[0] = untimed_way(products, &plan->key, ways[1]);
    for (int i = 0; i <= count && !found; i++) {
        TRY(try_way(products, plan, p, ways[i], &found));
    }
    return found ? STATUS_OK : raise_impossible(p);
}

/* A plan from the file, when it is first used. */
static status prepare(struct cuda_products *products, struct product_plan *plan,
                      const struct cuda_product *p)
{
    TRY(product_plan_describe(products, plan, p));
    if (plan->timed && product_plan_valid(products, plan)) {
        return STATUS_OK;
    }
    product_plan_forget(products, plan);
    plan->timed = false;
    return choose_untimed(products, plan, p);
}

static status find(struct cuda_products *products, const struct cuda_product *p,
                   struct product_plan **out)
{
    struct product_key key = product_plan_key(p);
    struct product_plan *plan = NULL;
    for (int i = 0; i < products->count && plan == NULL; i++) {
        if (memcmp(&products->plans[i].key, &key, sizeof key) == 0) {
            plan = &products->plans[i];
        }
    }
    if (plan == NULL) {
        if (products->count ==
            PRODUCT_PLANS_MAX) { /* as generation's many lengths may bring about */
            product_plan_forget(products, &products->plans[--products->count]);
        }
        plan = &products->plans[products->count];
        *plan = (struct product_plan){.key = key};
        TRY(choose_untimed(products, plan, p));
        products->count++;
    } else if (plan->product == NULL) {
        TRY(prepare(products, plan, p));
    }
    plan->met = true;
    plan->operands = *p;
    *out = plan;
    return STATUS_OK;
}

/* ---- running ---- */

/* An inner dimension of 0: nothing to add. */
static status clear(struct kernels *k, struct tensor c)
{
    for (int64_t r = 0; r < c.rows; r++) {
        TRY(device_zero(k->device, k->stream, tensor_rows(c, r, 1).data,
                        (size_t)c.columns * dtype_bytes(c.dtype)));
    }
    return STATUS_OK;
}

/* Where the library finds the bias, in the type of its output, or puts the sums. */
static status place_vector(struct kernels *k, const struct cuda_product *p, int fused,
                           struct tensor output, void **vector)
{
    struct cuda_products *products = cuda_of(k)->products;
    char *own = (char *)products->workspace + products->library.workspace_bytes;
    *vector = own;
    if ((fused & PRODUCT_BIAS) != 0) {
        struct tensor row = {own, output.dtype, 1, output.columns, output.columns};
        *vector = output.dtype == DTYPE_F32 ? p->bias.data : own;
        return output.dtype == DTYPE_F32 ? STATUS_OK : cuda_rows_fill(k, row, p->bias);
    }
    if ((fused & PRODUCT_SUMS) != 0 && !p->add) {
        *vector = p->sums.data;
    }
    return STATUS_OK;
}

/* What the library has left to do. */
static status finish(struct kernels *k, const struct cuda_product *p, int fused,
                     struct tensor output, const void *vector)
{
    if (p->act != ACTIVATION_NONE && (fused & PRODUCT_ACTIVATION) == 0) {
        TRY(p->slope ? cuda_activation_backward(k, p->c, p->c, p->kept, p->act)
                     : cuda_activation_apply(k, p->c, output, p->act));
    }
    if (p->sums.data == NULL) {
        return STATUS_OK;
    }
    if ((fused & PRODUCT_SUMS) == 0) {
        return cuda_bias_gradient(k, p->sums, p->a, !p->add);
    }
    return p->add ? cuda_floats_add(k, p->sums.data, vector, p->sums.columns) : STATUS_OK;
}

status products_perform(struct kernels *k, struct product_plan *plan, const struct cuda_product *p)
{
    struct cuda_products *products = cuda_of(k)->products;
    struct tensor output = product_plan_output(p, plan->fused);
    bool filled = p->bias.data != NULL && (plan->fused & PRODUCT_BIAS) == 0;
    const float one = 1, beta = p->add || filled ? 1 : 0;
    void *vector = NULL;
    TRY(filled ? cuda_rows_fill(k, output, p->bias) : STATUS_OK);
    TRY(place_vector(k, p, plan->fused, output, &vector));
    TRY(product_plan_point(products, plan, p, vector));
    PRODUCT_CHECK(products, "a product",
                  products->library.cublasLtMatmul(
                      products->handle, plan->product, &one, p->b.data, plan->layouts[2], p->a.data,
                      plan->layouts[1], &beta, output.data, plan->layouts[0], output.data,
                      plan->layouts[0], &plan->algorithm, products->workspace,
                      products->library.workspace_bytes,
                      (cudaStream_t)device_stream_handle(k->device, k->stream)));
    return finish(k, p, plan->fused, output, vector);
}

static status nothing_to_multiply(struct kernels *k, const struct cuda_product *p)
{
    struct tensor output = product_plan_output(p, 0);
    if (p->bias.data != NULL) {
        TRY(cuda_rows_fill(k, output, p->bias));
    } else if (!p->add) {
        TRY(clear(k, output));
    }
    return finish(k, p, 0, output, NULL);
}

status cuda_product_queue(struct kernels *k, const struct cuda_product *p)
{
    struct product_plan *plan = NULL;
    if (p->c.rows == 0 || p->c.columns == 0) {
        return STATUS_OK;
    }
    REQUIRE(!p->add || (p->bias.data == NULL && p->act == ACTIVATION_NONE), STATUS_INTERNAL,
            "a product with a bias or an activation is not added to what is there");
    if ((p->transpose_a ? p->a.rows : p->a.columns) == 0) {
        return nothing_to_multiply(k, p);
    }
    TRY(find(cuda_of(k)->products, p, &plan));
    return products_perform(k, plan, p);
}

/* ---- timing, between a job's steps ---- */

status cuda_tune(struct kernels *k, bool measure, char **text)
{
    struct cuda_products *products = cuda_of(k)->products;
    bool timed = false, wanted = measure && product_file_wanted();
    for (int i = 0; i < products->count; i++) {
        struct product_plan *plan = &products->plans[i];
        if (wanted && plan->met && !plan->timed) {
            TRY(product_times_choose(k, plan));
            timed = true;
        }
        plan->met = false;
    }
    if (timed) {
        product_file_write(products);
    }
    return text != NULL ? product_file_text(products, text) : STATUS_OK;
}

status cuda_tuned(struct kernels *k, const char *text)
{
    struct cuda_products *products = cuda_of(k)->products;
    TRY(device_wait(k->device, k->stream, CUDA_WAIT_SECONDS));
    for (int i = 0; i < products->count; i++) {
        product_plan_forget(products, &products->plans[i]);
    }
    products->count = 0;
    product_file_take(products, text);
    return STATUS_OK;
}
