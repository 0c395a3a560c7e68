#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/operation.cuh"

extern "C" {
#include "tests/simt/backend.h"
}

/* Every tile in shared memory is laid out so that ldmatrix reads it without bank conflicts. */
static void destroy(struct kernels *k)
{
    if (simt::banks.extra > 0) {
        simt::fail("ldmatrix: %llu cycles lost to bank conflicts in %llu phases",
                   static_cast<unsigned long long>(simt::banks.extra),
                   static_cast<unsigned long long>(simt::banks.phases));
    }
    arena_destroy(&cuda_of(k)->scratch);
    free(k->state);
}

/* Few rows of logits at a time, so that small tests have several chunks. */
extern "C" status simt_kernels_create(struct device *dev, enum dtype dtype,
                                      const struct kernels_limits *limits, struct kernels **out)
{
    const int64_t classifier_rows = 256;
    auto *k = static_cast<struct kernels *>(calloc(1, sizeof(struct kernels)));
    auto *state = static_cast<struct cuda *>(calloc(1, sizeof(struct cuda)));
    REQUIRE(k != NULL && state != NULL, STATUS_INTERNAL, "out of memory for the kernels' context");
    k->device = dev;
    k->dtype = dtype;
    k->threads = 1;
    k->limits = *limits;
    k->state = state;
#define SIMT_OPERATION(name) k->table.name = cuda_##name;
    CUDA_OPERATIONS(SIMT_OPERATION)
#undef SIMT_OPERATION
    k->table.destroy = destroy;
    state->classifier_rows = classifier_rows;
    size_t bytes = cuda_scratch_bytes(dtype, classifier_rows, limits);
    TRY(arena_create(dev, bytes, "the kernels' workspace", &state->scratch));
    snprintf(k->description, sizeof k->description, "CUDA emulated, %s", dtype_name(dtype));
    *out = k;
    return STATUS_OK;
}
