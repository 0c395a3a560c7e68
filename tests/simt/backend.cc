/* The CUDA back-end in the emulator (backend.h). */
#include "kernels/cuda/operation.cuh"

#include <cstdlib>

extern "C" {
#include "tests/simt/backend.h"
}

static void (*destroy_context)(struct kernels *k);

/* Fails if ldmatrix had bank conflicts: every tile in shared memory must avoid them. */
static void destroy_checked(struct kernels *k)
{
    if (simt::banks.extra > 0) {
        simt::fail("ldmatrix: bank conflicts cost %llu cycles in %llu phases",
                   static_cast<unsigned long long>(simt::banks.extra),
                   static_cast<unsigned long long>(simt::banks.phases));
    }
    destroy_context(k);
}

/* Uses small chunks of logits, so that small tests have several chunks. */
extern "C" status simt_kernels_create(struct device *dev, enum dtype dtype,
                                      const struct kernels_limits *limits, struct kernels **out)
{
    const int64_t classifier_rows = 256;
    auto *k = static_cast<struct kernels *>(calloc(1, sizeof(struct kernels)));
    REQUIRE(k != NULL, STATUS_INTERNAL, "out of memory for the kernel context");
    k->device = dev;
    k->dtype = dtype;
    k->limits = *limits;
    status result = cuda_create(k, classifier_rows);
    if (result != STATUS_OK) {
        free(k);
        return result;
    }
    destroy_context = k->table.destroy;
    k->table.destroy = destroy_checked;
    *out = k;
    return STATUS_OK;
}
