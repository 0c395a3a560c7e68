#include "trainer/train/step/loss_readback.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/device/mirror.h"
#include "base/memory.h"
#include "base/number.h"

enum { SLOTS = 64 };

struct loss_readback {
    /* f64 [1 + SLOTS, OBJECTIVE_SUMS] each. Row 0 belongs to loss_readback_queue_sums; it remains 0
     * in `sums`. */
    struct mirror sums, host_sums;
    int count, next;
    struct loss_samples samples; /* of all slots since loss_readback_discard */
    struct loss_slot slots[SLOTS];
};

status loss_readback_create(struct kernels *k, struct loss_readback **out)
{
    *out = NULL;
    struct loss_readback *r = NULL;
    TRY(ALLOCATE(r, 1, "the loss sums of a step"));
    struct device *dev = kernels_device(k);
    const size_t bytes = (1 + SLOTS) * OBJECTIVE_SUMS * sizeof(double);
    status result = mirror_create(dev, kernels_stream(k), bytes, "sums", &r->sums);
    KEEP_FIRST(result, mirror_create(dev, kernels_stream(k), bytes, "sums", &r->host_sums));
    if (result != STATUS_OK) {
        loss_readback_destroy(&r);
    }
    *out = r;
    return result;
}

void loss_readback_destroy(struct loss_readback **r)
{
    if (*r != NULL) {
        mirror_destroy(&(*r)->sums);
        mirror_destroy(&(*r)->host_sums);
        free(*r);
        *r = NULL;
    }
}

static void add_samples(struct loss_samples *to, const struct loss_samples *from)
{
    for (int64_t i = 0; i < from->count && to->count + i < LOSS_NAMED_SAMPLES; i++) {
        to->numbers[to->count + i] = from->numbers[i];
    }
    to->count += from->count;
}

static struct loss_samples get_samples(const struct batch *batch)
{
    struct loss_samples samples = {.count = batch->sequences};
    for (int64_t i = 0; i < samples.count && i < LOSS_NAMED_SAMPLES && batch->samples != NULL;
         i++) {
        samples.numbers[i] = batch->samples[i];
    }
    return samples;
}

void loss_readback_describe_samples(const struct loss_samples *samples, const struct loader *loader,
                                    char *text, int bytes)
{
    int64_t named = number_min(samples->count, LOSS_NAMED_SAMPLES);
    int used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < named && used < bytes; i++) {
        char position[512];
        loader_locate(loader, samples->numbers[i], position, (int)sizeof position);
        used += snprintf(text + used, (size_t)(bytes - used), "%s%" PRId64 " (%s)",
                         i > 0 ? ", " : "", samples->numbers[i], position);
    }
    if (samples->count > named && used < bytes) {
        snprintf(text + used, (size_t)(bytes - used), " and %" PRId64 " more",
                 samples->count - named);
    }
}

status loss_readback_require_finite(double loss, const struct loss_samples *samples,
                                    const struct loader *loader)
{
    if (isfinite(loss)) {
        return STATUS_OK;
    }
    char text[1024];
    loss_readback_describe_samples(samples, loader, text, (int)sizeof text);
    RAISE(STATUS_NOT_FINITE,
          "the loss is %g in the micro-batch of samples %s; the weights were not updated. Lower "
          "optimizer.learning_rate, lengthen the warm-up, or check these samples",
          loss, text);
}

static double *get_sums(void *memory, int index)
{
    return (double *)memory + (size_t)(1 + index) * OBJECTIVE_SUMS;
}

status loss_readback_add(struct loss_readback *r, const struct batch *batch, struct loss_slot **out)
{
    struct loss_slot *slot = &r->slots[r->count];
    *slot = (struct loss_slot){.device_sums = get_sums(r->sums.device_data, r->count),
                               .host_sums = get_sums(r->host_sums.host, r->count),
                               .samples = get_samples(batch)};
    memset(slot->host_sums, 0, OBJECTIVE_SUMS * sizeof *slot->host_sums);
    add_samples(&r->samples, &slot->samples);
    r->count++;
    *out = slot;
    return device_zero(r->sums.device, r->sums.stream, slot->device_sums,
                       OBJECTIVE_SUMS * sizeof *slot->device_sums);
}

bool loss_readback_is_full(const struct loss_readback *r)
{
    return r->count == SLOTS;
}

static size_t get_used_bytes(const struct loss_readback *r)
{
    return (size_t)(1 + r->count) * OBJECTIVE_SUMS * sizeof(double);
}

status loss_readback_begin_copy(const struct loss_readback *r)
{
    return mirror_download(&r->sums, 0, get_used_bytes(r));
}

status loss_readback_wait(const struct loss_readback *r)
{
    return mirror_download_and_wait(&r->sums, 0, get_used_bytes(r));
}

status loss_readback_queue_sums(struct loss_readback *r, struct kernels *k, double *out,
                                const double carried[OBJECTIVE_SUMS])
{
    memcpy(r->host_sums.host, carried, OBJECTIVE_SUMS * sizeof *carried);
    TRY(mirror_upload(&r->host_sums, 0, get_used_bytes(r)));
    return control_sum_rows(k, out, r->host_sums.device_data, r->sums.device_data, 1 + r->count,
                            OBJECTIVE_SUMS);
}

void loss_readback_discard(struct loss_readback *r)
{
    r->next = r->count = 0;
    r->samples = (struct loss_samples){0};
}

struct loss_samples loss_readback_samples(const struct loss_readback *r)
{
    return r->samples;
}

bool loss_readback_next(struct loss_readback *r, double sums[OBJECTIVE_SUMS],
                        const struct loss_samples **samples)
{
    if (r->next == r->count) {
        r->next = r->count = 0;
        return false;
    }
    const struct loss_slot *slot = &r->slots[r->next];
    const double *device_sums = get_sums(r->sums.host, r->next++);
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] = slot->host_sums[i] + device_sums[i];
    }
    *samples = &slot->samples;
    return true;
}

status loss_readback_require_all_finite(struct loss_readback *r, const struct loader *loader)
{
    const struct loss_samples *samples = NULL;
    double sums[OBJECTIVE_SUMS];
    status result = STATUS_OK;
    while (loss_readback_next(r, sums, &samples)) {
        KEEP_FIRST(result, loss_readback_require_finite(sums[OBJECTIVE_LOSS], samples, loader));
    }
    return result;
}
