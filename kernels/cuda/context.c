/* The CUDA back-end as a kernels' context: its stream, its working memory, what it needs of it; and how the
 * program gets to know it. */

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"

/* One operation runs at a time, and takes anew: the largest of them. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits)
{
    const size_t needs[] = {
        cuda_norm_scratch(limits),
        cuda_embedding_scratch(limits),
        cuda_linear_scratch(limits),
        cuda_reduce_scratch(),
        cuda_classifier_scratch(dtype, classifier_rows, limits),
        cuda_attention_scratch(limits),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        most = needs[i] > most ? needs[i] : most;
    }
    return most;
}

/* Logits of so many rows are written and read again for each chunk of the classifier: enough rows for products
 * that fill a GPU, and memory that is small beside the activations. */
static int64_t classifier_rows_of(const struct kernels_limits *limits)
{
    const int64_t logits_bytes = 256 << 20, step = 128;
    int64_t rows = logits_bytes / (4 * limits->vocabulary) / step * step;
    rows = rows > step ? rows : step;
    return rows < limits->rows ? rows : limits->rows;
}

static size_t workspace_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)threads;
    return cuda_scratch_bytes(dtype, classifier_rows_of(limits), limits) + CUDA_PRODUCT_WORKSPACE;
}

static void destroy(struct kernels *k)
{
    struct cuda_state *cuda = cuda_of(k);
    if (k->stream != NULL) {
        (void)device_wait(k->device, k->stream, CUDA_WAIT_SECONDS);
    }
    cuda_products_destroy(&cuda->products);
    arena_destroy(&cuda->scratch);
    device_host_release(k->device, cuda->result, sizeof *cuda->result);
    (void)device_stream_destroy(k->device, &k->stream);
    free(cuda);
}

static status make(struct kernels *k, int64_t classifier_rows)
{
    struct cuda_state *cuda = cuda_of(k);
    size_t bytes = cuda_scratch_bytes(k->dtype, classifier_rows, &k->limits);
    cuda->classifier_rows = classifier_rows;
    TRY(device_stream_create(k->device, 0, &k->stream));
    TRY(arena_create(k->device, bytes, "the kernels' workspace", &cuda->scratch));
    TRY(device_host_allocate(k->device, sizeof *cuda->result, "a sum", (void **)&cuda->result));
    return cuda_products_create(k, &cuda->products);
}

status cuda_create(struct kernels *k, int64_t classifier_rows)
{
    k->threads = 1;
    k->state = calloc(1, sizeof(struct cuda_state));
    REQUIRE(k->state != NULL, STATUS_INTERNAL, "out of memory for the kernels' context");
#define CUDA_TABLE(name) k->table.name = cuda_##name;
    CUDA_OPERATIONS(CUDA_TABLE)
#undef CUDA_TABLE
    k->table.destroy = destroy;
    status result = make(k, classifier_rows);
    if (result != STATUS_OK) {
        destroy(k);
        return result;
    }
    snprintf(k->description, sizeof k->description, "%.80s, %s, %.40s", device_name(k->device),
             dtype_name(k->dtype), cuda_products_library(cuda_of(k)->products));
    return STATUS_OK;
}

static status create(struct kernels *k, int threads)
{
    (void)threads;
    return cuda_create(k, classifier_rows_of(&k->limits));
}

static bool supports(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16;
}

void cuda_register(void)
{
    static const struct kernels_driver driver = {create, workspace_bytes, supports};
    device_register(DEVICE_CUDA, &cuda_device_driver);
    kernels_register(DEVICE_CUDA, &driver);
}
