/* The losses are defined in kernels/preference_loss.h. */
#include "trainer/objective/pair_loss.h"

#include <stdlib.h>

#include "base/memory.h"

enum { PAIR_VALUES = 3 * RESPONSES }; /* doubles to exchange for one pair */

int64_t pair_loss_bytes(int64_t size)
{
    return size * (int64_t)(sizeof(struct preference_pair) + sizeof(struct preference_gradient) +
                            PREFERENCE_RANKED * sizeof(struct preference_ranked));
}

status pair_loss_create(struct kernels *k, int64_t size, int ranks, struct pair_loss_batch *out)
{
    struct device *dev = kernels_device(k);
    struct preference_batch *p = &out->pairs;
    *out = (struct pair_loss_batch){.kernels = k, .pairs = {.size = size}};
    status result = device_allocate(dev, (size_t)pair_loss_bytes(size), "pairs", &out->memory);
    KEEP_FIRST(result, pair_exchange_create(size, ranks, &out->exchange));
    if (device_is_host(dev)) {
        KEEP_FIRST(result, ALLOCATE(out->reduced, size * PAIR_VALUES, "the values of pairs"));
    }
    if (result != STATUS_OK) {
        pair_loss_destroy(out);
        return result;
    }
    p->pairs = out->memory;
    p->gradients = (struct preference_gradient *)(p->pairs + size);
    p->ranked = (struct preference_ranked *)(p->gradients + size);
    return STATUS_OK;
}

void pair_loss_destroy(struct pair_loss_batch *batch)
{
    if (batch->memory != NULL) {
        device_release(kernels_device(batch->kernels), batch->memory,
                       (size_t)pair_loss_bytes(batch->pairs.size));
    }
    pair_exchange_destroy(&batch->exchange);
    free(batch->reduced);
    *batch = (struct pair_loss_batch){0};
}

/* Removes all pairs. On a CPU they become zeros, which sum_pairs needs. */
status pair_loss_clear(struct pair_loss_batch *batch)
{
    struct kernels *k = batch->kernels;
    struct device *dev = kernels_device(k);
    pair_exchange_clear(&batch->exchange);
    return device_is_host(dev) ? device_zero(dev, kernels_stream(k), batch->pairs.pairs,
                                             (size_t)batch->pairs.size * sizeof *batch->pairs.pairs)
                               : STATUS_OK;
}

status pair_loss_add(struct pair_loss_batch *batch, const double *logps,
                     const struct preference_rows *rows, int64_t first)
{
    bool is_host = device_is_host(kernels_device(batch->kernels));
    int64_t index = first % batch->pairs.size;
    TRY(pair_exchange_add(&batch->exchange, index, rows->pairs, !is_host));
    return preference_batch_store(batch->kernels, &batch->pairs, logps, rows, index);
}

/* Adds the pairs of all ranks in host memory. The pairs of a rank may have gaps. The pairs of other
 * ranks are zeros, so the sum is exact. */
static status sum_pairs(struct comm *data, struct pair_loss_batch *b)
{
    int64_t size = b->pairs.size;
    for (int64_t i = 0; i < size * RESPONSES; i++) {
        const struct preference_pair *pair = &b->pairs.pairs[i / RESPONSES];
        double *value = b->reduced + 3 * i;
        value[0] = pair->logps[i % RESPONSES];
        value[1] = pair->reference[i % RESPONSES];
        value[2] = (double)pair->tokens[i % RESPONSES];
    }
    TRY(comm_sum_doubles(data, b->reduced, PAIR_VALUES * size));
    for (int64_t i = 0; i < size * RESPONSES; i++) {
        struct preference_pair *pair = &b->pairs.pairs[i / RESPONSES];
        const double *value = b->reduced + 3 * i;
        pair->logps[i % RESPONSES] = value[0];
        pair->reference[i % RESPONSES] = value[1];
        pair->tokens[i % RESPONSES] = (int64_t)value[2];
    }
    return STATUS_OK;
}

status pair_loss_gather(struct comm *data, const struct preference_settings *settings,
                        struct pair_loss_batch *batch, bool complete, bool *failed)
{
    struct preference_batch *p = &batch->pairs;
    TRY(pair_exchange_count(&batch->exchange, data, complete, failed));
    if (*failed) {
        return STATUS_OK;
    }
    TRY(device_is_host(kernels_device(batch->kernels))
            ? sum_pairs(data, batch)
            : pair_exchange_gather(&batch->exchange, data, p->pairs, sizeof *p->pairs));
    return comm_abort_on_error(
        data, preference_batch_run(batch->kernels, p, batch->exchange.count, settings));
}

status pair_loss_add_losses(const struct pair_loss_batch *batch, double *sum)
{
    struct kernels *k = batch->kernels;
    int64_t count = batch->exchange.count;
    struct preference_gradient *gradients = NULL;
    TRY(ALLOCATE(gradients, count, "the gradients of pairs"));
    status result = device_read(kernels_device(k), kernels_stream(k), gradients,
                                batch->pairs.gradients, (size_t)count * sizeof *gradients);
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        *sum += gradients[i].loss;
    }
    free(gradients);
    return result;
}
