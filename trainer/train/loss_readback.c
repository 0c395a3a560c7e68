#include "trainer/train/loss_readback.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mirror.h"

enum { SLOTS = 64 };

struct loss_readback {
    struct mirror sums; /* f64 [SLOTS, OBJECTIVE_SUMS] */
    int count, next;
    struct loss_slot slots[SLOTS];
};

status loss_readback_create(struct kernels *k, struct loss_readback **out)
{
    *out = NULL;
    struct loss_readback *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for the loss sums of a step");
    status result = mirror_create(kernels_device(k), kernels_stream(k),
                                  SLOTS * OBJECTIVE_SUMS * sizeof(double), "sums", &r->sums);
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
        free(*r);
        *r = NULL;
    }
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
    int64_t named = samples->count < LOSS_NAMED_SAMPLES ? samples->count : LOSS_NAMED_SAMPLES;
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

static double *get_sums(void *memory, int index)
{
    return (double *)memory + (size_t)index * OBJECTIVE_SUMS;
}

status loss_readback_add(struct loss_readback *r, const struct batch *batch, struct loss_slot **out)
{
    struct loss_slot *slot = &r->slots[r->count];
    *slot = (struct loss_slot){.device_sums = get_sums(r->sums.device_data, r->count),
                               .samples = get_samples(batch)};
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
    return (size_t)r->count * OBJECTIVE_SUMS * sizeof(double);
}

status loss_readback_begin_copy(const struct loss_readback *r)
{
    return mirror_download(&r->sums, 0, get_used_bytes(r));
}

status loss_readback_wait(const struct loss_readback *r)
{
    return mirror_download_and_wait(&r->sums, 0, get_used_bytes(r));
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
