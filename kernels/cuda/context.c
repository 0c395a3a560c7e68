/* The CUDA back-end as a context of kernels.h: its stream, workspace and operation table; and
 * its registration. */

#include <stdio.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "kernels/cuda/cuda.h"

static void destroy_context(struct kernels *k)
{
    struct cuda_state *cuda = cuda_get_state(k);
    if (k->stream != NULL) {
        (void)device_wait(k->device, k->stream, DEADLINE_DEVICE_SECONDS);
    }
    cuda_graphs_destroy(k);
    cuda_gemm_destroy(&cuda->gemm);
    arena_destroy(&cuda->scratch);
    (void)device_stream_destroy(k->device, &k->stream);
    free(cuda);
}

static status init_context(struct kernels *k, int64_t classifier_rows)
{
    struct cuda_state *cuda = cuda_get_state(k);
    size_t bytes = cuda_scratch_bytes(k->dtype, classifier_rows, &k->limits);
    cuda->classifier_rows = classifier_rows;
    TRY(device_stream_create(k->device, 0, &k->stream));
    TRY(cuda_graphs_create(k));
    TRY(arena_create(k->device, bytes, "the kernel workspace", &cuda->scratch));
    return cuda_gemm_create(k, &cuda->gemm);
}

status cuda_create(struct kernels *k, int64_t classifier_rows)
{
    k->threads = 1;
    TRY(memory_allocate_array(&k->state, 1, sizeof(struct cuda_state), "the kernel context"));
#define CUDA_TABLE(name) k->table.name = cuda_##name;
    KERNELS_OPERATIONS(CUDA_TABLE)
#undef CUDA_TABLE
    k->table.destroy = destroy_context;
    k->table.tune = cuda_tune;
    k->table.tune_import = cuda_tune_import;
    status result = init_context(k, classifier_rows);
    if (result != STATUS_OK) {
        destroy_context(k);
        return result;
    }
    snprintf(k->description, sizeof k->description, "%.80s, %s, %.40s", device_name(k->device),
             dtype_name(k->dtype), cuda_gemm_library_name(cuda_get_state(k)->gemm));
    return STATUS_OK;
}

/* FP8 GEMMs need Ada or newer. Those with row-wise scales need Hopper (CUDA 13.0). */
static status check_fp8(const struct kernels *k)
{
    int capability = cuda_device_capability(k->device);
    REQUIRE(
        capability >= CUDA_MIN_CAPABILITY_FP8, STATUS_UNAVAILABLE,
        "precision fp8: %s has compute capability %d.%d; FP8 needs 8.9 (Ada) or 9.0 (Hopper) or "
        "newer; set train.precision to bf16",
        device_name(k->device), capability / 10, capability % 10);
    REQUIRE(
        !k->limits.fp8_rowwise || capability / 10 == CUDA_MAJOR_CAPABILITY_ROWWISE,
        STATUS_UNAVAILABLE,
        "fp8.recipe rowwise: %s has compute capability %d.%d; cuBLASLt supports a scale for each "
        "row on 9.0 (Hopper) only; set fp8.recipe to delayed",
        device_name(k->device), capability / 10, capability % 10);
    return STATUS_OK;
}

static status create_context(struct kernels *k, int threads)
{
    (void)threads;
    TRY(k->limits.fp8_columns > 0 ? check_fp8(k) : STATUS_OK);
    return cuda_create(k, cuda_classifier_rows(k->dtype, &k->limits));
}

void cuda_register(void)
{
    static const struct kernels_driver driver = {create_context};
    device_register(DEVICE_CUDA, &cuda_device_driver);
    kernels_register(DEVICE_CUDA, &driver);
}
