#include "trainer/train/rollback.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/model/linear.h"

enum { REGIONS_MAX = 7 };

/* A range of memory that steps change. */
struct region {
    void *data;
    size_t bytes;
};

struct rollback {
    struct device *device;
    struct stream *stream;
    struct region regions[REGIONS_MAX];
    int count;
    char *copy; /* the regions, one after the other */
    size_t bytes;
};

static void add_region(struct rollback *r, void *data, int64_t elements, size_t element_bytes)
{
    if (data != NULL && elements > 0) {
        r->regions[r->count++] = (struct region){data, (size_t)elements * element_bytes};
        r->bytes += (size_t)elements * element_bytes;
    }
}

/* Lists the memory to copy: the trained parameters, which come first in the flat buffers. */
static void list_regions(struct rollback *r, const struct model *m,
                         const struct sharded_optimizer *optimizer)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    const struct optimizer *o = sharded_optimizer_inner(optimizer);
    int64_t vectors = 0, trained = model_trained_elems(parameters, count);
    int64_t owned = optimizer_elems(o);
    size_t moment_bytes = dtype_bytes(optimizer_moment_dtype(o));
    float *all_vectors = model_vectors(m, &vectors);
    add_region(r, model_weights(m), trained, sizeof(float));
    add_region(r, model_bf16_weights(m), trained, sizeof(bf16));
    add_region(r, all_vectors, vectors, sizeof(float));
    add_region(r, sharded_optimizer_weights(optimizer), owned, sizeof(float));
    add_region(r, optimizer_moment1(o), owned, moment_bytes);
    add_region(r, optimizer_moment2(o), owned, moment_bytes);
    int64_t steps = 0, operands = 0;
    float *history = model_fp8_history(m, &steps, &operands);
    add_region(r, history, steps * operands, sizeof *history);
}

status rollback_create(const struct session *session, const struct sharded_optimizer *optimizer,
                       struct rollback **out)
{
    *out = NULL;
    struct rollback *r = NULL;
    TRY(ALLOCATE(r, 1, "a copy of the weights"));
    r->device = session->device;
    r->stream = kernels_stream(session->kernels);
    list_regions(r, session->model, optimizer);
    status result = device_host_allocate(
        r->device, r->bytes, "the copy of weights and moments (train.on_spike: rollback)",
        (void **)&r->copy);
    if (result != STATUS_OK) {
        free(r);
        return result;
    }
    memset(r->copy, 1, r->bytes); /* touch all pages, so that the first copy has no page faults */
    *out = r;
    return STATUS_OK;
}

void rollback_destroy(struct rollback **rollback)
{
    if (*rollback != NULL) {
        device_host_release((*rollback)->device, (*rollback)->copy, (*rollback)->bytes);
        free(*rollback);
        *rollback = NULL;
    }
}

status rollback_copy(struct rollback *r)
{
    char *to = r->copy;
    for (int i = 0; i < r->count; to += r->regions[i++].bytes) {
        TRY(device_read(r->device, r->stream, to, r->regions[i].data, r->regions[i].bytes));
    }
    return STATUS_OK;
}

status rollback_restore(struct rollback *r)
{
    const char *from = r->copy;
    for (int i = 0; i < r->count; from += r->regions[i++].bytes) {
        TRY(device_write(r->device, r->stream, r->regions[i].data, from, r->regions[i].bytes));
    }
    return STATUS_OK;
}

int64_t rollback_compute_bytes(const struct model_parameter *parameters, int count, bool has_bf16,
                               bool released, int64_t owned_elems, int64_t moment_bytes)
{
    int64_t trained = model_trained_elems(parameters, count), vectors = 0;
    bool adapters = false;
    for (int i = 0; i < count; i++) {
        adapters = adapters || model_is_adapter(&parameters[i]);
        vectors +=
            parameters[i].trained && parameters[i].dimensions == 1 ? parameters[i].columns : 0;
    }
    int64_t weights = 4 * (released ? owned_elems : trained);
    weights += has_bf16 ? 2 * trained : 0;
    weights += released || (has_bf16 && adapters) ? 4 * vectors : 0;
    return weights + moment_bytes;
}
